"""`python -m verify_service --backend vllm` loads this module by name: what must be said before vLLM is imported."""

import asyncio
import os

import prometheus_client

from draftwire import service
from draftwire.errors import ModelError
from draftwire.metrics import start_metrics_server
from draftwire.ports import free_port
from draftwire.vllm_plugin.engine_args import engine_arguments, speculates
from verify_service.config import VerifyConfig


async def serve(config: VerifyConfig, stop: asyncio.Event) -> int:
    """Run one verify worker until `stop`; 1 if its engine failed. Raises ModelError if vLLM is missing."""
    service.pin(config.cpu_affinity)
    metrics_port = config.metrics_port or free_port(config.host)
    arguments = engine_arguments(config, metrics_port)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for the line that says we are ready
    try:
        from draftwire.vllm_plugin.worker import VllmWorker  # noqa: PLC0415  reads the environment
    except ImportError as error:
        raise ModelError(f"--backend vllm: {error}; docs/vllm.md says how to install it") from error
    if not speculates(config):  # no plug-in, so what there is to see is vLLM's own
        arguments["disable_log_stats"] = False
        metrics_port = start_metrics_server(config.host, config.metrics_port, prometheus_client.REGISTRY)
    worker = VllmWorker(config, arguments, asyncio.Event())
    return await service.serve("verify", worker, stop, metrics_port)
