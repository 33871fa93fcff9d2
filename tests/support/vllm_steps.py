"""What vLLM does around `RemoteDrafts`, with a target that a reader can compute by hand; no vLLM."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwire.fake_model import FakeModel
from draftwire.types import GenerateRequest, ModelInfo
from draftwire.vllm_plugin.remote_drafts import Outcome, RemoteDrafts
from draftwire.vllm_plugin.speculation import GREEDY, Speculation

TARGET = ModelInfo("target", "fake-512", 512, 4096, engine="vllm")
#: Seconds that a step takes.
STEP = 0.005


@dataclass
class Request:
    """The fields of a vLLM request that the plug-in reads."""

    all_token_ids: list[int]
    max_tokens: int
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.all_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def is_finished(self) -> bool:
        return self.num_tokens >= self.num_prompt_tokens + self.max_tokens


def begin(remote: RemoteDrafts, prompt: Sequence[int], max_tokens: int, limit: int | None = None) -> Speculation:
    """A request that is prefilled, all but its last token."""
    request = Request(list(prompt), max_tokens, num_computed_tokens=len(prompt) - 1)
    asked = GenerateRequest("test", tuple(prompt), sampling=GREEDY, num_speculative_tokens=limit)
    speculation = Speculation(request, asked, max_model_len=TARGET.max_model_len)
    remote.admit(speculation)
    return speculation


def step(remote: RemoteDrafts, running: Sequence[Speculation], target: FakeModel) -> None:
    """One step over all that run."""
    remote.supply(running)
    remote.wait(running)
    proposals = [remote.proposals(speculation) for speculation in running]
    time.sleep(STEP)
    remote.measured(sum(1 + len(proposed) for proposed in proposals), STEP)
    remote.commit(
        [_verify(speculation, proposed, target) for speculation, proposed in zip(running, proposals, strict=True)]
    )


def _verify(speculation: Speculation, proposed: Sequence[int], target: FakeModel) -> Outcome:
    request = speculation.vllm_request
    before = request.num_tokens
    sampled: list[int] = []
    for guess in [*proposed, None]:
        token = target.next_token(request.all_token_ids[-1], request.num_tokens)
        sampled.append(token)
        if not request.is_finished():
            request.all_token_ids.append(token)
        if token != guess:
            break
    request.num_computed_tokens = request.num_tokens - 1
    token_ids = tuple(request.all_token_ids[before:])
    return Outcome(speculation, token_ids, len(proposed), len(sampled) - 1, request.is_finished())
