"""The processes that run one model together: how they find each other, and how rank 0's plans reach the others.

There are two process groups. The model's layers use the first one (NCCL between GPUs, gloo between CPU processes);
nothing but a forward does. Plans go through a gloo group of their own. Both groups and the store listen on loopback
only.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not say that it is exported

from draftwire.engine.parallel_plan import Plan, decode, encode, plan_size
from draftwire.errors import Unavailable

LOOPBACK = "127.0.0.1"

#: Ranks may be so far apart in starting and loading. Seconds.
MEETING_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank must know; a follower gets it as JSON.

    Attributes:
        rank: 0 to size - 1.
        size: processes that share the model (--tensor-parallel-size).
        port: of rank 0's store, on loopback.
        timeout_seconds: a collective that takes longer has failed; so has a rank 0 that says nothing for so long.
        threads: CPU threads of one rank.
        log_level: least severe event that a follower logs.
        model, dtype, device, num_slots, max_model_len, max_batched_tokens, batch_invariant: as in load_engine.
    """

    rank: int
    size: int
    port: int
    timeout_seconds: float
    threads: int
    log_level: str
    model: str
    dtype: str
    device: str
    num_slots: int
    max_model_len: int | None
    max_batched_tokens: int
    batch_invariant: bool


def open_store(size: int) -> TCPStore:
    """Rank 0's store, through which the ranks meet, on a free port of loopback (`store.port`)."""
    with socket.create_server((LOOPBACK, 0)) as server:  # left to itself the store listens on every network
        port = server.getsockname()[1]
        return TCPStore(LOOPBACK, port, size, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def join_store(port: int, size: int) -> TCPStore:
    """The same for a follower."""
    return TCPStore(LOOPBACK, port, size, is_master=False)


class Rank:
    """This process's place among the ranks.

    Args:
        check: called while waiting for the others; raises what makes waiting pointless.
    """

    def __init__(self, job: Job, store: TCPStore, check: Callable[[], None] = lambda: None) -> None:
        self.job = job
        self._store = store
        self._check = check
        self._plan_size = plan_size(job.num_slots, job.max_batched_tokens)
        self._agreed = 0
        self.agree("here", 0)
        timeout = timedelta(seconds=job.timeout_seconds)
        on_gpus = job.device != "cpu"
        dist.init_process_group(
            "nccl" if on_gpus else "gloo",
            store=store,
            rank=job.rank,
            world_size=job.size,
            timeout=timeout,
            device_id=torch.device(job.device, job.rank) if on_gpus else None,
        )
        self._control = dist.new_group(backend="gloo", timeout=timeout)

    def agree(self, what: str, value: int) -> int:
        """Wait until every rank has said its `value`; returns the largest one. Raises Unavailable."""
        self._agreed += 1  # the store forgets nothing: a key that was used would wait for nobody
        keys = [f"{what}/{self._agreed}/{rank}" for rank in range(self.job.size)]
        self._store.set(keys[self.job.rank], str(value))
        deadline = time.monotonic() + MEETING_SECONDS
        while not self._store.check(keys):
            self._check()
            if time.monotonic() > deadline:
                raise Unavailable(f"tensor parallelism: a rank did not load within {MEETING_SECONDS:g} s")
            time.sleep(0.02)
        return max(int(self._store.get(key)) for key in keys)

    def send(self, plan: Plan) -> None:
        """Rank 0: tell every follower; waits until they take it. Raises RuntimeError if one of them does not."""
        dist.broadcast(encode(plan, self._plan_size), 0, group=self._control)

    def receive(self) -> Plan:
        """A follower: wait for the next plan. Raises RuntimeError if rank 0 says nothing for too long or is gone."""
        numbers = torch.empty(self._plan_size, dtype=torch.int32)
        dist.broadcast(numbers, 0, group=self._control)
        return decode(numbers)


def leave() -> None:
    """Take this process's groups down, if there are any, so that it may join others and may end.

    Gloo's threads live as long as anything holds a group. One that lets go of a tensor while the interpreter ends
    aborts the process.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def use_loopback() -> None:
    """Keep gloo and NCCL off the networks, here and in the processes that we start.

    GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME may say otherwise.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
