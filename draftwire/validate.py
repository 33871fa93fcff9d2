"""Checks of a caller's request that every front door shares; each failure names the field and its limit."""

from collections.abc import Sequence

from draftwire.errors import InvalidArgument
from draftwire.types import GenerateRequest, ModelInfo, SamplingParams

MAX_TEMPERATURE = 100.0
MAX_STOP_TOKEN_IDS = 64
MAX_REQUEST_ID_BYTES = 128


def validate_sampling(params: SamplingParams, prefix: str = "sampling.") -> None:
    """Raise InvalidArgument(prefix + name) unless every value is in the range that SamplingParams states."""
    if not 0 <= params.temperature <= MAX_TEMPERATURE:
        raise InvalidArgument(f"{prefix}temperature", f"must be 0 to {MAX_TEMPERATURE:g}, got {params.temperature:g}")
    if params.top_k < 0:
        raise InvalidArgument(f"{prefix}top_k", f"must be at least 0 (0 = all), got {params.top_k}")
    if not 0 < params.top_p <= 1:
        raise InvalidArgument(f"{prefix}top_p", f"must be above 0 and at most 1, got {params.top_p:g}")
    if not 0 <= params.min_p <= 1:
        raise InvalidArgument(f"{prefix}min_p", f"must be 0 to 1, got {params.min_p:g}")


def validate_request(request: GenerateRequest, model: ModelInfo, max_num_speculative_tokens: int) -> None:
    """Raise InvalidArgument unless `model` can answer the request with at least one more token.

    Args:
        max_num_speculative_tokens: the worker's --num-speculative-tokens.
    """
    _validate_lengths(request, model)
    _validate_ids("prompt_token_ids", request.prompt_token_ids, model)
    _validate_ids("committed_token_ids", request.committed_token_ids, model)
    if len(request.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidArgument(
            "stop_token_ids", f"must be at most {MAX_STOP_TOKEN_IDS}, got {len(request.stop_token_ids)}"
        )
    _validate_ids("stop_token_ids", request.stop_token_ids, model)
    validate_sampling(request.sampling)
    if request.sampling.top_k > model.vocab_size:
        raise InvalidArgument(
            "sampling.top_k", f"must be at most vocab_size = {model.vocab_size}, got {request.sampling.top_k}"
        )
    wanted = request.num_speculative_tokens
    if wanted is not None and not 0 <= wanted <= max_num_speculative_tokens:
        raise InvalidArgument(
            "speculation.num_speculative_tokens",
            f"must be at most the worker's --num-speculative-tokens = {max_num_speculative_tokens}, got {wanted}",
        )


def _validate_lengths(request: GenerateRequest, model: ModelInfo) -> None:
    prompt, committed = len(request.prompt_token_ids), len(request.committed_token_ids)
    if not 1 <= prompt < model.max_model_len:
        raise InvalidArgument(
            "prompt_token_ids", f"must be 1 to max_model_len - 1 = {model.max_model_len - 1} tokens, got {prompt}"
        )
    room = model.max_model_len - prompt
    if request.max_tokens is not None and not 1 <= request.max_tokens <= room:
        raise InvalidArgument(
            "max_tokens", f"must be 1 to max_model_len - prompt = {room} tokens, got {request.max_tokens}"
        )
    most = room if request.max_tokens is None else request.max_tokens
    if committed >= most:
        raise InvalidArgument(
            "committed_token_ids", f"must be fewer than the most output tokens = {most}, got {committed}"
        )


def _validate_ids(field: str, token_ids: Sequence[int], model: ModelInfo) -> None:
    if token_ids and max(token_ids) >= model.vocab_size:
        raise InvalidArgument(field, f"every id must be below vocab_size = {model.vocab_size}, got {max(token_ids)}")
    if token_ids and min(token_ids) < 0:
        raise InvalidArgument(field, f"every id must be at least 0, got {min(token_ids)}")
