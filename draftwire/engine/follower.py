"""`python -m draftwire.engine.follower JOB`: one of the ranks 1, 2, .. of a tensor-parallel engine; rank 0 starts it.

It loads its part of the model and then does what the plans say: copies, and forwards whose results rank 0 alone uses.
"""

import json
import logging
import os
import signal
import sys
import threading
import time

import torch

from draftwire.engine.parallel_group import Job, Rank, join_store
from draftwire.engine.pretrained import build_engine
from draftwire.errors import DraftwireError
from draftwire.service import set_up_logging

logger = logging.getLogger(__name__)

#: When a rank goes down the others' collectives fail in the same moment. Rank 0 should first see the one that went.
QUIET_SECONDS = 1.0


def main() -> int:
    """The process."""
    job = Job(**json.loads(sys.argv[1]))
    set_up_logging(f"rank-{job.rank}", job.log_level)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # rank 0 drains, and may need us until it is done
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    try:
        follow(job)
    except (DraftwireError, RuntimeError) as error:
        time.sleep(QUIET_SECONDS)
        logger.error("%s: %s", type(error).__name__, error)
    return 1


def follow(job: Job) -> None:
    """Load, then run plans until something fails."""
    torch.set_num_threads(job.threads)
    rank = Rank(job, join_store(job.port, job.size))
    engine = build_engine(
        job.model,
        dtype=job.dtype,
        device=job.device,
        num_slots=job.num_slots,
        max_model_len=job.max_model_len,
        max_batched_tokens=job.max_batched_tokens,
        batch_invariant=job.batch_invariant,
        rank=rank,
    )
    with torch.inference_mode():
        while True:
            plan = rank.receive()
            for copy in plan.copies:
                engine.copy(*copy)
            if plan.chunks:
                engine.run(plan.chunks)


def _end_with_rank_0() -> None:
    """Our standard input ends when rank 0 closes it or is gone."""
    sys.stdin.buffer.read()
    os._exit(0)  # the main thread waits in a collective


if __name__ == "__main__":
    sys.exit(main())
