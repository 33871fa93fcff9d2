"""Remote draft pools for a stock vLLM (docs/vllm.md): a scheduler that takes its drafts from draft workers.

config         what it is told
speculation    a vLLM request as the draft side sees it
remote_drafts  sessions, plans, waiting: the verify worker's parts, driven by vLLM's steps
draft_thread   the event loop of the streams to the draft workers
target         what the draft workers are told of vLLM's model
scheduler      vLLM's scheduler with all this in it
plain          vLLM's scheduler with nothing of this in it, for a verify worker without drafts
proposer       the empty proposer that vLLM's workers get
workarounds    repairs of vLLM, each until it is not needed any more

vLLM's flags name `draftwire.vllm_plugin.RemoteDraftScheduler` and `draftwire.vllm_plugin.NullProposer`. Each is
imported when it is asked for: the workers need no gRPC, and what does not know vLLM can be imported without it.
"""

from importlib import import_module
from typing import Any

_HOME = {"NullProposer": "proposer", "RemoteDraftScheduler": "scheduler"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
