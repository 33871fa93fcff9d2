"""What a model can answer: each limit, its two sides, and the field that the error names."""

from dataclasses import replace

import pytest

from draftwire.errors import InvalidArgument
from draftwire.types import GenerateRequest, ModelInfo, SamplingParams
from draftwire.validate import validate_request

MODEL = ModelInfo(name="m", vocab_fingerprint="f", vocab_size=100, max_model_len=10)
GOOD = GenerateRequest(request_id="r", prompt_token_ids=(1, 2, 3))
MAX_K = 5


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt_token_ids": (99,) * 9},
        {"max_tokens": 7},
        {"committed_token_ids": (4,) * 6},
        {"max_tokens": 3, "committed_token_ids": (4, 5)},
        {"stop_token_ids": (0, 99)},
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": MAX_K},
        {"sampling": SamplingParams(temperature=100, top_k=100, top_p=1e-9, min_p=1)},
    ],
)
def test_the_limits_themselves_are_allowed(changes: dict) -> None:
    """The largest and smallest values within each range pass."""
    validate_request(replace(GOOD, **changes), MODEL, MAX_K)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_token_ids": ()}, r"prompt_token_ids: must be 1 to max_model_len - 1 = 9 tokens, got 0"),
        ({"prompt_token_ids": (1,) * 10}, r"prompt_token_ids: .* = 9 tokens, got 10"),
        ({"prompt_token_ids": (1, 100)}, r"prompt_token_ids: every id must be below vocab_size = 100, got 100"),
        ({"prompt_token_ids": (1, -1)}, r"prompt_token_ids: every id must be at least 0, got -1"),
        ({"max_tokens": 0}, r"max_tokens: must be 1 to max_model_len - prompt = 7 tokens, got 0"),
        ({"max_tokens": 8}, r"max_tokens: .* = 7 tokens, got 8"),
        (
            {"committed_token_ids": (4,) * 7},
            r"committed_token_ids: must be fewer than the most output tokens = 7, got 7",
        ),
        ({"max_tokens": 2, "committed_token_ids": (4, 5)}, r"committed_token_ids: .* = 2, got 2"),
        ({"committed_token_ids": (100,)}, r"committed_token_ids: every id must be below"),
        ({"stop_token_ids": (100,)}, r"stop_token_ids: every id must be below"),
        ({"stop_token_ids": (1,) * 65}, r"stop_token_ids: must be at most 64, got 65"),
        ({"num_speculative_tokens": 6}, r"speculation.num_speculative_tokens: .* --num-speculative-tokens = 5, got 6"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, r"sampling.temperature: must be 0 to 100, got nan"),
        ({"sampling": SamplingParams(temperature=-1)}, r"sampling.temperature: must be 0 to 100, got -1"),
        ({"sampling": SamplingParams(top_k=101)}, r"sampling.top_k: must be at most vocab_size = 100, got 101"),
        ({"sampling": SamplingParams(top_k=-1)}, r"sampling.top_k: must be at least 0"),
        ({"sampling": SamplingParams(top_p=0)}, r"sampling.top_p: must be above 0 and at most 1, got 0"),
        ({"sampling": SamplingParams(min_p=1.5)}, r"sampling.min_p: must be 0 to 1, got 1.5"),
    ],
)
def test_one_step_beyond_is_refused(changes: dict, message: str) -> None:
    """One beyond each limit is an InvalidArgument with the field and the limit."""
    with pytest.raises(InvalidArgument, match=message):
        validate_request(replace(GOOD, **changes), MODEL, MAX_K)
