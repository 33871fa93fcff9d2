"""A thousand malformed or hostile messages to a verify worker, from callers and from a draft worker.

A caller gets a proper status that names the field; a draft worker loses the session or the stream. Nobody else notices:
beside every message another caller's answer is checked token by token.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.background import Background, background
from support.hostile_draft import HELLO, HostileDraft, Message, hostile_draft
from support.pair import connected, draft_worker
from support.rpc_strategies import any_proto, float32, uint32
from support.verify_worker import RunningWorker, output, verify_worker

from draftwire.errors import InvalidArgument
from draftwire.fake_model import FakeModel
from draftwire.rpc.client import connect
from draftwire.rpc.limits import MAX_MESSAGE_BYTES
from draftwire.rpc.status import error_of
from draftwire.types import MAX_PROPOSAL_TOKENS, WEIGHT_TOTAL, Committed, GenerateRequest, SamplingParams
from draftwire.v1 import draft_service_pb2 as draft_pb
from draftwire.v1 import verify_service_pb2 as pb
from verify_service import draft_client

VOCAB = 512
GREEDY = SamplingParams(temperature=0.0)
#: A message that nobody answers costs PATIENCE, so failures are shown as they were found, unshrunk.
ALL = settings(suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.reuse, Phase.generate))


def counting(first: int, count: int) -> list[int]:
    """What the fake target says after the prompt [.., first]."""
    return [(first + i) % VOCAB for i in range(1, count + 1)]


async def good_answer(target: RunningWorker) -> None:
    """Another caller's answer is what it must be."""
    assert output(await target.generate([20], max_tokens=8, sampling=GREEDY)) == counting(20, 8)


# ------------------------------------------------------------------------------------------------ hostile callers

MODEL_LEN, K = 48, 4

ids = st.integers(0, VOCAB - 1)
unknown_ids = st.integers(VOCAB, 2**32 - 1)


def broken_requests() -> st.SearchStrategy[tuple[str, pb.VerifyServiceGenerateRequest]]:
    """(field, request): requests that break exactly one rule, which is that field's."""

    def broken(field: str, **fields: object) -> tuple[str, pb.VerifyServiceGenerateRequest]:
        return field, pb.VerifyServiceGenerateRequest(**({"prompt_token_ids": [7], "max_tokens": 4} | fields))

    def sampling(name: str, values: st.SearchStrategy) -> st.SearchStrategy:
        return values.map(lambda value: broken(f"sampling.{name}", sampling={name: value}))

    strange = st.sampled_from([float("nan"), float("inf"), -float("inf")])
    number = "speculation.num_speculative_tokens"
    return st.one_of(
        st.just(broken("prompt_token_ids", prompt_token_ids=[])),
        unknown_ids.map(lambda token: broken("prompt_token_ids", prompt_token_ids=[7, token])),
        st.integers(MODEL_LEN, 500).map(lambda n: broken("prompt_token_ids", prompt_token_ids=[7] * n, max_tokens=1)),
        unknown_ids.map(lambda token: broken("committed_token_ids", committed_token_ids=[token])),
        st.integers(4, 500).map(lambda n: broken("committed_token_ids", committed_token_ids=[7] * n)),
        st.sampled_from([0, MODEL_LEN, 2**32 - 1]).map(lambda n: broken("max_tokens", max_tokens=n)),
        sampling("temperature", strange | float32(-100, 0, exclude_max=True) | float32(100, 1e9, exclude_min=True)),
        sampling("top_k", st.integers(VOCAB + 1, 2**32 - 1)),
        sampling("top_p", strange | float32(-1, 0) | float32(1, 9, exclude_min=True)),
        sampling("min_p", strange | float32(-1, 0, exclude_max=True) | float32(1, 9, exclude_min=True)),
        unknown_ids.map(lambda token: broken("stop_token_ids", stop_token_ids=[token])),
        st.integers(65, 500).map(lambda n: broken("stop_token_ids", stop_token_ids=[7] * n)),
        st.integers(129, 500).map(lambda n: broken("request_id", request_id="x" * n)),
        (st.just(0) | st.integers(K + 1, 2**32 - 1)).map(
            lambda n: broken(number, speculation={number.split(".")[1]: n})
        ),
    )


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good request's bytes with some of them changed, lost or doubled."""
    data = bytearray(
        pb.VerifyServiceGenerateRequest(
            request_id="abc", prompt_token_ids=[7, 8], max_tokens=4, sampling={"temperature": 1.0}, stop_token_ids=[9]
        ).SerializeToString()
    )
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        data = data or bytearray(b"\0")
    return bytes(data)


