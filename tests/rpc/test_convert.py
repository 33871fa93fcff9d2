"""What services say to each other survives the wire, and whatever arrives ends in a value or in our errors."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st
from support import rpc_strategies as some

from draftwire.errors import InvalidArgument, ProtocolViolation
from draftwire.rpc import convert_draft, convert_verify
from draftwire.rpc.convert import model_info_from_proto, model_info_to_proto, sampling_from_proto, sampling_to_proto
from draftwire.rpc.convert_draft import (
    drafter_message_from_proto,
    drafter_message_to_protos,
    verifier_message_from_proto,
    verifier_message_to_protos,
)
from draftwire.rpc.convert_verify import (
    event_from_proto,
    event_to_proto,
    generate_request_from_proto,
    generate_request_to_proto,
)
from draftwire.rpc.limits import MAX_MESSAGE_BYTES
from draftwire.session.messages import Close, Commit, DrafterStep, Ended, Idle, Open, Proposal, VerifierStep
from draftwire.types import (
    MAX_PROPOSAL_TOKENS,
    MAX_SUPPORT,
    DraftToken,
    EndReason,
    SamplingParams,
    Support,
    VerificationMode,
)
from draftwire.v1 import draft_service_pb2, sampling_pb2, verify_service_pb2


def over_the_wire(proto: Message) -> Message:
    """What the other end parses."""
    return type(proto).FromString(proto.SerializeToString())


@given(some.sampling)
def test_sampling_round_trip(params: SamplingParams) -> None:
    """Every float32 value within the ranges arrives as it was."""
    assert sampling_from_proto(over_the_wire(sampling_to_proto(params))) == params


def test_unset_sampling_fields_take_the_defaults() -> None:
    """Zero is a value (greedy), unset is not zero."""
    assert sampling_from_proto(sampling_pb2.SamplingParams()) == SamplingParams()
    assert sampling_from_proto(sampling_pb2.SamplingParams(temperature=0)).temperature == 0


@given(some.models)
def test_model_info_round_trip(model: Any) -> None:
    """Every field arrives."""
    assert model_info_from_proto(over_the_wire(model_info_to_proto(model))) == model


@given(some.hellos | some.verifier_steps)
def test_verifier_message_round_trip(message: Any) -> None:
    """Hello and every step arrive as they were, with nothing bad in them."""
    (proto,) = verifier_message_to_protos(message)
    assert verifier_message_from_proto(over_the_wire(proto)) == (message, ())


@given(some.drafter_messages)
def test_drafter_message_round_trip(message: Any) -> None:
    """Hello, step (supports included), load and draining arrive as they were, with nothing bad in them."""
    (proto,) = drafter_message_to_protos(message)
    assert drafter_message_from_proto(over_the_wire(proto)) == (message, ())


@given(some.generate_requests)
def test_generate_request_round_trip(request_: Any) -> None:
    """Every field arrives; None and 0 stay apart."""
    assert generate_request_from_proto(over_the_wire(generate_request_to_proto(request_))) == request_


@given(some.events)
def test_event_round_trip(event: Any) -> None:
    """Started, Committed and Finished with usage and statistics arrive as they were."""
    assert event_from_proto(over_the_wire(event_to_proto(event))) == event


def test_disabled_speculation_is_zero_tokens() -> None:
    """`disabled` on the wire is num_speculative_tokens = 0, whatever number stands beside it."""
    proto = verify_service_pb2.VerifyServiceGenerateRequest(
        prompt_token_ids=[1],
        speculation=verify_service_pb2.SpeculationParams(disabled=True, num_speculative_tokens=3),
    )
    assert generate_request_from_proto(proto).num_speculative_tokens == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_token_ids": range(65)}, "stop_token_ids"),
        ({"request_id": "é" * 65}, "request_id"),
        ({"sampling": {"temperature": float("nan")}}, "sampling.temperature"),
        ({"sampling": {"temperature": 100.5}}, "sampling.temperature"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p"),
        ({"sampling": {"min_p": -0.1}}, "sampling.min_p"),
        ({"speculation": {"num_speculative_tokens": 0}}, "speculation.num_speculative_tokens"),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, Any], field: str) -> None:
    """Each limit of a request's own is checked, and the error names the field."""
    proto = verify_service_pb2.VerifyServiceGenerateRequest(**{"prompt_token_ids": [1], **changes})
    with pytest.raises(InvalidArgument) as caught:
        generate_request_from_proto(proto)
    assert caught.value.field == field


