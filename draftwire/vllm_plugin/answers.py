"""VerifyService's answers from a vLLM engine: requests into vLLM's words, its outputs into events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from draftwire.errors import EngineError, InvalidArgument, ResourceExhausted, Unavailable
from draftwire.types import (
    Committed,
    Finished,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    SpeculationStats,
    Started,
    Usage,
)
from draftwire.vllm_plugin.engine_args import speculates
from draftwire.vllm_plugin.speculation import LIMIT_ARGUMENT, REPORT_ARGUMENT, REPORT_KEY
from verify_service.config import VerifyConfig
from verify_service.servicer import WireServicer

#: vLLM raises a temperature between 0 and this one to it.
LEAST_TEMPERATURE = 0.01

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class VllmServicer(WireServicer):
    """VerifyService in front of an AsyncLLM.

    A caller that lags does not pause its answer, as it would in the native worker: vLLM computes on, and what waits for
    the caller is bounded by the answer's length.
    """

    def __init__(self, config: VerifyConfig, instance_id: str, model: ModelInfo, llm: Any) -> None:
        super().__init__(config, instance_id, model)
        self._llm = llm
        self._running = 0
        self._asked = 0
        self._refusal: Unavailable | None = None

    async def answer(self, request: GenerateRequest) -> AsyncGenerator[Started | Committed | Finished, None]:
        """The events of one validated request. Raises InvalidArgument for what vLLM cannot do; closing it aborts."""
        if self._refusal:
            raise self._refusal
        params = sampling_params(request, self._model, with_drafts=speculates(self._config))
        most = self._config.max_num_seqs + self._config.max_waiting
        if self._running >= most:
            raise ResourceExhausted(f"{most} requests run or wait already (--max-num-seqs + --max-waiting)")
        self._running += 1
        try:
            yield Started(self._instance_id, request.request_id)
            async with aclosing(self._events(request, params)) as events:
                async for event in events:
                    yield event
        except EngineDeadError:
            raise Unavailable("the engine failed and the verify worker stops") from None
        finally:
            self._running -= 1

    def refuse(self) -> None:
        """Take no new calls (drain)."""
        self._refusal = Unavailable("the verify worker drains")

    async def _events(
        self, request: GenerateRequest, params: SamplingParams
    ) -> AsyncGenerator[Committed | Finished, None]:
        prompt = [*request.prompt_token_ids, *request.committed_token_ids]
        position = len(prompt)
        stats, cached, reason = SpeculationStats(), 0, None
        self._asked += 1  # vLLM's ids must be unique; callers' need not be
        # Closing the generator is what aborts the request.
        async with aclosing(self._llm.generate({"prompt_token_ids": prompt}, params, f"{self._asked}")) as outputs:
            async for output in outputs:
                part = output.outputs[0]
                report = (output.kv_transfer_params or {}).get(REPORT_KEY)
                stats = SpeculationStats(**report) if report else stats
                cached, reason = output.num_cached_tokens or 0, part.finish_reason
                if part.token_ids:
                    yield Committed(position, tuple(part.token_ids), stats, cached)
                    position += len(part.token_ids)
        if reason not in _REASONS:
            raise EngineError(f"vLLM ended the answer: {reason}")
        usage = Usage(len(request.prompt_token_ids), position - len(request.prompt_token_ids), cached)
        yield Finished(_REASONS[reason], usage, stats)


def sampling_params(request: GenerateRequest, model: ModelInfo, *, with_drafts: bool) -> SamplingParams:
    """A validated request in vLLM's words.

    Args:
        with_drafts: the engine has drafts, which is what vLLM refuses min_p for.

    Raises InvalidArgument for what vLLM cannot do.
    """
    if request.seed is not None:
        raise InvalidArgument("seed", "coupled mode needs the native engine; this worker runs on vLLM (--backend vllm)")
    if 0 < request.sampling.temperature < LEAST_TEMPERATURE:
        raise InvalidArgument(
            "sampling.temperature", f"must be 0 or at least {LEAST_TEMPERATURE} on vLLM, which would raise it to that"
        )
    if with_drafts and request.sampling.min_p > 0:
        raise InvalidArgument("sampling.min_p", "must be 0 here: vLLM has no min_p together with speculation")
    most = request.max_tokens
    if most is None:
        most = model.max_model_len - len(request.prompt_token_ids)
    extra: dict[str, Any] = {REPORT_ARGUMENT: 1}
    if request.num_speculative_tokens is not None:
        extra[LIMIT_ARGUMENT] = request.num_speculative_tokens
    return SamplingParams(
        temperature=request.sampling.temperature,
        top_k=request.sampling.top_k,
        top_p=request.sampling.top_p,
        min_p=request.sampling.min_p,
        max_tokens=most - len(request.committed_token_ids),
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra,
    )