@dataclass
class Callers:
    """A worker with a draft, and a way to send it any bytes."""

    target: RunningWorker
    generate: grpc.aio.UnaryStreamMultiCallable

    async def outcome(self, message: bytes) -> grpc.aio.AioRpcError | None:
        """Send the bytes beside a good answer, which must come; returns the status, None for a complete answer."""
        good = asyncio.create_task(good_answer(self.target))
        error, last = None, None
        try:
            async for event in self.generate(message, timeout=10):
                last = event
        except grpc.aio.AioRpcError as raised:
            error = raised
        await good
        assert error or last.HasField("finished")
        return error


@asynccontextmanager
async def serve_callers() -> AsyncIterator[Callers]:
    """The worker."""
    model = FakeModel(vocab_size=VOCAB, max_model_len=MODEL_LEN)
    async with (
        draft_worker(model) as draft,
        verify_worker(model, drafts=(f"127.0.0.1:{draft.port}",), num_speculative_tokens=K, schedule="eager") as target,
        connect(f"127.0.0.1:{target.worker.port}") as channel,
    ):
        await connected(target)
        generate = channel.unary_stream(
            "/draftwire.v1.VerifyService/Generate", response_deserializer=pb.VerifyServiceGenerateResponse.FromString
        )
        yield Callers(target, generate)
        async with asyncio.timeout(5):
            while target.metric("draftwire_verify_running_sessions") + target.metric(
                "draftwire_verify_waiting_sessions"
            ):
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def callers() -> Iterator[tuple[Background, Callers]]:
    """The worker; at the end every slot must be free again."""
    with background(serve_callers) as running:
        yield running


@settings(ALL, max_examples=250)
@given(case=broken_requests())
def test_a_bad_field_is_named(callers: tuple[Background, Callers], case) -> None:
    """One broken rule: INVALID_ARGUMENT, and its details name the field."""
    field, request = case
    loop, world = callers
    error = loop.run(world.outcome(request.SerializeToString()))
    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    refusal = error_of(error)
    assert isinstance(refusal, InvalidArgument)
    assert refusal.field == field


@settings(ALL, max_examples=250)
@given(
    message=st.one_of(
        any_proto(pb.VerifyServiceGenerateRequest).map(lambda proto: proto.SerializeToString()),
        mutated(),
        st.binary(max_size=64),
    )
)
def test_any_bytes_get_an_answer_or_a_field(callers: tuple[Background, Callers], message: bytes) -> None:
    """Whatever the bytes are: a complete answer, or INVALID_ARGUMENT that names a field."""
    loop, world = callers
    error = loop.run(world.outcome(message))
    if error is not None:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        refusal = error_of(error)
        assert isinstance(refusal, InvalidArgument)
        assert refusal.field


def test_a_message_beyond_the_limit(callers: tuple[Background, Callers]) -> None:
    """More than MAX_MESSAGE_BYTES: RESOURCE_EXHAUSTED."""
    loop, world = callers
    error = loop.run(world.outcome(b"\0" * (MAX_MESSAGE_BYTES + 1)))
    assert error is not None
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# ------------------------------------------------------------------------------------------ a hostile draft worker

#: The victim's prompt is longer than what the good draft worker takes, so the hostile one gets it. 7 comes next.
GOOD_DRAFT_LEN = 64
VICTIM = [*range(VOCAB - 70, VOCAB), *range(7)]
RIGHT = 7

proposal = draft_pb.Proposal
weights = st.lists(st.integers(1, WEIGHT_TOTAL), min_size=1, max_size=64)


def said(*proposals: draft_pb.Proposal, **entries) -> draft_pb.SpeculateResponse:
    """A step as a message."""
    return draft_pb.SpeculateResponse(step=draft_pb.DrafterStep(proposals=proposals, **entries))


def bad_supports() -> st.SearchStrategy[draft_pb.Proposal]:
    """The right token with a q that is none."""

    def q(ids: list[int], weights: list[int], sizes: list[int] | None = None) -> draft_pb.Proposal:
        sizes = [len(ids)] if sizes is None else sizes
        return proposal(token_ids=[RIGHT], support_ids=ids, support_weights=weights, support_sizes=sizes)

    half = WEIGHT_TOTAL // 2
    many = list(range(65))
    return st.one_of(
        st.just(q([RIGHT, RIGHT], [half, half])),
        st.just(q([RIGHT, 8], [WEIGHT_TOTAL, 0])),
        st.just(q([8, 9], [half, half])),
        st.just(q(many, [1] * 64 + [WEIGHT_TOTAL - 64])),
        st.just(q([RIGHT], [WEIGHT_TOTAL], [1, 0])),
        st.just(q([RIGHT, 8], [half, half], [1])),
        st.just(q([RIGHT, 8], [half, half, 1])),
        st.just(q([RIGHT, 8], [half, half], [])),
        uint32.filter(lambda w: w != WEIGHT_TOTAL).map(lambda w: q([RIGHT], [w])),
        unknown_ids.map(lambda token: q([RIGHT, token], [half, half])),
        weights.filter(lambda ws: sum(ws) != WEIGHT_TOTAL).map(lambda ws: q([RIGHT + i for i in range(len(ws))], ws)),
    )


