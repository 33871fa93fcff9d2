"""The messages of VerifyService.Generate to plain values of draftwire.types and back."""

from draftwire.errors import InvalidArgument, ProtocolViolation
from draftwire.rpc.convert import check_length, sampling_from_proto, sampling_to_proto
from draftwire.types import Committed, Finished, FinishReason, GenerateRequest, SpeculationStats, Started, Usage
from draftwire.v1 import verify_service_pb2 as pb
from draftwire.validate import MAX_REQUEST_ID_BYTES, MAX_STOP_TOKEN_IDS

_REASON_TO_PROTO = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}
_STATS_FIELDS = tuple(field.name for field in pb.SpeculationStats.DESCRIPTOR.fields)


def generate_request_to_proto(request: GenerateRequest) -> pb.VerifyServiceGenerateRequest:
    """num_speculative_tokens 0 is `disabled` on the wire, None is unset."""
    return pb.VerifyServiceGenerateRequest(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        committed_token_ids=request.committed_token_ids,
        max_tokens=request.max_tokens,
        sampling=sampling_to_proto(request.sampling),
        seed=request.seed,
        choice=request.choice,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        speculation=speculation_params_to_proto(request.num_speculative_tokens),
    )


def generate_request_from_proto(proto: pb.VerifyServiceGenerateRequest) -> GenerateRequest:
    """Raises InvalidArgument(field). What depends on the model is for `draftwire.validate.validate_request`."""
    if not proto.prompt_token_ids:
        raise InvalidArgument("prompt_token_ids", "must hold at least one id")
    if proto.HasField("max_tokens") and proto.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1, got 0")
    if len(proto.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidArgument(
            "stop_token_ids", f"must be at most {MAX_STOP_TOKEN_IDS}, got {len(proto.stop_token_ids)}"
        )
    return GenerateRequest(
        request_id=check_length("request_id", proto.request_id, MAX_REQUEST_ID_BYTES),
        prompt_token_ids=tuple(proto.prompt_token_ids),
        committed_token_ids=tuple(proto.committed_token_ids),
        max_tokens=proto.max_tokens if proto.HasField("max_tokens") else None,
        sampling=sampling_from_proto(proto.sampling),
        seed=proto.seed if proto.HasField("seed") else None,
        choice=proto.choice,
        stop_token_ids=tuple(proto.stop_token_ids),
        ignore_eos=proto.ignore_eos,
        num_speculative_tokens=speculation_params_from_proto(proto.speculation),
    )


def speculation_params_to_proto(num_speculative_tokens: int | None) -> pb.SpeculationParams:
    """None = the worker's own number, 0 = plain decoding."""
    if num_speculative_tokens == 0:
        return pb.SpeculationParams(disabled=True)
    return pb.SpeculationParams(num_speculative_tokens=num_speculative_tokens)


def speculation_params_from_proto(proto: pb.SpeculationParams) -> int | None:
    """None = the worker's own number, 0 = plain decoding. `disabled` wins over a number beside it."""
    if proto.disabled:
        return 0
    if not proto.HasField("num_speculative_tokens"):
        return None
    if proto.num_speculative_tokens < 1:
        raise InvalidArgument(
            "speculation.num_speculative_tokens",
            "must be at least 1, got 0 (for plain decoding set speculation.disabled)",
        )
    return proto.num_speculative_tokens


def event_to_proto(event: Started | Committed | Finished) -> pb.VerifyServiceGenerateResponse:
    """One event of an answer."""
    match event:
        case Started(instance_id, request_id):
            started = pb.Started(instance_id=instance_id, request_id=request_id)
            return pb.VerifyServiceGenerateResponse(started=started)
        case Committed(position, token_ids, speculation, cached_tokens):
            committed = pb.Committed(
                position=position,
                token_ids=token_ids,
                speculation=speculation_stats_to_proto(speculation),
                cached_tokens=cached_tokens,
            )
            return pb.VerifyServiceGenerateResponse(committed=committed)
        case Finished(reason, usage, speculation):
            finished = pb.Finished(
                reason=_REASON_TO_PROTO[reason],
                usage=usage_to_proto(usage),
                speculation=speculation_stats_to_proto(speculation),
            )
            return pb.VerifyServiceGenerateResponse(finished=finished)


def event_from_proto(proto: pb.VerifyServiceGenerateResponse) -> Started | Committed | Finished:
    """Raises ProtocolViolation for an event that is empty or says nothing."""
    match proto.WhichOneof("event"):
        case "started":
            return Started(proto.started.instance_id, proto.started.request_id)
        case "committed":
            committed = proto.committed
            if not committed.token_ids:
                raise ProtocolViolation("committed.token_ids: must hold at least one id")
            return Committed(
                position=committed.position,
                token_ids=tuple(committed.token_ids),
                speculation=speculation_stats_from_proto(committed.speculation),
                cached_tokens=committed.cached_tokens,
            )
        case "finished":
            finished = proto.finished
            return Finished(
                reason=finish_reason_from_proto(finished.reason),
                usage=usage_from_proto(finished.usage),
                speculation=speculation_stats_from_proto(finished.speculation),
            )
    raise ProtocolViolation("a VerifyServiceGenerateResponse holds no event")


def finish_reason_to_proto(reason: FinishReason) -> pb.FinishReason:
    """Value by value."""
    return _REASON_TO_PROTO[reason]


def finish_reason_from_proto(reason: pb.FinishReason) -> FinishReason:
    """Raises ProtocolViolation for a reason that is unset or unknown."""
    known = _REASON_FROM_PROTO.get(reason)
    if known is None:
        raise ProtocolViolation(f"finished.reason: unknown value {reason}")
    return known


def usage_to_proto(usage: Usage) -> pb.Usage:
    """Field by field."""
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def usage_from_proto(proto: pb.Usage) -> Usage:
    """Field by field."""
    return Usage(proto.prompt_tokens, proto.completion_tokens, proto.cached_tokens)


def speculation_stats_to_proto(stats: SpeculationStats) -> pb.SpeculationStats:
    """Field by field: the names are the same."""
    return pb.SpeculationStats(**{name: getattr(stats, name) for name in _STATS_FIELDS})


def speculation_stats_from_proto(proto: pb.SpeculationStats) -> SpeculationStats:
    """Field by field: the names are the same."""
    return SpeculationStats(**{name: getattr(proto, name) for name in _STATS_FIELDS})
