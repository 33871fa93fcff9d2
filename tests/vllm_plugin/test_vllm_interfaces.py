"""Everything of vLLM's insides that the plug-in stands on, so that a version in which it moved fails here, loudly."""

import inspect
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
import vllm
from vllm import SamplingParams
from vllm.platforms import current_platform
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.sample import rejection_sampler
from vllm.v1.spec_decode.custom_class_proposer import create_custom_proposer
from vllm.v1.structured_output import StructuredOutputManager

from draftwire.errors import InvalidArgument
from draftwire.vllm_plugin import NullProposer, workarounds
from draftwire.vllm_plugin.scheduler import PROPOSER, check_config, drafts_help


@pytest.fixture(autouse=True)
def kernels(monkeypatch) -> None:
    """vLLM's kernels as a worker sets them up first; what the workarounds replace is put back after each test."""
    current_platform.register_triton_kernel_overrides()
    for name in ("expand_batch_to_tokens", "apply_top_k_top_p"):
        monkeypatch.setattr(rejection_sampler, name, getattr(rejection_sampler, name))


def test_the_version_is_one_that_was_tested() -> None:
    """Another version may work; then it belongs here, into pyproject.toml and into docs/vllm.md."""
    assert vllm.__version__.startswith("0.32.")


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (Scheduler.schedule, ["self", "throttle_prefills"]),
        (Scheduler.update_from_output, ["self", "scheduler_output", "model_runner_output"]),
        (Scheduler.finish_requests, ["self", "request_ids", "finished_status"]),
        (Scheduler.get_request_counts, ["self"]),
        (Scheduler.shutdown, ["self"]),
        (StructuredOutputManager.validate_tokens, ["self", "request", "spec_tokens"]),
    ],
)
def test_methods_that_are_replaced_or_called(method, parameters: list[str]) -> None:
    """Their parameters, by name and order."""
    assert list(inspect.signature(method).parameters) == parameters


def test_the_scheduler_reads_proposals_where_they_are_put() -> None:
    """schedule() takes them off the request; the rest of what is read stands in the constructor."""
    assert "request.spec_token_ids" in inspect.getsource(Scheduler.schedule)
    made = inspect.getsource(Scheduler.__init__)
    for name in ("running", "num_spec_tokens", "max_model_len", "max_num_running_reqs", "max_num_active_reqs"):
        assert f"self.{name}" in made
    assert isinstance(Scheduler.pause_state, property)


def test_fields_of_a_step() -> None:
    """What went into a step and what came out."""
    into = {field.name for field in fields(SchedulerOutput)}
    assert {"num_scheduled_tokens", "total_num_scheduled_tokens", "scheduled_spec_decode_tokens"} <= into
    assert {"req_id_to_index", "sampled_token_ids"} <= {field.name for field in fields(ModelRunnerOutput)}


def request(**changes) -> Request:
    """A request with three tokens."""
    params = SamplingParams(max_tokens=5, extra_args={"draftwire_num_speculative_tokens": 2})
    made = Request("r", [1, 2, 3], params, None)
    for name, value in changes.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def test_fields_of_a_request() -> None:
    """Lengths, tokens and the end of a request, as `Speculation` reads them."""
    made = request()
    made.append_output_token_ids([4, 5])
    assert (made.num_tokens, made.num_prompt_tokens, made.max_tokens, made.num_computed_tokens) == (5, 3, 5, 0)
    assert made.all_token_ids[3:] == [4, 5]
    assert made.spec_token_ids == []
    assert made.sampling_params.extra_args == {"draftwire_num_speculative_tokens": 2}
    assert not made.is_finished()
    made.status = RequestStatus.FINISHED_ABORTED
    assert made.is_finished()


@pytest.mark.parametrize(
    "changes",
    [
        {"pooling_params": object()},
        {"prompt_token_ids": None},
        {"prompt_embeds": torch.zeros(3, 4)},
        {"mm_features": [object()]},
        {"resumable": True},
    ],
)
def test_requests_that_get_no_drafts(changes) -> None:
    """A draft worker must see the whole prompt as token ids, and tokens must stay."""
    assert drafts_help(request())
    assert not drafts_help(request(**changes))


def test_vllm_finds_the_empty_proposer() -> None:
    """By its name, as a worker does, and it proposes nothing for each of a step's requests."""
    speculative = SimpleNamespace(model=PROPOSER, num_speculative_tokens=4)
    found = create_custom_proposer(SimpleNamespace(speculative_config=speculative))
    assert isinstance(found, NullProposer)
    assert found.propose([[5], [6, 7]], None, None, slot_mappings=None) == [[], []]
    found.load_model(None)


GOOD = SimpleNamespace(method="custom_class", model=PROPOSER)


@pytest.mark.parametrize(
    ("speculative", "asynchronous", "v2", "stages", "named"),
    [
        (None, False, False, 1, "speculative_config"),
        (SimpleNamespace(method="ngram", model="ngram"), False, False, 1, "speculative_config"),
        (SimpleNamespace(method="custom_class", model="other.Proposer"), False, False, 1, "speculative_config"),
        (GOOD, True, False, 1, "async_scheduling"),
        (GOOD, False, True, 1, "use_v2_model_runner"),
        (GOOD, False, False, 2, "pipeline_parallel_size"),
    ],
)
def test_settings_that_cannot_work(speculative, asynchronous: bool, v2: bool, stages: int, named: str) -> None:
    """The error names vLLM's setting."""
    config = SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        use_v2_model_runner=v2,
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
    )
    with pytest.raises(InvalidArgument) as error:
        check_config(config)
    assert error.value.field == named
    check_config(
        SimpleNamespace(
            speculative_config=GOOD,
            scheduler_config=SimpleNamespace(async_scheduling=False),
            use_v2_model_runner=False,
            parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        )
    )


@pytest.mark.skipif(not current_platform.is_cpu(), reason="the defects are of vLLM on CPUs")
def test_the_workarounds_are_still_needed() -> None:
    """If one of these is true vLLM is repaired: delete that workaround and its line here."""
    assert not workarounds.expands_right()
    assert not workarounds.takes_no_rows()


@pytest.mark.skipif(not current_platform.is_cpu(), reason="the defects are of vLLM on CPUs")
def test_the_workarounds_work() -> None:
    """Applied, vLLM's functions pass the checks."""
    workarounds.apply()
    assert workarounds.expands_right()
    assert workarounds.takes_no_rows()
    assert rejection_sampler.apply_top_k_top_p(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([1]), None).argmax() == 1


def test_expand_batch_to_tokens() -> None:
    """x = [a, b, c] with 2, 0 and 3 tokens, and what is to be replaced is."""
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    spread = workarounds.expand_batch_to_tokens(torch.tensor([0.5, 7.0, 0.0]), ends, 5, replace_from=0, replace_to=1)
    assert spread.tolist() == [0.5, 0.5, 1, 1, 1]
    assert workarounds.expand_batch_to_tokens(torch.tensor([3, 8, 0]), ends, 5).tolist() == [3, 3, 0, 0, 0]
