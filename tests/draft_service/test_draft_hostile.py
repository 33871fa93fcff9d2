"""A thousand malformed or hostile messages: each gets Ended or a status, and a neighbour's session goes on."""

import asyncio
import itertools
import queue
import threading
from collections.abc import Iterator

import grpc
import pytest
from draft_client import HELLO, draft_worker
from draft_harness import opening
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.timing import PATIENCE

from draftwire.fake_model import FakeModel
from draftwire.rpc.convert_draft import verifier_message_to_protos
from draftwire.session import Commit, VerifierStep
from draftwire.v1 import draft_service_pb2 as pb

VOCAB, MODEL_LEN = 512, 4096

#: Statuses that a bad message may cause.
PROPER = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}

uint32 = st.integers(0, 2**32 - 1)
GOOD_OPEN = verifier_message_to_protos(VerifierStep(opens=(opening([7], 1),)))[0].step.opens[0]


def bad_opens() -> st.SearchStrategy[pb.Open]:
    """Opens of session 1 that break exactly one rule."""

    def broken(**fields: object) -> pb.Open:
        proto = pb.Open()
        proto.CopyFrom(GOOD_OPEN)
        for name, value in fields.items():
            if name in ("temperature", "top_p", "min_p"):
                setattr(proto.sampling, name, value)
            elif name == "token_ids":
                del proto.token_ids[:]
                proto.token_ids.extend(value)
            else:
                setattr(proto, name, value)
        return proto

    return st.one_of(
        st.just(broken(token_ids=[])),
        st.integers(VOCAB, 2**32 - 1).map(lambda token: broken(token_ids=[7, token])),
        st.integers(MODEL_LEN, MODEL_LEN + 9).map(lambda length: broken(token_ids=[7] * length)),
        st.integers(65, 2**32 - 1).map(lambda window: broken(window=window)),
        st.sampled_from([0, 3, 99]).map(lambda mode: broken(mode=mode)),
        st.sampled_from([-1.0, 101.0, float("nan"), float("inf")]).map(lambda value: broken(temperature=value)),
        st.sampled_from([0.0, -0.5, 1.5, float("nan")]).map(lambda value: broken(top_p=value)),
        st.sampled_from([-0.5, 1.5, float("nan")]).map(lambda value: broken(min_p=value)),
    )


def bad_commits() -> st.SearchStrategy[pb.Commit]:
    """Commits to session 1 (open, one token, no commit yet) that break exactly one rule."""
    return st.one_of(
        st.just(pb.Commit(session_id=1, number=0, position=1, window=1)),
        uint32.filter(lambda p: p != 1).map(lambda p: pb.Commit(session_id=1, number=1, position=p, window=1)),
        st.integers(65, 2**32 - 1).map(lambda w: pb.Commit(session_id=1, number=1, position=1, window=w)),
        st.integers(VOCAB, 2**32 - 1).map(
            lambda t: pb.Commit(session_id=1, number=1, position=1, token_ids=[t], window=1)
        ),
        st.just(pb.Commit(session_id=1, number=1, position=1, token_ids=[8] * MODEL_LEN, window=1)),
    )


def ending() -> st.SearchStrategy[bytes]:
    """Messages that must end session 1."""
    return st.one_of(
        bad_opens().map(lambda proto: pb.VerifierStep(opens=[proto])),
        bad_commits().map(lambda proto: pb.VerifierStep(opens=[GOOD_OPEN], commits=[proto])),
        st.just(pb.VerifierStep(opens=[GOOD_OPEN, GOOD_OPEN])),
    ).map(lambda step: pb.SpeculateRequest(step=step).SerializeToString())


def refused() -> st.SearchStrategy[bytes]:
    """Messages that must end their stream."""
    hello = verifier_message_to_protos(HELLO)[0].SerializeToString()
    crowd = pb.SpeculateRequest(step=pb.VerifierStep(closes=[pb.Close(session_id=i) for i in range(4097)]))
    return st.one_of(st.just(b""), st.just(hello), st.just(crowd.SerializeToString()), st.just(b"\xff\xff\xff"))


def anything() -> st.SearchStrategy[bytes]:
    """Bytes of any kind, and well-formed messages with arbitrary numbers in them."""
    ids = st.integers(1, 3)
    opens = st.builds(
        pb.Open, session_id=ids, token_ids=st.lists(uint32, max_size=3), mode=st.integers(0, 3), window=uint32
    )
    commits = st.builds(
        pb.Commit,
        session_id=ids,
        number=st.integers(0, 3),
        position=st.integers(0, 4),
        token_ids=st.lists(st.integers(0, 600), max_size=3),
        window=st.integers(0, 99),
    )
    closes = st.builds(pb.Close, session_id=ids)
    steps = st.builds(
        pb.VerifierStep,
        opens=st.lists(opens, max_size=4),
        commits=st.lists(commits, max_size=4),
        closes=st.lists(closes, max_size=2),
    )
    messages = steps.map(lambda step: pb.SpeculateRequest(step=step).SerializeToString())
    return st.one_of(st.binary(max_size=64), messages)


