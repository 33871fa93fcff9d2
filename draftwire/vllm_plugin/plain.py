"""vLLM's own scheduler, in an engine core that does not outlive its front end."""

import multiprocessing
import multiprocessing.connection
import os
import threading
from typing import Any


def plain_scheduler(*, vllm_config: Any, **arguments: Any) -> Any:
    """`scheduler_cls` of a verify worker without drafts: what vLLM takes where nothing is said."""
    # Only when it is called: the processes of vLLM's front end need none of its scheduler.
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: PLC0415
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

    end_with_parent()
    chosen = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    return chosen(vllm_config=vllm_config, **arguments)


def end_with_parent() -> None:
    """vLLM's engine core outlives a front end that is killed, and holds the device; this ends it.

    One whose front end is gone already ends here and now.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return  # the engine core runs in the front end's own process

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()
