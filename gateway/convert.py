"""The messages of gateway_service.proto to plain values of gateway.requests and back."""

from collections.abc import Sequence

from draftwire.errors import InvalidArgument
from draftwire.rpc.convert import check_length, sampling_from_proto
from draftwire.rpc.convert_verify import (
    finish_reason_to_proto,
    speculation_params_from_proto,
    speculation_stats_to_proto,
    usage_to_proto,
)
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.validate import MAX_REQUEST_ID_BYTES
from gateway.requests import AnswerRequest, ChatMessage, ChatPrompt, Delta, Done, IdsPrompt, Prompt, TextPrompt

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_ROLE_BYTES = 64
MAX_CHAT_MESSAGES = 4096


def request_from_proto(proto: pb.GatewayServiceGenerateRequest) -> AnswerRequest:
    """Raises InvalidArgument(field). What depends on the model is checked later."""
    if proto.HasField("max_tokens") and proto.max_tokens < 1:
        raise InvalidArgument("max_tokens", "must be at least 1, got 0")
    return AnswerRequest(
        prompt=_prompt_from_proto(proto),
        model=proto.model,
        max_tokens=proto.max_tokens if proto.HasField("max_tokens") else None,
        sampling=sampling_from_proto(proto.sampling),
        seed=proto.seed if proto.HasField("seed") else None,
        stop=_stops(tuple(proto.stop)),
        stop_token_ids=tuple(proto.stop_token_ids),
        ignore_eos=proto.ignore_eos,
        num_speculative_tokens=speculation_params_from_proto(proto.speculation),
        request_id=check_length("request_id", proto.request_id, MAX_REQUEST_ID_BYTES),
        include_special_tokens=proto.include_special_tokens,
    )


def _prompt_from_proto(proto: pb.GatewayServiceGenerateRequest) -> Prompt:
    match proto.WhichOneof("prompt"):
        case "text":
            return TextPrompt(proto.text)
        case "chat":
            if not 1 <= len(proto.chat.messages) <= MAX_CHAT_MESSAGES:
                count = len(proto.chat.messages)
                raise InvalidArgument("chat.messages", f"must hold 1 to {MAX_CHAT_MESSAGES} messages, got {count}")
            messages = [
                ChatMessage(check_length(f"chat.messages[{i}].role", m.role, MAX_ROLE_BYTES, least=1), m.content)
                for i, m in enumerate(proto.chat.messages)
            ]
            return ChatPrompt(tuple(messages))
        case "token_ids":
            return IdsPrompt(tuple(proto.token_ids.ids))
    raise InvalidArgument("prompt", "must be set: text, chat or token_ids")


def _stops(stops: tuple[str, ...]) -> tuple[str, ...]:
    if len(stops) > MAX_STOPS:
        raise InvalidArgument("stop", f"must be at most {MAX_STOPS} texts, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidArgument("stop", f"each must be 1 to {MAX_STOP_CHARACTERS} characters, got {len(stop)}")
    return stops


def event_to_proto(event: Delta | Done) -> pb.GatewayServiceGenerateStreamResponse:
    """One event of an answer."""
    match event:
        case Delta(text, token_ids):
            return pb.GatewayServiceGenerateStreamResponse(delta=pb.Delta(text=text, token_ids=token_ids))
        case Done():
            return pb.GatewayServiceGenerateStreamResponse(done=_done_to_proto(event))


def answer_to_proto(events: Sequence[Delta | Done]) -> pb.GatewayServiceGenerateResponse:
    """All events of one answer in one message."""
    deltas = [event for event in events if isinstance(event, Delta)]
    (done,) = (event for event in events if isinstance(event, Done))
    return pb.GatewayServiceGenerateResponse(
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        done=_done_to_proto(done),
    )


def _done_to_proto(done: Done) -> pb.Done:
    return pb.Done(
        reason=finish_reason_to_proto(done.finished.reason),
        stop_string=done.stop or "",
        usage=usage_to_proto(done.finished.usage),
        speculation=speculation_stats_to_proto(done.finished.speculation),
        request_id=done.request_id,
        model=done.model,
    )
