"""`python -m draft_service --draft MODEL --port PORT ...`"""

import asyncio
import sys
from collections.abc import Callable

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.load import make_drafter
from draft_service.worker import DraftWorker
from draftwire import service
from draftwire.config import load_config
from draftwire.metrics import new_registry, start_metrics_server


async def serve(config: DraftConfig, stop: asyncio.Event, make: Callable[[DraftConfig], Drafter] = make_drafter) -> int:
    """Run one draft worker until `stop`; 1 if its engine failed."""
    service.pin(config.cpu_affinity)
    registry = new_registry()
    metrics_port = start_metrics_server(config.host, config.metrics_port, registry)
    worker = DraftWorker(config, lambda: make(config), registry, asyncio.Event())
    return await service.serve("draft", worker, stop, metrics_port)


def main() -> int:
    """The process."""
    config = load_config(DraftConfig, sys.argv[1:])
    return service.run("draft", lambda stop: serve(config, stop), log_level=config.log_level)


if __name__ == "__main__":
    sys.exit(main())
