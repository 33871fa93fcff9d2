"""A verify worker's flags as vLLM's engine arguments."""

import pytest

from draftwire.errors import InvalidArgument
from draftwire.vllm_plugin.engine_args import engine_arguments
from verify_service.config import VerifyConfig


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """What is set for vLLM is gone after the test."""
    for name in ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


def arguments(**flags):
    """For a worker with these flags, whose metrics are at port 9."""
    return engine_arguments(VerifyConfig(backend="vllm", target="folder", **flags), 9)


def test_drafts_bring_the_plug_in():
    """The plug-in is told of the draft workers, the schedule and where the worker's metrics are expected."""
    made = arguments(drafts="a:1,b:2", num_speculative_tokens=3, schedule="eager", tensor_parallel_size=2)
    assert made["scheduler_cls"] == "draftwire.vllm_plugin.RemoteDraftScheduler"
    assert made["speculative_config"]["num_speculative_tokens"] == 3
    assert made["additional_config"] == {
        "draftwire": {"drafts": "a:1,b:2", "schedule": "eager", "metrics_host": "127.0.0.1", "metrics_port": 9}
    }
    assert made["tensor_parallel_size"] == 2


@pytest.mark.parametrize("flags", [{}, {"drafts": "a:1", "num_speculative_tokens": 0}])
def test_no_drafts_no_plug_in(flags):
    """Plain decoding is plain vLLM."""
    made = arguments(**flags)
    assert made["scheduler_cls"] == "draftwire.vllm_plugin.plain.plain_scheduler"
    assert not {"speculative_config", "additional_config"} & made.keys()


def test_vllm_args_have_the_last_word():
    """On a CPU the default is float32 without compilation; --vllm-args may say otherwise."""
    assert (arguments()["dtype"], arguments()["enforce_eager"]) == ("float32", True)
    made = arguments(vllm_args={"enforce_eager": False, "pipeline_parallel_size": 2})
    assert (made["enforce_eager"], made["pipeline_parallel_size"]) == (False, 2)
    assert "dtype" not in arguments(device="cuda")


@pytest.mark.parametrize(
    ("flags", "named"), [({"batch_invariant": True}, "--batch-invariant"), ({"target": "fake:"}, "--target")]
)
def test_what_vllm_cannot_do_is_refused_by_name(flags, named):
    """Before anything is loaded."""
    with pytest.raises(InvalidArgument) as error:
        engine_arguments(VerifyConfig(**({"backend": "vllm", "target": "folder"} | flags)), 9)
    assert error.value.field == named
