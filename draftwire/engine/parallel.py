"""Tensor parallelism: one model over several processes, each with a part of every layer.

Rank 0 is the process that serves. It alone decides: it keeps the slots, sends a plan before each forward, and runs its
own part. The followers (`draftwire.engine.follower`) do as the plans say. While there is nothing to run rank 0 sends
empty plans, because a follower takes a long silence for rank 0's end.
"""

import atexit
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwire.engine import trimmed
from draftwire.engine.base import Chunk
from draftwire.engine.native import NativeEngine
from draftwire.engine.parallel_followers import Followers
from draftwire.engine.parallel_group import Job, Rank, leave, open_store, use_loopback
from draftwire.engine.parallel_plan import Copy, Plan
from draftwire.engine.pretrained import build_engine, read_config, try_out
from draftwire.errors import InvalidArgument, Unavailable
from draftwire.models import resolve

logger = logging.getLogger(__name__)

FLAG = "--tensor-parallel-size"

#: Longest silence of rank 0. Seconds.
HEARTBEAT_SECONDS = 10.0
#: Longest that one rank may keep the others waiting once the model is loaded. Seconds.
TIMEOUT_SECONDS = 60.0
#: A collective fails a little before the process that broke it is known to have ended. Seconds.
NEWS_SECONDS = 3.0


class TensorParallelEngine(NativeEngine):
    """`Engine` over all ranks; this process is rank 0.

    Args:
        rank: our place.
        followers: the other processes, which end with `close`, or with this process.
        heartbeat_seconds: longest time between two plans.
        (the others): as in NativeEngine.
    """

    def __init__(
        self,
        *args: Any,
        rank: Rank,
        followers: Followers,
        heartbeat_seconds: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.followers = followers
        self._rank = rank
        self._heartbeat_seconds = heartbeat_seconds
        self._copies: list[Copy] = []
        self._lock = threading.Lock()  # of everything that goes to the followers
        self._sent_at = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def copy(self, source: int, target: int, length: int) -> None:
        """As in NativeEngine; the followers learn of it with the next plan."""
        with self._lock:
            self._copies.append(Copy(source, target, length))
            if len(self._copies) == self.num_slots:  # all that a plan has room for
                self._send()
        super().copy(source, target, length)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """As in NativeEngine, on every rank. Raises Unavailable if the ranks fell apart: there is no way back then."""
        with self._lock:
            self._send(chunks)
            try:
                return super().run(chunks)
            except RuntimeError as error:
                raise self._apart(error) from error

    def close(self) -> None:
        """End the followers and wait until they are gone; a second call does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            self.followers.close()
            with self._lock:
                leave()

    def _send(self, chunks: Sequence[Chunk] = ()) -> None:
        self.followers.check()
        try:
            self._rank.send(Plan(self._copies, chunks))
        except RuntimeError as error:
            raise self._apart(error) from error
        self._copies = []
        self._sent_at = time.monotonic()

    def _apart(self, error: RuntimeError) -> Unavailable:
        """Why the ranks fell apart: a follower that ended, if there is one, else what failed here."""
        return self.followers.loss(NEWS_SECONDS) or Unavailable(f"tensor parallelism: failed at rank 0: {error}")

    def _beat(self) -> None:
        """On a thread of its own: a plan whenever there was none for a while."""
        pause = self._heartbeat_seconds / 2
        while not self._closed.wait(pause):
            with self._lock:
                if self._closed.is_set() or time.monotonic() - self._sent_at < pause:
                    continue
                try:
                    self._send()
                except Unavailable as error:
                    self.followers.lose(error)
                    return


def load_parallel(
    model: str,
    *,
    size: int,
    progress: Callable[[str], None],
    on_loss: Callable[[Unavailable], None],
    **options: Any,
) -> TensorParallelEngine:
    """What `draftwire.engine.load.load_engine` does for tensor_parallel_size > 1; arguments and errors as there.

    Args:
        on_loss: told once, on any thread, that the ranks fell apart: nobody may be calling the engine at the time.
        options: dtype, device, num_slots, max_model_len, max_batched_tokens, batch_invariant.
    """
    _check(model, size, options["device"])
    threads = max(1, torch.get_num_threads() // size)
    torch.set_num_threads(threads)
    use_loopback()
    store = open_store(size)
    level = logging.getLevelName(logger.getEffectiveLevel())
    job = Job(0, size, store.port, TIMEOUT_SECONDS, threads, level, model=model, **options)
    progress(f"starting {size - 1} followers")
    followers = Followers(job, on_loss)
    atexit.register(followers.close)
    engine = None
    try:
        rank = Rank(job, store, followers.check)
        progress(f"loading {model}, 1/{size} of it in each process")
        make = functools.partial(
            TensorParallelEngine,
            rank=rank,
            followers=followers,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )
        engine = build_engine(model, **options, rank=rank, make=make)
        assert isinstance(engine, TensorParallelEngine)
        try_out(engine, batch_invariant=options["batch_invariant"], progress=progress)
    except BaseException as error:
        loss = followers.loss(NEWS_SECONDS if isinstance(error, RuntimeError) else 0.0)
        if isinstance(engine, TensorParallelEngine):
            engine.close()
        followers.close()
        leave()
        if loss:
            raise loss from error
        raise
    return engine


def _check(model: str, size: int, device: str) -> None:
    """Raise InvalidArgument, naming the flag and the limit, unless `size` processes can share the model here."""
    source = resolve(model)
    if trimmed.read_config(source):
        raise InvalidArgument(FLAG, f"{model} is a trimmed draft, which runs in one process (got {size})")
    config = read_config(model, source)
    counts = {
        "attention heads": config.num_attention_heads,
        "key heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "inner MLP features": config.intermediate_size,
        "vocabulary entries": config.vocab_size,
    }
    for what, count in counts.items():
        if count % size:
            raise InvalidArgument(FLAG, f"must divide the {count} {what} of {model} (got {size})")
    if device == "cpu":
        if torch.accelerator.is_available():  # transformers would put the parts there
            raise InvalidArgument(FLAG, f"with --device cpu needs the GPUs hidden: CUDA_VISIBLE_DEVICES= (got {size})")
    elif device != "cuda":
        raise InvalidArgument(
            "--device", f"must be cpu or cuda with {FLAG}, whose ranks take a GPU each (got {device!r})"
        )
    elif torch.cuda.device_count() < size:
        raise InvalidArgument(FLAG, f"must be at most {torch.cuda.device_count()}, the GPUs here (got {size})")
