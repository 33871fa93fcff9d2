"""Protos to plain values and back: what every service shares (the calls' own messages: convert_draft, convert_verify).

Names are `X_to_proto` and `X_from_proto`. From-proto functions check ranges: whatever bytes arrive, the result is a
value within its type's limits or one of our errors (InvalidArgument for a request, ProtocolViolation for a stream).
"""

from draftwire.errors import InvalidArgument
from draftwire.types import ModelInfo, SamplingParams
from draftwire.v1 import sampling_pb2
from draftwire.validate import validate_sampling

MAX_NAME_BYTES = 256
MAX_EOS_TOKEN_IDS = 64

_DEFAULT_SAMPLING = SamplingParams()


def check_length(field: str, text: str, most: int, *, least: int = 0) -> str:
    """The text, if it has `least` to `most` bytes in UTF-8; else InvalidArgument(field)."""
    size = len(text.encode())
    if not least <= size <= most:
        raise InvalidArgument(field, f"must be {least} to {most} bytes, got {size}")
    return text


def clip(text: str, most: int) -> str:
    """The longest beginning of the text that fits into `most` bytes of UTF-8."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")


def sampling_to_proto(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Every field is set, so that both ends compute with the same float32 values."""
    return sampling_pb2.SamplingParams(
        temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p
    )


def sampling_from_proto(proto: sampling_pb2.SamplingParams, prefix: str = "sampling.") -> SamplingParams:
    """Unset fields take their defaults. Raises InvalidArgument(prefix + name)."""
    default = _DEFAULT_SAMPLING
    params = SamplingParams(
        temperature=proto.temperature if proto.HasField("temperature") else default.temperature,
        top_k=proto.top_k if proto.HasField("top_k") else default.top_k,
        top_p=proto.top_p if proto.HasField("top_p") else default.top_p,
        min_p=proto.min_p if proto.HasField("min_p") else default.min_p,
    )
    validate_sampling(params, prefix)
    return params


def model_info_to_proto(model: ModelInfo) -> sampling_pb2.ModelInfo:
    """Field by field."""
    return sampling_pb2.ModelInfo(
        name=model.name,
        vocab_fingerprint=model.vocab_fingerprint,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        engine=model.engine,
        dtype=model.dtype,
    )


def model_info_from_proto(proto: sampling_pb2.ModelInfo) -> ModelInfo:
    """Raises InvalidArgument("model.<field>")."""
    if proto.vocab_size < 1:
        raise InvalidArgument("model.vocab_size", "must be at least 1, got 0")
    if proto.max_model_len < 2:
        raise InvalidArgument("model.max_model_len", f"must be at least 2, got {proto.max_model_len}")
    if len(proto.eos_token_ids) > MAX_EOS_TOKEN_IDS:
        raise InvalidArgument("model.eos_token_ids", f"must be at most {MAX_EOS_TOKEN_IDS}")
    return ModelInfo(
        name=check_length("model.name", proto.name, MAX_NAME_BYTES),
        vocab_fingerprint=check_length("model.vocab_fingerprint", proto.vocab_fingerprint, MAX_NAME_BYTES),
        vocab_size=proto.vocab_size,
        max_model_len=proto.max_model_len,
        eos_token_ids=tuple(proto.eos_token_ids),
        engine=check_length("model.engine", proto.engine, MAX_NAME_BYTES),
        dtype=check_length("model.dtype", proto.dtype, MAX_NAME_BYTES),
    )
