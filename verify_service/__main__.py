"""`python -m verify_service --target MODEL --drafts HOST:PORT ...`"""

import asyncio
import importlib
import logging
import sys

from draftwire import service
from draftwire.config import load_config
from draftwire.engine.base import Engine
from draftwire.engine.load import load_engine
from draftwire.metrics import new_registry, start_metrics_server
from verify_service.config import VerifyConfig
from verify_service.worker import VerifyWorker

logger = logging.getLogger(__name__)


#: Backends that are loaded by name, because they need what few installations have.
BACKENDS = {"vllm": "draftwire.vllm_plugin.backend"}


async def serve(config: VerifyConfig, stop: asyncio.Event) -> int:
    """Run one verify worker until `stop`; 1 if its engine failed."""
    if config.backend in BACKENDS:
        code: int = await importlib.import_module(BACKENDS[config.backend]).serve(config, stop)
        return code

    def make_engine() -> Engine:
        return load_engine(
            config.target,
            dtype=config.dtype,
            device=config.device,
            num_slots=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_batched_tokens=config.max_num_batched_tokens,
            batch_invariant=config.batch_invariant,
            threads=config.engine_threads,
            tensor_parallel_size=config.tensor_parallel_size,
            progress=logger.info,
            on_loss=worker.engine_failed,
        )

    service.pin(config.cpu_affinity)
    registry = new_registry()
    metrics_port = start_metrics_server(config.host, config.metrics_port, registry)
    worker = VerifyWorker(config, make_engine, registry, asyncio.Event())
    return await service.serve("verify", worker, stop, metrics_port)


def main() -> int:
    """The process."""
    config = load_config(VerifyConfig, sys.argv[1:])
    return service.run("verify", lambda stop: serve(config, stop), log_level=config.log_level)


if __name__ == "__main__":
    sys.exit(main())
