"""A verify worker on vLLM behind the gateway, with a draft worker: what callers see is what they know."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from support.service_law import TARGET
from support.system import metric, system, until_metric
from support.vllm_chain import write_chain
from support.vllm_processes import engine_core

from draftwire.errors import InvalidArgument
from draftwire.rpc.status import error_of
from draftwire.types import GenerateRequest, ModelInfo, SamplingParams, Started
from draftwire.v1.verify_service_pb2 import SpeculationParams
from draftwire.vllm_plugin.answers import VllmServicer, sampling_params
from verify_service.config import VerifyConfig

PROMPT, TOKENS = [0, 3, 0], 48
VLLM_ARGS = '{"block_size": 32, "kv_cache_memory_bytes": 67108864}'
MAX_MODEL_LEN = 16384
MODEL = ModelInfo("m", "f", 100, 1000)


@pytest.mark.e2e
@pytest.mark.timeout(1200)
async def test_gateway_and_callers_notice_nothing(tmp_path: Path) -> None:
    """Greedy answers with a perfect draft and without are equal, statistics and errors are those of every worker."""
    model = write_chain(TARGET, tmp_path / "model", MAX_MODEL_LEN)
    sizes = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 4}
    verify = sizes | {"backend": "vllm", "schedule": "lockstep", "vllm_args": VLLM_ARGS}
    async with system(tmp_path, target=model, draft=model, verify_flags=verify, draft_flags=sizes) as made:
        worker = made.verifiers[0]
        plain = await made.generate(PROMPT, max_tokens=TOKENS, speculation=SpeculationParams(disabled=True))
        drafted = await made.generate(PROMPT, max_tokens=TOKENS)
        async with asyncio.timeout(120):  # on a busy machine the draft may come too late
            while not drafted.speculation.tested_tokens:
                drafted = await made.generate(PROMPT, max_tokens=TOKENS)
        assert drafted.token_ids == plain.token_ids
        assert drafted.usage.completion_tokens == TOKENS
        assert plain.speculation.steps == TOKENS
        assert plain.speculation.tested_tokens == 0
        assert drafted.speculation.committed_tokens == TOKENS
        assert drafted.speculation.acceptance == 1
        assert drafted.speculation.tokens_per_step > 1
        assert await metric(worker, "speculative_decoding_accepted_tokens_total") == drafted.speculation.accepted_tokens
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.generate(PROMPT, max_tokens=4, seed=1)
        assert "seed: coupled mode needs the native engine" in str(error_of(refused.value))

        begun = asyncio.Event()

        async def note(_) -> None:
            begun.set()

        call = asyncio.create_task(made.generate(PROMPT, note, max_tokens=MAX_MODEL_LEN - len(PROMPT)))
        await asyncio.wait_for(begun.wait(), 60)
        call.cancel()
        await until_metric(worker, "draftwire_verify_running_sessions", 0, 60)
        four = await asyncio.gather(*(made.generate(PROMPT, max_tokens=TOKENS) for _ in range(4)))
        assert [answer.token_ids for answer in four] == [plain.token_ids] * 4

        (await engine_core(worker.pid)).kill()
        assert await asyncio.wait_for(worker.wait(), 60) == 1, "a worker without an engine core ends"


class FakeLlm:
    """Streams one token at a time, and says whether it was let go."""

    closed = False

    async def generate(self, prompt, params, request_id):
        part = SimpleNamespace(token_ids=[5], finish_reason=None)
        try:
            while True:
                yield SimpleNamespace(outputs=[part], kv_transfer_params=None, num_cached_tokens=0)
        finally:
            self.closed = True


async def test_closing_an_answer_aborts_its_request() -> None:
    """At once, not when the garbage collector comes by."""
    llm = FakeLlm()
    answer = VllmServicer(VerifyConfig(backend="vllm"), "v", MODEL, llm).answer(GenerateRequest("r", (1, 2)))
    assert await anext(answer) == Started("v", "r")
    assert [(await anext(answer)).position for _ in range(3)] == [2, 3, 4]
    await answer.aclose()
    assert llm.closed


@pytest.mark.parametrize(
    ("fields", "with_drafts", "named"),
    [
        ({"seed": 1}, False, "seed"),
        ({"sampling": SamplingParams(min_p=0.1)}, True, "sampling.min_p"),
        ({"sampling": SamplingParams(temperature=0.009)}, False, "sampling.temperature"),
    ],
)
def test_what_vllm_cannot_do_is_refused_by_name(fields, with_drafts: bool, named: str) -> None:
    """Coupled mode, min_p where there are drafts, and a temperature that vLLM would change."""
    with pytest.raises(InvalidArgument) as error:
        sampling_params(GenerateRequest("r", (1, 2), **fields), MODEL, with_drafts=with_drafts)
    assert error.value.field == named


def test_a_request_in_vllms_words() -> None:
    """An answer that goes on after a failover gets what is left of its tokens; None means as far as the model goes."""
    sampling = SamplingParams(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    request = GenerateRequest("r", (1, 2, 3), (4, 5), max_tokens=10, sampling=sampling, stop_token_ids=(9,))
    params = sampling_params(request, MODEL, with_drafts=False)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.9, 0.1)
    assert (params.max_tokens, params.stop_token_ids, params.ignore_eos) == (8, [9], False)
    assert sampling_params(GenerateRequest("r", (1, 2, 3)), MODEL, with_drafts=False).max_tokens == 997