def violations() -> st.SearchStrategy[list[Message]]:
    """Messages that no honest draft could send to the victim's session."""
    beyond = [RIGHT] * (MAX_PROPOSAL_TOKENS - 1) + [VOCAB]  # beyond the credit; should it grow meanwhile, a bad id
    right = proposal(token_ids=[RIGHT])
    proposals = st.one_of(
        bad_supports(),
        st.just(proposal()),
        unknown_ids.map(lambda token: proposal(token_ids=[token])),
        st.integers(65, 500).map(lambda n: proposal(token_ids=[RIGHT] * n)),
        st.integers(10**6, 2**32 - 1).map(lambda path: proposal(path=path, token_ids=[RIGHT])),
        st.integers(2**31, 2**32 - 100).map(lambda position: proposal(position=position, token_ids=[RIGHT])),
        st.integers(1, 1 + len(VICTIM)).map(lambda back: proposal(position=2**32 - back, token_ids=[RIGHT])),
        st.just(proposal(token_ids=beyond)),
    )
    return st.one_of(
        proposals.map(lambda bad: [said(bad)]),
        proposals.map(lambda bad: [said(right, bad, right)]),
        st.just([said(right, right)]),
        st.just([said(right), said(right)]),
        st.integers(-5, 99)
        .filter(lambda reason: reason != 2)
        .map(  # 2, overloaded, pauses the worker
            lambda reason: [said(ended=[draft_pb.Ended(reason=reason, detail="?" * 300)])]
        ),
    )


def stream_breakers() -> st.SearchStrategy[list[Message]]:
    """Messages that concern no session: they end the stream."""
    load = st.sampled_from([float("nan"), float("inf"), -1.0]).map(
        lambda seconds: draft_pb.SpeculateResponse(load=draft_pb.Load(step_seconds=seconds))
    )
    return st.one_of(
        st.just(HELLO),
        st.just(b""),
        st.sampled_from([b"\xff\xff\xff", b"\x12\x05ab", said(proposal(token_ids=[RIGHT])).SerializeToString()[:-1]]),
        st.just(draft_pb.SpeculateResponse(hello=draft_pb.Hello(protocol_version=99))),
        st.just(b"\0" * (MAX_MESSAGE_BYTES + 1)),
        load,
    ).map(lambda message: [message])


@st.composite
def anything(draw: st.DrawFn) -> list[Message]:
    """Messages of any content, some for the victim's session and about its next positions."""
    near = st.builds(
        draft_pb.Proposal,
        session_id=st.sampled_from([0, 0, 0, 1, 2, 2**64 - 1]),
        path=st.integers(0, 8),
        position=st.integers(0, 12),
        token_ids=st.lists(st.integers(RIGHT, RIGHT + 3), max_size=9),
        support_sizes=st.lists(st.integers(0, 2), max_size=2),
    )
    steps = st.lists(near, max_size=4).map(lambda proposals: said(*proposals))
    wild = any_proto(draft_pb.SpeculateResponse)
    return draw(st.lists(st.one_of(steps, steps, wild, st.binary(max_size=40)), min_size=1, max_size=4))


