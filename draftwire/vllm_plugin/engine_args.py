"""A verify worker's flags as vLLM's engine arguments (`python -m verify_service --backend vllm`)."""

import os
from typing import Any

from draftwire.errors import InvalidArgument
from draftwire.fake_model import PREFIX
from draftwire.models import resolve
from draftwire.vllm_plugin.config import KEY
from verify_service.config import VerifyConfig

PROPOSER = "draftwire.vllm_plugin.NullProposer"
SCHEDULER = "draftwire.vllm_plugin.RemoteDraftScheduler"
PLAIN_SCHEDULER = "draftwire.vllm_plugin.plain.plain_scheduler"

#: Place for keys and values on a CPU where nothing else is said, GiB.
CPU_CACHE_GIB = "4"


def engine_arguments(config: VerifyConfig, metrics_port: int) -> dict[str, Any]:
    """What `AsyncEngineArgs` takes; --vllm-args has the last word.

    Args:
        metrics_port: where the plug-in serves the worker's metrics.

    Raises InvalidArgument for what vLLM cannot do here, ModelError for an embedded model that is missing.
    """
    if config.batch_invariant:
        raise InvalidArgument("--batch-invariant", "is the native engine's; vLLM gives no such promise here")
    if config.target.startswith(PREFIX):
        raise InvalidArgument("--target", f"{config.target!r} is a fake model, which only the native engine runs")
    arguments: dict[str, Any] = {
        "model": resolve(config.target),
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "tensor_parallel_size": config.tensor_parallel_size,
        "scheduler_cls": PLAIN_SCHEDULER,
        "disable_log_stats": True,
    }
    if config.dtype != "auto":
        arguments["dtype"] = config.dtype
    if speculates(config):
        arguments |= _speculation(config, metrics_port)
    if config.device == "cpu":
        arguments |= _cpu(config)
    return arguments | config.vllm_args


def speculates(config: VerifyConfig) -> bool:
    """Whether the worker takes drafts."""
    return bool(config.drafts and config.num_speculative_tokens)


def _speculation(config: VerifyConfig, metrics_port: int) -> dict[str, Any]:
    fields = {
        "drafts": ",".join(config.drafts),
        "schedule": config.schedule,
        "draft_window": config.draft_window,
        "metrics_host": config.host,
        "metrics_port": metrics_port,
    }
    return {
        "scheduler_cls": SCHEDULER,
        "speculative_config": {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": config.num_speculative_tokens,
        },
        "additional_config": {KEY: {name: value for name, value in fields.items() if value is not None}},
    }


def _cpu(config: VerifyConfig) -> dict[str, Any]:
    """Defaults for a CPU: float32 as in the native engine, no compilation, threads that stay where we are pinned."""
    if "kv_cache_memory_bytes" not in config.vllm_args:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE_GIB)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if config.engine_threads:
        os.environ["OMP_NUM_THREADS"] = str(config.engine_threads)
    return {"enforce_eager": True} | ({"dtype": "float32"} if config.dtype == "auto" else {})
