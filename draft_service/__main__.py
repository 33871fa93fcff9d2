"""`python -m draft_service --draft MODEL --port PORT ...`"""

import asyncio
import logging
import sys
from collections.abc import Callable

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.load import make_drafter
from draft_service.worker import DraftWorker
from draftwire.config import load_config
from draftwire.metrics import new_registry, start_metrics_server
from draftwire.service import announce, pin, run

logger = logging.getLogger(__name__)


async def serve(config: DraftConfig, stop: asyncio.Event, make: Callable[[DraftConfig], Drafter] = make_drafter) -> int:
    """Run one draft worker until `stop`; 1 if its engine failed."""
    pin(config.cpu_affinity)
    registry = new_registry()
    metrics_port = start_metrics_server(config.host, config.metrics_port, registry)
    failed = asyncio.Event()
    worker = DraftWorker(config, lambda: make(config), registry, failed)
    stopping, failing = asyncio.create_task(stop.wait()), asyncio.create_task(failed.wait())
    starting = asyncio.create_task(worker.start())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        starting.result()
        logger.info("ready; metrics on http://%s:%d/metrics", config.host, metrics_port)
        announce("draft", worker.port, metrics_port)
        await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await worker.drain()
    return int(failed.is_set())


def main() -> int:
    """The process."""
    config = load_config(DraftConfig, sys.argv[1:])
    return run("draft", lambda stop: serve(config, stop), log_level=config.log_level)


if __name__ == "__main__":
    sys.exit(main())
