"""What vLLM's workers have in place of a draft: nothing. Drafts come to the scheduler, from remote draft workers."""

from collections.abc import Sequence
from typing import Any

from draftwire.vllm_plugin import workarounds


class NullProposer:
    """`speculative_config={"method": "custom_class", "model": "draftwire.vllm_plugin.NullProposer", ...}`.

    It makes vLLM set up verification: the rejection sampler, room for K more tokens a step, its own metrics.
    """

    def __init__(self, vllm_config: Any) -> None:
        workarounds.apply()

    def load_model(self, target_model: Any) -> None:
        """There is no model."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        """No proposals, for each request of the batch."""
        return [[] for _ in sampled_token_ids]
