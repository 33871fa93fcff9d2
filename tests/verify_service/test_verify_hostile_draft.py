"""Hundreds of hostile messages from a draft worker: it loses the session or the stream, and no token changes.

Nobody else notices: beside every message another caller's answer is checked token by token.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.background import Background, background
from support.hostile_draft import HELLO, HostileDraft, Message, hostile_draft
from support.hostility import ALL, GREEDY, VOCAB, counting, good_answer, ids_beyond
from support.pair import connected, draft_worker
from support.rpc_strategies import any_proto, uint32
from support.verify_worker import RunningWorker, verify_worker

from draftwire.fake_model import FakeModel
from draftwire.rpc.limits import MAX_MESSAGE_BYTES
from draftwire.types import MAX_PROPOSAL_TOKENS, WEIGHT_TOTAL, Committed, GenerateRequest
from draftwire.v1 import draft_service_pb2 as pb
from verify_service import draft_client

#: The victim's prompt is longer than what the good draft worker takes, so the hostile one gets it. 7 comes next.
GOOD_DRAFT_LEN = 64
VICTIM = [*range(VOCAB - 70, VOCAB), *range(7)]
RIGHT = 7

proposal = pb.Proposal
weights = st.lists(st.integers(1, WEIGHT_TOTAL), min_size=1, max_size=64)


def said(*proposals: pb.Proposal, **entries) -> pb.SpeculateResponse:
    """A step as a message."""
    return pb.SpeculateResponse(step=pb.DrafterStep(proposals=proposals, **entries))


def bad_supports() -> st.SearchStrategy[pb.Proposal]:
    """The right token with a q that is none."""

    def q(ids: list[int], weights: list[int], sizes: list[int] | None = None) -> pb.Proposal:
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
        ids_beyond.map(lambda token: q([RIGHT, token], [half, half])),
        weights.filter(lambda ws: sum(ws) != WEIGHT_TOTAL).map(lambda ws: q([RIGHT + i for i in range(len(ws))], ws)),
    )


def violations() -> st.SearchStrategy[list[Message]]:
    """Messages that no honest draft could send to the victim's session."""
    beyond = [RIGHT] * (MAX_PROPOSAL_TOKENS - 1) + [VOCAB]  # beyond the credit; should it grow meanwhile, a bad id
    right = proposal(token_ids=[RIGHT])
    proposals = st.one_of(
        bad_supports(),
        st.just(proposal()),
        ids_beyond.map(lambda token: proposal(token_ids=[token])),
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
            lambda reason: [said(ended=[pb.Ended(reason=reason, detail="?" * 300)])]
        ),
    )


def stream_breakers() -> st.SearchStrategy[list[Message]]:
    """Messages that concern no session: they end the stream."""
    load = st.sampled_from([float("nan"), float("inf"), -1.0]).map(
        lambda seconds: pb.SpeculateResponse(load=pb.Load(step_seconds=seconds))
    )
    return st.one_of(
        st.just(HELLO),
        st.just(b""),
        st.sampled_from([b"\xff\xff\xff", b"\x12\x05ab", said(proposal(token_ids=[RIGHT])).SerializeToString()[:-1]]),
        st.just(pb.SpeculateResponse(hello=pb.Hello(protocol_version=99))),
        st.just(b"\0" * (MAX_MESSAGE_BYTES + 1)),
        load,
    ).map(lambda message: [message])


@st.composite
def anything(draw: st.DrawFn) -> list[Message]:
    """Messages of any content, some for the victim's session and about its next positions."""
    near = st.builds(
        pb.Proposal,
        session_id=st.sampled_from([0, 0, 0, 1, 2, 2**64 - 1]),
        path=st.integers(0, 8),
        position=st.integers(0, 12),
        token_ids=st.lists(st.integers(RIGHT, RIGHT + 3), max_size=9),
        support_sizes=st.lists(st.integers(0, 2), max_size=2),
    )
    steps = st.lists(near, max_size=4).map(lambda proposals: said(*proposals))
    wild = any_proto(pb.SpeculateResponse)
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
        patch.setattr(draft_client, "HELLO_SECONDS", 1.0)
        good = FakeModel(vocab_size=VOCAB, max_model_len=GOOD_DRAFT_LEN)
        flags = {"num_speculative_tokens": 4, "schedule": "eager", "stall_seconds": 3600}
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


@settings(ALL, max_examples=200)
@given(script=anything())
def test_anything_else_changes_no_token(attacked: tuple[Background, Attacked], script: list[Message]) -> None:
    """Whatever a draft worker says before it hangs up, the victim's and the neighbour's tokens are right."""
    loop, world = attacked
    loop.run(world.attack(script, hang_up=True, until="ended"))


def test_a_flood_drowns_nobody(attacked: tuple[Background, Attacked]) -> None:
    """Five thousand messages, and one of fifty thousand entries: every token is right all the same."""
    loop, world = attacked
    small: list[Message] = [said(proposal(session_id=2**60 + i, token_ids=[1])) for i in range(5_000)]
    for large in (
        said(ended=[pb.Ended(session_id=2**60 + i, reason=1) for i in range(50_000)]),
        said(idle=[pb.Idle(session_id=2**60 + i, number=1) for i in range(50_000)]),
    ):
        loop.run(world.attack([*small, large], hang_up=False, until="ended"))


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\xff\xff\xff",
        pb.SpeculateResponse(step=pb.DrafterStep()).SerializeToString(),
        pb.SpeculateResponse(hello=pb.Hello(protocol_version=99)).SerializeToString(),
        HELLO.replace(b"fake-512", b"fake-513"),
        HELLO.replace(b"hostile", b"host\xffle"),
        None,
    ],
)
def test_a_bad_hello_is_refused(attacked: tuple[Background, Attacked], greeting: bytes | None) -> None:
    """The worker is not taken in, the good one's callers notice nothing, and after a right Hello it is taken."""
    loop, world = attacked
    loop.run(world.greet(greeting))