@dataclass
class Attacked:
    """A worker with two drafts, one of them hostile."""

    target: RunningWorker
    hostile: HostileDraft
    names: Iterator[int] = field(default_factory=itertools.count)  # the first token of each victim's prompt

    async def attack(self, script: list[Message], *, hang_up: bool, until: str, drafts: int = 2) -> None:
        """Say the script to a victim's session, beside a good answer; both outputs must be right.

        until: "closed" = the victim's session is taken away; "ended" = the whole stream is.
        drafts: how many draft workers are in use afterwards.
        """
        hostile = self.hostile
        name = next(self.names) % VOCAB
        hostile.script, hostile.hang_up, hostile.victim, hostile.attacked = script, hang_up, name, None
        ended, over = hostile.ended, asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._victim(name, over))
            await hostile.until(lambda: hostile.attacked is not None)
            group.create_task(good_answer(self.target))
            await hostile.until(
                lambda: hostile.attacked in hostile.closed if until == "closed" else hostile.ended > ended
            )
            over.set()
        await connected(self.target, drafts)

    async def greet(self, greeting: bytes | None) -> None:
        """Begin the next streams with this: refused, until the greeting is right again."""
        self.hostile.greeting = greeting
        await self.attack([], hang_up=True, until="ended", drafts=1)
        refused = self.hostile.ended + 2
        await self.hostile.until(lambda: self.hostile.ended >= refused)
        await good_answer(self.target)
        assert self.target.metric("draftwire_verify_draft_workers") == 1
        self.hostile.greeting = HELLO
        await connected(self.target, 2)

    async def _victim(self, name: int, enough: asyncio.Event) -> None:
        """Reads an answer until `enough`, and eight tokens more."""
        request = GenerateRequest("victim", (name, *VICTIM), max_tokens=4000, sampling=GREEDY)
        tokens: list[int] = []
        stop_at = None
        async with aclosing(self.target.events(request)) as events:
            async for event in events:
                if isinstance(event, Committed):
                    tokens += event.token_ids
                    if enough.is_set():
                        stop_at = stop_at or len(tokens) + 8
                    if stop_at and len(tokens) >= stop_at:
                        break
        assert tokens == counting(RIGHT - 1, len(tokens))
        assert stop_at, "the answer went on until its draft was gone"


@asynccontextmanager
async def serve_attacked() -> AsyncIterator[Attacked]:
    """The worker; it reconnects at once, so that a thousand broken streams do not take all day."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_PAUSE", "LONGEST_PAUSE", "INCOMPATIBLE_PAUSE"):
            patch.setattr(draft_client, name, 0.002)
        patch.setattr(draft_client, "HELLO_SECONDS", 0.3)
        good = FakeModel(vocab_size=VOCAB, max_model_len=GOOD_DRAFT_LEN)
        flags = {"num_speculative_tokens": K, "schedule": "eager", "stall_seconds": 3600}
        async with hostile_draft() as hostile, draft_worker(good) as draft:
            addresses = (f"127.0.0.1:{hostile.port}", f"127.0.0.1:{draft.port}")
            target = FakeModel(vocab_size=VOCAB, step_seconds=0.001)
            async with verify_worker(target, drafts=addresses, **flags) as running:
                await connected(running, 2)
                yield Attacked(running, hostile)
                assert running.metric("speculative_decoding_accepted_tokens_total"), "the good draft was of use"


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[Background, Attacked]]:
    """The worker and its enemy."""
    with background(serve_attacked) as running:
        yield running


@settings(ALL, max_examples=250)
@given(script=violations())
def test_a_violation_costs_the_session(attacked: tuple[Background, Attacked], script: list[Message]) -> None:
    """The session is closed, the stream lives on, and the victim's and the neighbour's tokens are right."""
    loop, world = attacked
    ended = world.hostile.ended
    loop.run(world.attack(script, hang_up=False, until="closed"))
    assert world.hostile.ended == ended


@settings(ALL, max_examples=40)
@given(script=stream_breakers())
def test_a_broken_stream_is_left(attacked: tuple[Background, Attacked], script: list[Message]) -> None:
    """The stream is ended and opened anew, and the victim's and the neighbour's tokens are right."""
    loop, world = attacked
    loop.run(world.attack(script, hang_up=False, until="ended"))


@settings(ALL, max_examples=220)
@given(script=anything())
def test_anything_else_changes_no_token(attacked: tuple[Background, Attacked], script: list[Message]) -> None:
    """Whatever a draft worker says before it hangs up, the victim's and the neighbour's tokens are right."""
    loop, world = attacked
    loop.run(world.attack(script, hang_up=True, until="ended"))


def test_a_flood_drowns_nobody(attacked: tuple[Background, Attacked]) -> None:
    """Five thousand messages, and one of fifty thousand entries: every token is right all the same."""
    loop, world = attacked
    small: list[Message] = [said(proposal(session_id=2**60 + i, token_ids=[1])) for i in range(5_000)]
    large = said(ended=[draft_pb.Ended(session_id=2**60 + i, reason=1) for i in range(50_000)])
    loop.run(world.attack([*small, large], hang_up=True, until="ended"))


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\xff\xff\xff",
        draft_pb.SpeculateResponse(step=draft_pb.DrafterStep()).SerializeToString(),
        draft_pb.SpeculateResponse(hello=draft_pb.Hello(protocol_version=99)).SerializeToString(),
        HELLO.replace(b"fake-512", b"fake-513"),
        HELLO.replace(b"hostile", b"host\xffle"),
        None,
    ],
)
def test_a_bad_hello_is_refused(attacked: tuple[Background, Attacked], greeting: bytes | None) -> None:
    """The worker is not taken in, the good one's callers notice nothing, and after a right Hello it is taken."""
    loop, world = attacked
    loop.run(world.greet(greeting))
