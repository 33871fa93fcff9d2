"""The messages of DraftService.Speculate (draftwire.session.messages) to protos and back.

The stream carries every session of a pair of workers, so one bad entry must hurt one session only: from-proto functions
leave it out of the step and return it as an `Ended(INVALID)`. A draft worker sends that to its peer; a verify worker
closes the session and goes on without it. What damns the whole stream (no message at all, a bad Hello) is raised.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

from draftwire.errors import DraftwireError, InvalidArgument, ProtocolViolation
from draftwire.rpc.convert import (
    check_length,
    clip,
    model_info_from_proto,
    model_info_to_proto,
    sampling_from_proto,
    sampling_to_proto,
)
from draftwire.rpc.limits import MAX_MESSAGE_BYTES
from draftwire.session.messages import (
    Close,
    Commit,
    DrafterStep,
    Draining,
    Ended,
    Hello,
    Idle,
    Load,
    Open,
    Opened,
    Proposal,
    VerifierStep,
)
from draftwire.types import (
    MAX_PROPOSAL_TOKENS,
    MAX_SUPPORT,
    DraftToken,
    EndReason,
    Support,
    VerificationMode,
)
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.v1 import sampling_pb2

MAX_INSTANCE_ID_BYTES = 128
MAX_DETAIL_BYTES = 256

_MODE_TO_PROTO = {
    VerificationMode.REJECTION: sampling_pb2.VERIFICATION_MODE_REJECTION,
    VerificationMode.COUPLED: sampling_pb2.VERIFICATION_MODE_COUPLED,
}
_MODE_FROM_PROTO = {number: mode for mode, number in _MODE_TO_PROTO.items()}
_REASON_TO_PROTO = {
    EndReason.INVALID: pb.END_REASON_INVALID,
    EndReason.OVERLOADED: pb.END_REASON_OVERLOADED,
    EndReason.MAX_MODEL_LEN: pb.END_REASON_MAX_MODEL_LEN,
    EndReason.INTERNAL: pb.END_REASON_INTERNAL,
}
_REASON_FROM_PROTO = {number: reason for reason, number in _REASON_TO_PROTO.items()}


# ---------------------------------------------------------------------------------------------- whole messages


def verifier_message_to_protos(message: Hello | VerifierStep) -> list[pb.SpeculateRequest]:
    """Verify -> draft, in order of sending: one message, or several where one would be beyond MAX_MESSAGE_BYTES."""
    if isinstance(message, Hello):
        return [pb.SpeculateRequest(hello=_hello_to_proto(message))]
    proto = pb.SpeculateRequest(
        step=pb.VerifierStep(
            opens=map(_open_to_proto, message.opens),
            commits=map(_commit_to_proto, message.commits),
            closes=[pb.Close(session_id=close.session_id) for close in message.closes],
        )
    )
    if proto.ByteSize() <= MAX_MESSAGE_BYTES:
        return [proto]
    halves = _halves(message.closes, message.opens, message.commits)
    return [
        part
        for closes, opens, commits in halves
        for part in verifier_message_to_protos(VerifierStep(opens=opens, commits=commits, closes=closes))
    ]


def verifier_message_from_proto(proto: pb.SpeculateRequest) -> tuple[Hello | VerifierStep, tuple[Ended, ...]]:
    """The message, and its bad entries as Ended(INVALID).

    Raises ProtocolViolation for an empty message, InvalidArgument("hello.<field>") for a bad Hello.
    """
    match proto.WhichOneof("message"):
        case "hello":
            return _hello_from_proto(proto.hello), ()
        case "step":
            bad: list[Ended] = []
            step = VerifierStep(
                opens=_each(_open_from_proto, proto.step.opens, bad),
                commits=_each(_commit_from_proto, proto.step.commits, bad),
                closes=tuple([Close(close.session_id) for close in proto.step.closes]),
            )
            return step, tuple(bad)
    raise ProtocolViolation("a SpeculateRequest holds neither hello nor step")


def drafter_message_to_protos(message: Hello | DrafterStep | Load | Draining) -> list[pb.SpeculateResponse]:
    """Draft -> verify, in order of sending: one message, or several where one would be beyond MAX_MESSAGE_BYTES."""
    match message:
        case Hello():
            return [pb.SpeculateResponse(hello=_hello_to_proto(message))]
        case Load(sessions, max_sessions, step_seconds):
            load = pb.Load(sessions=sessions, max_sessions=max_sessions, step_seconds=step_seconds)
            return [pb.SpeculateResponse(load=load)]
        case Draining():
            return [pb.SpeculateResponse(draining=pb.Draining())]
    proto = pb.SpeculateResponse(
        step=pb.DrafterStep(
            opened=[pb.Opened(session_id=opened.session_id) for opened in message.opened],
            proposals=map(proposal_to_proto, message.proposals),
            ended=map(_ended_to_proto, message.ended),
            idle=[pb.Idle(session_id=idle.session_id, number=idle.number) for idle in message.idle],
        )
    )
    if proto.ByteSize() <= MAX_MESSAGE_BYTES:
        return [proto]
    halves = _halves(message.opened, message.proposals, message.idle, message.ended)
    return [
        part
        for opened, proposals, idle, ended in halves
        for part in drafter_message_to_protos(DrafterStep(opened, proposals, ended, idle))
    ]


def drafter_message_from_proto(
    proto: pb.SpeculateResponse,
) -> tuple[Hello | DrafterStep | Load | Draining, tuple[Ended, ...]]:
    """The message, and its bad entries as Ended(INVALID).

    Raises ProtocolViolation for an empty message or a bad Load, InvalidArgument("hello.<field>") for a bad Hello.
    """
    match proto.WhichOneof("message"):
        case "hello":
            return _hello_from_proto(proto.hello), ()
        case "step":
            bad: list[Ended] = []
            step = DrafterStep(
                opened=tuple([Opened(opened.session_id) for opened in proto.step.opened]),
                proposals=_each(proposal_from_proto, proto.step.proposals, bad),
                ended=_each(_ended_from_proto, proto.step.ended, bad),
                idle=tuple([Idle(idle.session_id, idle.number) for idle in proto.step.idle]),
            )
            return step, tuple(bad)
        case "load":
            return _load_from_proto(proto.load), ()
        case "draining":
            return Draining(), ()
    raise ProtocolViolation("a SpeculateResponse holds no message")


# ------------------------------------------------------------------------------------------------- proposals


def proposal_to_proto(proposal: Proposal) -> pb.Proposal:
    """A point mass takes no entry of the support arrays."""
    supports = [token.q for token in proposal.tokens]
    proto = pb.Proposal(
        session_id=proposal.session_id,
        path=proposal.path,
        position=proposal.position,
        token_ids=[token.token for token in proposal.tokens],
    )
    if any(supports):
        proto.support_sizes.extend([len(q.ids) if q else 0 for q in supports])
        proto.support_ids.extend(list(chain.from_iterable([q.ids for q in supports if q])))
        proto.support_weights.extend(list(chain.from_iterable([q.weights for q in supports if q])))
    return proto


def proposal_from_proto(proto: pb.Proposal) -> Proposal:
    """Raises ProtocolViolation unless the arrays fit together and are within their limits.

    Whether each q is a distribution over the vocabulary is for `draftwire.session` to judge.
    """
    token_ids, sizes = proto.token_ids, proto.support_sizes
    if not 1 <= len(token_ids) <= MAX_PROPOSAL_TOKENS:
        raise ProtocolViolation(f"token_ids: must be 1 to {MAX_PROPOSAL_TOKENS}, got {len(token_ids)}")
    ids, weights = proto.support_ids, proto.support_weights  # sliced, never iterated: that is several times faster
    if not sum(sizes) == len(ids) == len(weights):
        raise ProtocolViolation(f"support_sizes: sum {sum(sizes)}, but {len(ids)} ids and {len(weights)} weights")
    if not ids:
        return Proposal(proto.session_id, proto.path, proto.position, tuple(map(DraftToken, token_ids)))
    if len(sizes) != len(token_ids):
        raise ProtocolViolation(f"support_sizes: must be none or one per token = {len(token_ids)}, got {len(sizes)}")
    if max(sizes) > MAX_SUPPORT:
        raise ProtocolViolation(f"support_sizes: must be at most {MAX_SUPPORT}, got {max(sizes)}")
    tokens: list[DraftToken] = []
    start = 0
    for token, size in zip(token_ids, sizes, strict=True):
        end = start + size
        tokens.append(DraftToken(token, Support(tuple(ids[start:end]), tuple(weights[start:end])) if size else None))
        start = end
    return Proposal(proto.session_id, proto.path, proto.position, tuple(tokens))


# ------------------------------------------------------------------------------------------- the small messages


def _hello_to_proto(hello: Hello) -> pb.Hello:
    return pb.Hello(
        protocol_version=hello.protocol_version,
        instance_id=hello.instance_id,
        model=model_info_to_proto(hello.model),
        max_sessions=hello.max_sessions,
    )


def _hello_from_proto(proto: pb.Hello) -> Hello:
    try:
        return Hello(
            protocol_version=proto.protocol_version,
            instance_id=check_length("instance_id", proto.instance_id, MAX_INSTANCE_ID_BYTES, least=1),
            model=model_info_from_proto(proto.model),
            max_sessions=proto.max_sessions,
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"hello.{error.field}", error.problem) from None


def _open_to_proto(message: Open) -> pb.Open:
    return pb.Open(
        session_id=message.session_id,
        token_ids=message.token_ids,
        sampling=sampling_to_proto(message.sampling),
        mode=_MODE_TO_PROTO[message.mode],
        seed=message.seed,
        choice=message.choice,
        window=message.window,
    )


def _open_from_proto(proto: pb.Open) -> Open:
    mode = _MODE_FROM_PROTO.get(proto.mode)
    if mode is None:
        raise ProtocolViolation(f"mode: must be rejection or coupled, got {proto.mode}")
    if not proto.token_ids:
        raise ProtocolViolation("token_ids: must hold at least one id")
    return Open(
        session_id=proto.session_id,
        token_ids=tuple(proto.token_ids),
        sampling=sampling_from_proto(proto.sampling),
        mode=mode,
        seed=proto.seed,
        choice=proto.choice,
        window=_window(proto.window),
    )


def _commit_to_proto(commit: Commit) -> pb.Commit:
    return pb.Commit(
        session_id=commit.session_id,
        number=commit.number,
        position=commit.position,
        token_ids=commit.token_ids,
        window=commit.window,
    )


def _commit_from_proto(proto: pb.Commit) -> Commit:
    if proto.number < 1:
        raise ProtocolViolation("number: commits count from 1, got 0")
    return Commit(proto.session_id, proto.number, proto.position, tuple(proto.token_ids), _window(proto.window))


def _window(window: int) -> int:
    if window > MAX_PROPOSAL_TOKENS:
        raise ProtocolViolation(f"window: must be at most {MAX_PROPOSAL_TOKENS} tokens, got {window}")
    return window


def _ended_to_proto(ended: Ended) -> pb.Ended:
    return pb.Ended(
        session_id=ended.session_id,
        reason=_REASON_TO_PROTO[ended.reason],
        detail=clip(ended.detail, MAX_DETAIL_BYTES),
    )


def _ended_from_proto(proto: pb.Ended) -> Ended:
    reason = _REASON_FROM_PROTO.get(proto.reason)
    if reason is None:
        raise ProtocolViolation(f"reason: unknown value {proto.reason}")
    return Ended(proto.session_id, reason, clip(proto.detail, MAX_DETAIL_BYTES))


def _load_from_proto(proto: pb.Load) -> Load:
    if not 0 <= proto.step_seconds < float("inf"):
        raise ProtocolViolation(f"load.step_seconds: must be finite and at least 0, got {proto.step_seconds}")
    return Load(proto.sessions, proto.max_sessions, proto.step_seconds)


# ------------------------------------------------------------------------------------------------- both streams


class _Entry(Protocol):
    @property
    def session_id(self) -> int: ...


EntryT = TypeVar("EntryT", bound=_Entry)
ValueT = TypeVar("ValueT")


def _each(convert: Callable[[EntryT], ValueT], entries: Iterable[EntryT], bad: list[Ended]) -> tuple[ValueT, ...]:
    """Convert what can be converted; the rest goes to `bad`."""
    good: list[ValueT] = []
    for entry in entries:
        try:
            good.append(convert(entry))
        except DraftwireError as error:
            bad.append(Ended(entry.session_id, EndReason.INVALID, clip(str(error), MAX_DETAIL_BYTES)))
    return tuple(good)


def _halves(*groups: Sequence[Any]) -> list[tuple[tuple[Any, ...], ...]]:
    """Two steps that together say, in the same order, what one step with these groups says.

    A single entry is as small as the call that caused it, which passed the same limit, so it is never beyond it.
    """
    half = (sum(map(len, groups)) + 1) // 2
    first: list[tuple[Any, ...]] = []
    second: list[tuple[Any, ...]] = []
    for group in groups:
        taken = min(half, len(group))
        first.append(tuple(group[:taken]))
        second.append(tuple(group[taken:]))
        half -= taken
    return [tuple(first), tuple(second)]