class RawStream:
    """A stream on which any bytes can be sent; blocking."""

    def __init__(self, channel: grpc.Channel, timeout: float = PATIENCE) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        speculate = channel.stream_stream(
            "/draftwire.v1.DraftService/Speculate", response_deserializer=pb.SpeculateResponse.FromString
        )
        self.call = speculate(iter(self._requests.get, None), timeout=timeout)
        self.send(verifier_message_to_protos(HELLO)[0].SerializeToString())

    def send(self, message: bytes) -> None:
        self._requests.put(message)

    def steps(self) -> Iterator[pb.DrafterStep]:
        """The steps that come, until the stream ends; its status is raised as grpc.RpcError."""
        return (response.step for response in self.call if response.HasField("step"))

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()


class Neighbour:
    """A good session on a stream of its own that goes on token by token: 8, 9, 10, ..."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stream = RawStream(channel, timeout=30 * PATIENCE)
        self._steps = self._stream.steps()
        self._text = [7]
        self._number = itertools.count(1)
        self._say(VerifierStep(opens=(opening(self._text, 1),)))

    def advance(self) -> None:
        """The next token must be proposed; commit it."""
        proposal = next(step.proposals[0] for step in self._steps if step.proposals)
        expected = (self._text[-1] + 1) % VOCAB
        assert (proposal.path, proposal.position, list(proposal.token_ids)) == (0, len(self._text), [expected])
        self._say(VerifierStep(commits=(Commit(1, next(self._number), len(self._text), (expected,), window=1),)))
        self._text.append(expected)

    def _say(self, step: VerifierStep) -> None:
        self._stream.send(verifier_message_to_protos(step)[0].SerializeToString())


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    """A channel to a worker that runs on a thread of its own."""
    ports: queue.Queue[int] = queue.Queue()
    stop: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def serve() -> None:
        stopping = asyncio.Event()
        stop.put((asyncio.get_running_loop(), stopping))
        async with draft_worker(FakeModel(vocab_size=VOCAB, max_model_len=MODEL_LEN), max_num_seqs=16) as running:
            ports.put(running.worker.port)
            await stopping.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    with grpc.insecure_channel(f"127.0.0.1:{ports.get(timeout=PATIENCE)}") as opened:
        yield opened
    loop, stopping = stop.get()
    loop.call_soon_threadsafe(stopping.set)
    thread.join(PATIENCE)


@pytest.fixture(scope="module")
def neighbour(channel: grpc.Channel) -> Neighbour:
    """The session that must not be hurt."""
    return Neighbour(channel)


def outcome(channel: grpc.Channel, message: bytes) -> grpc.StatusCode | set[int]:
    """Send a message: the status that ended its stream, or the sessions that were ended before a later one drafted."""
    stream = RawStream(channel)
    stream.send(message)
    probe = verifier_message_to_protos(VerifierStep(opens=(opening([20], 1, session_id=99),)))[0]
    stream.send(probe.SerializeToString())
    ended: set[int] = set()
    try:
        for step in stream.steps():
            ended |= {entry.session_id for entry in step.ended}
            if any(proposal.session_id == 99 for proposal in step.proposals):
                return ended
    except grpc.RpcError as error:
        return error.code()
    finally:
        stream.close()
    raise AssertionError("the stream ended without a status")


ALL = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=300)


@ALL
@given(message=ending())
def test_a_broken_rule_ends_the_session(channel: grpc.Channel, neighbour: Neighbour, message: bytes) -> None:
    """The session is ended, its stream opens another one, and the neighbour's next token comes."""
    assert outcome(channel, message) == {1}
    neighbour.advance()


@settings(ALL, max_examples=50)
@given(message=refused())
def test_a_broken_stream_gets_a_status(channel: grpc.Channel, neighbour: Neighbour, message: bytes) -> None:
    """What concerns no session ends the stream with INVALID_ARGUMENT, and the neighbour's next token comes."""
    assert outcome(channel, message) is grpc.StatusCode.INVALID_ARGUMENT
    neighbour.advance()


@settings(ALL, max_examples=700)
@given(message=anything())
def test_anything_else_hurts_nobody(channel: grpc.Channel, neighbour: Neighbour, message: bytes) -> None:
    """Whatever the bytes are, the stream serves on or gets a proper status, and the neighbour's next token comes."""
    result = outcome(channel, message)
    assert result in PROPER or isinstance(result, set)
    neighbour.advance()