def proposal(**changes: Any) -> draft_service_pb2.Proposal:
    """A good proposal of session 7, two tokens, the first with a support of two, with changes."""
    fields = {
        "session_id": 7,
        "token_ids": [1, 2],
        "support_sizes": [2, 0],
        "support_ids": [1, 5],
        "support_weights": [60000, 5536],
    }
    return draft_service_pb2.Proposal(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": range(MAX_PROPOSAL_TOKENS + 1)}, "token_ids"),
        ({"support_sizes": [2]}, "support_sizes"),
        ({"support_sizes": [1, 0]}, "support_sizes"),
        ({"support_sizes": [2**32 - 1, 2**32 - 1]}, "support_sizes"),
        ({"support_weights": [65536]}, "support_sizes"),
        ({"support_sizes": []}, "support_sizes"),
        (
            {"support_sizes": [65, 0], "support_ids": range(65), "support_weights": [1] * 65},
            f"support_sizes: must be at most {MAX_SUPPORT}",
        ),
    ],
)
def test_a_bad_proposal_ends_its_own_session_only(changes: dict[str, Any], field: str) -> None:
    """A malformed proposal is left out and reported; the good one beside it arrives."""
    proto = draft_service_pb2.SpeculateResponse(
        step=draft_service_pb2.DrafterStep(proposals=[proposal(**changes), proposal(session_id=8)])
    )
    step, bad = drafter_message_from_proto(proto)
    assert isinstance(step, DrafterStep)
    assert step.proposals == (Proposal(8, 0, 0, (DraftToken(1, Support((1, 5), (60000, 5536))), DraftToken(2))),)
    assert [(ended.session_id, ended.reason) for ended in bad] == [(7, EndReason.INVALID)]
    assert bad[0].detail.startswith(field)


def test_bad_opens_and_commits_end_their_own_sessions_only() -> None:
    """Every kind of bad open or commit becomes an Ended(INVALID) that names the field; the rest of the step arrives."""
    good = draft_service_pb2.Open(
        session_id=1, token_ids=[3], mode=sampling_pb2.VERIFICATION_MODE_COUPLED, window=MAX_PROPOSAL_TOKENS
    )

    def bad_open(**changes: Any) -> draft_service_pb2.Open:
        message = draft_service_pb2.Open()
        message.CopyFrom(good)
        message.MergeFrom(draft_service_pb2.Open(session_id=2, **changes))
        return message

    no_tokens = bad_open()
    no_tokens.ClearField("token_ids")
    opens = [
        good,
        no_tokens,
        bad_open(mode=9),
        bad_open(window=MAX_PROPOSAL_TOKENS + 1),
        bad_open(sampling=sampling_pb2.SamplingParams(top_p=2)),
    ]
    commits = [draft_service_pb2.Commit(session_id=3), draft_service_pb2.Commit(session_id=3, number=1, window=65)]
    proto = draft_service_pb2.SpeculateRequest(step=draft_service_pb2.VerifierStep(opens=opens, commits=commits))
    step, bad = verifier_message_from_proto(proto)
    assert isinstance(step, VerifierStep)
    assert [(message.session_id, message.mode) for message in step.opens] == [(1, VerificationMode.COUPLED)]
    assert step.commits == ()
    assert [(ended.session_id, ended.detail.split(":")[0]) for ended in bad] == [
        (2, "token_ids"),
        (2, "mode"),
        (2, "window"),
        (2, "sampling.top_p"),
        (3, "number"),
        (3, "window"),
    ]


def test_a_step_beyond_the_limit_is_split_in_order() -> None:
    """The parts are each within the limit and together say the same, closes before opens before commits."""
    long = tuple(range(2**31, 2**31 + 200_000))  # 1 MB each
    step = VerifierStep(
        opens=tuple(Open(i, long, SamplingParams(), VerificationMode.REJECTION, 0, 0, 4) for i in range(7)),
        commits=tuple(Commit(i, 1, 0, long, 4) for i in range(7)),
        closes=(Close(98), Close(99)),
    )
    protos = verifier_message_to_protos(step)
    assert len(protos) > 1
    assert all(proto.ByteSize() <= MAX_MESSAGE_BYTES for proto in protos)
    parts = [verifier_message_from_proto(proto)[0] for proto in protos]
    said = [message for part in parts for message in (*part.closes, *part.opens, *part.commits)]
    assert said == [*step.closes, *step.opens, *step.commits]


def test_a_drafter_step_beyond_the_limit_is_split() -> None:
    """A step of 800 sessions with the largest proposals travels in several messages, nothing lost."""
    wide = Support(tuple(range(2**31, 2**31 + MAX_SUPPORT)), (1024,) * MAX_SUPPORT)
    tokens = (DraftToken(2**31, wide),) * 16
    step = DrafterStep(
        proposals=tuple(Proposal(i, 0, 0, tokens) for i in range(800)),
        ended=(Ended(1, EndReason.INTERNAL),),
        idle=(Idle(2, 3),),
    )
    protos = drafter_message_to_protos(step)
    assert len(protos) > 1
    assert all(proto.ByteSize() <= MAX_MESSAGE_BYTES for proto in protos)
    parts = [drafter_message_from_proto(proto)[0] for proto in protos]
    assert tuple(message for part in parts for message in part.proposals) == step.proposals
    assert (parts[-1].idle, parts[-1].ended) == (step.idle, step.ended)


def test_what_damns_the_stream_is_raised() -> None:
    """No message at all, a nameless Hello, a Load of NaN seconds: the stream cannot go on."""
    with pytest.raises(ProtocolViolation):
        verifier_message_from_proto(draft_service_pb2.SpeculateRequest())
    with pytest.raises(InvalidArgument, match=r"hello\.instance_id: must be 1 to 128 bytes"):
        verifier_message_from_proto(draft_service_pb2.SpeculateRequest(hello=draft_service_pb2.Hello()))
    load = draft_service_pb2.Load(step_seconds=float("nan"))
    with pytest.raises(ProtocolViolation, match="step_seconds"):
        drafter_message_from_proto(draft_service_pb2.SpeculateResponse(load=load))


FROM_PROTO: list[tuple[Callable[[Any], Any], type[Message]]] = [
    (verifier_message_from_proto, draft_service_pb2.SpeculateRequest),
    (drafter_message_from_proto, draft_service_pb2.SpeculateResponse),
    (convert_draft.proposal_from_proto, draft_service_pb2.Proposal),
    (generate_request_from_proto, verify_service_pb2.VerifyServiceGenerateRequest),
    (event_from_proto, verify_service_pb2.VerifyServiceGenerateResponse),
    (convert_verify.speculation_params_from_proto, verify_service_pb2.SpeculationParams),
    (model_info_from_proto, sampling_pb2.ModelInfo),
    (sampling_from_proto, sampling_pb2.SamplingParams),
]
_BY_NAME = [pytest.param(*pair, id=pair[1].DESCRIPTOR.name) for pair in FROM_PROTO]


@pytest.mark.parametrize(("convert", "kind"), _BY_NAME)
@given(data=st.data())
def test_any_message_ends_in_a_value_or_in_our_errors(convert: Any, kind: Any, data: st.DataObject) -> None:
    """Whatever a field holds, no other exception gets out, and what is bad is said in at most 256 bytes."""
    proto = data.draw(some.any_proto(kind))
    try:
        result = convert(proto)
    except (InvalidArgument, ProtocolViolation):
        return
    if isinstance(result, tuple):
        assert all(len(ended.detail.encode()) <= 256 for ended in result[1])


@pytest.mark.parametrize(("convert", "kind"), _BY_NAME)
@given(data=st.data())
def test_mutated_bytes_end_in_a_value_or_in_our_errors(convert: Any, kind: Any, data: st.DataObject) -> None:
    """A few flipped, inserted or cut bytes either fail to parse or end as any other message does."""
    wire = bytearray(data.draw(some.any_proto(kind)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(wire)))
        wire[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        convert(kind.FromString(bytes(wire)))
    except (DecodeError, InvalidArgument, ProtocolViolation):
        pass
