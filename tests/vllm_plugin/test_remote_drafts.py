"""The plug-in's draft side, against real draft workers on the fake model, without vLLM.

The fake model counts upwards, so a request with prompt [7] is answered 8, 9, 10, ...; a draft that counts is perfect.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from support.background import background
from support.hostile_draft import hostile_draft
from support.pair import draft_worker
from support.vllm_steps import TARGET, begin, step

from draftwire.fake_model import FakeModel
from draftwire.ports import free_port
from draftwire.rpc.backlog import Backlog
from draftwire.session import DrafterStep, Proposal
from draftwire.types import DraftToken
from draftwire.v1 import draft_service_pb2 as pb
from draftwire.vllm_plugin.config import PluginConfig
from draftwire.vllm_plugin.remote_drafts import Outcome, RemoteDrafts
from draftwire.vllm_plugin.speculation import Speculation
from verify_service.draft_pool import DraftWorker
from verify_service.events import DraftDown, DraftSaid, DraftUp

COUNTING = FakeModel()
K = 4


@contextmanager
def remote_drafts(*ports: int, host: str = "127.0.0.1", **fields) -> Iterator[tuple[RemoteDrafts, CollectorRegistry]]:
    """The draft side, started; fields as in PluginConfig, in lock step where they don't say otherwise."""
    registry = CollectorRegistry()
    fields = {"schedule": "lockstep", "max_wait": 1} | fields
    config = PluginConfig(drafts=",".join(f"{host}:{port}" for port in ports), **fields)
    remote = RemoteDrafts(config, TARGET, num_speculative_tokens=K, max_sessions=8, registry=registry)
    remote.start()
    try:
        yield remote, registry
    finally:
        remote.stop()


def connected(registry: CollectorRegistry, count: int = 1) -> None:
    """Wait until so many draft workers are connected, though no step looks."""
    deadline = time.monotonic() + 10
    while registry.get_sample_value("draftwire_verify_draft_workers") != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def held(registry: CollectorRegistry, what: str = "steps") -> float:
    """Steps that were put off for proposals so far, or for how many seconds."""
    return registry.get_sample_value(f"draftwire_vllm_held_{what}_total")


def answer(remote: RemoteDrafts, prompt: list[int], max_tokens: int, **fields) -> Speculation:
    """One request from its prefill to its end."""
    speculation = begin(remote, prompt, max_tokens, **fields)
    while not speculation.vllm_request.is_finished():
        step(remote, [speculation], COUNTING)
    return speculation


def test_a_perfect_draft():
    """Every tested proposal is accepted, most steps commit several tokens, and the answer is the target's."""
    with background(lambda: draft_worker(COUNTING)) as (_, draft), remote_drafts(draft.port) as (remote, registry):
        connected(registry)
        done = answer(remote, [7], 100)
        assert done.tokens == list(range(7, 108))
        assert done.stats.acceptance == 1
        assert done.stats.committed_tokens == 100
        assert done.stats.tokens_per_step > 2
        assert registry.get_sample_value("speculative_decoding_accepted_tokens_total") == done.stats.accepted_tokens


def test_tls(tmp_path):
    """Through a proxy that ends TLS; without the authority that signed its certificate nobody connects."""
    with background(lambda: draft_worker(COUNTING)) as (loop, draft):
        port, certificate = loop.run(tls_proxy(draft.port, tmp_path))
        with remote_drafts(port, host="localhost", tls_ca=certificate) as (remote, registry):
            connected(registry)
            assert answer(remote, [7], 50).stats.tokens_per_step > 2
        with remote_drafts(port, host="localhost", tls=True) as (remote, registry):
            time.sleep(0.5)
            assert not registry.get_sample_value("draftwire_verify_draft_workers")


async def tls_proxy(to: int, folder: Path) -> tuple[int, Path]:
    """Ends TLS in front of a port of this machine; (its port, its self-signed certificate)."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    made = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", to)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer), return_exceptions=True)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "localhost", 0, ssl=context)
    return server.sockets[0].getsockname()[1], certificate


def test_a_draft_that_errs():
    """A draft that skips a token at every seventh position is corrected; the answer stays the target's."""
    drifting = FakeModel(drift=7)
    with background(lambda: draft_worker(drifting)) as (_, draft), remote_drafts(draft.port) as (remote, registry):
        connected(registry)
        done = answer(remote, [7], 60)
        assert done.tokens == list(range(7, 68))
        assert 0 < done.stats.acceptance < 1


def test_requests_that_mix():
    """Of two requests that run together one has asked for no drafts; both are right, and only one speculates."""
    with background(lambda: draft_worker(COUNTING)) as (_, draft), remote_drafts(draft.port) as (remote, registry):
        connected(registry)
        plain, drafted = begin(remote, [7], 20, limit=0), begin(remote, [200], 20)
        while running := [one for one in (plain, drafted) if not one.vllm_request.is_finished()]:
            step(remote, running, COUNTING)
        assert (plain.tokens, drafted.tokens) == (list(range(7, 28)), list(range(200, 221)))
        assert plain.link is None
        assert plain.stats.tested_tokens == 0
        assert plain.stats.steps == 20
        assert drafted.stats.accepted_tokens > 0


def test_a_wait_ends_when_the_proposals_come():
    """In lock step with a quick draft each step waits for K proposals, a few milliseconds and not the tau of 1 s."""
    with background(lambda: draft_worker(COUNTING)) as (_, draft), remote_drafts(draft.port) as (remote, registry):
        connected(registry)
        for _ in range(10):  # on a busy machine a proposal may be later than tau
            before = held(registry), held(registry, "seconds")
            done = answer(remote, [7], 50)
            steps, seconds = held(registry) - before[0], held(registry, "seconds") - before[1]
            if done.stats.steps == 10:  # each committed K + 1 tokens
                break
        assert done.stats.steps == 10
        assert 1 <= steps <= 10
        assert seconds < 5, "ten times tau would be 10 s"


def test_no_draft_worker_costs_nothing():
    """Nobody answers at the address: no step waits."""
    with remote_drafts(free_port()) as (remote, registry):
        assert answer(remote, [7], 50).tokens == list(range(7, 58))
        assert held(registry) == 0


def test_a_silent_draft_worker_costs_two_waits():
    """A worker that is connected and never says anything more is waited for twice, tau each, and then no more."""
    with background(hostile_draft) as (_, silent), remote_drafts(silent.port) as (remote, registry):
        connected(registry)
        speculation = begin(remote, [7], 40)
        for _ in range(2):
            step(remote, [speculation], COUNTING)
        assert (held(registry), held(registry, "seconds") > 1.9) == (2, True)
        for _ in range(38):
            step(remote, [speculation], COUNTING)
        assert held(registry) == 2


def test_a_silent_draft_worker_costs_short_answers_no_more():
    """Each is over before the worker counts as silent, and yet only two waits are made in all."""
    with background(hostile_draft) as (_, silent), remote_drafts(silent.port, max_wait=0.05) as (remote, registry):
        connected(registry)
        for _ in range(6):
            answer(remote, [7], 5)
        assert held(registry) == 2


def test_an_id_beyond_the_vocabulary_never_reaches_vllm():
    """Such a proposal ends its session; the answer stays the target's."""
    proposal = pb.Proposal(path=0, position=0, token_ids=[8, TARGET.vocab_size])
    with background(hostile_draft) as (_, hostile), remote_drafts(hostile.port) as (remote, registry):
        hostile.victim, hostile.script = 7, [pb.SpeculateResponse(step=pb.DrafterStep(proposals=[proposal]))]
        connected(registry)
        done = answer(remote, [7], 20)
        assert done.tokens == list(range(7, 28))
        assert hostile.attacked is not None
        assert done.stats.tested_tokens == 0
        assert registry.get_sample_value("draftwire_verify_draft_reassignments_total", {"reason": "violation"}) == 1


def test_a_worker_that_goes_and_comes_back():
    """Its drafts are used before and after; between, the answer goes on plainly."""
    port = free_port()
    with remote_drafts(port) as (remote, registry):
        for tokens_per_step in (2, 2):
            with background(lambda: draft_worker(COUNTING, port=port)):
                connected(registry)
                assert answer(remote, [7], 60).stats.tokens_per_step > tokens_per_step
            connected(registry, 0)
            assert answer(remote, [7], 20).stats.tokens_per_step == 1


def test_tokens_count_for_who_proposed_them():
    """8 is tested, and accepted, while the session moves from one draft model to another."""
    with remote_drafts(free_port()) as (remote, registry):
        remote._take(DraftUp(DraftWorker(1, "one", "first", TARGET.max_model_len, 8)))
        speculation = begin(remote, [7], 20)
        remote.supply([speculation])
        said = DrafterStep(proposals=(Proposal(1, 0, 1, (DraftToken(8),)),))
        remote._take(DraftSaid(1, said, time.monotonic(), 0, Backlog()))
        assert remote.proposals(speculation) == [8]
        remote._take(DraftUp(DraftWorker(2, "two", "second", TARGET.max_model_len, 8)))
        remote._take(DraftDown(1))
        remote.supply([speculation])
        assert speculation.link.model == "second"
        remote.commit([Outcome(speculation, (8, 9), offered=1, accepted=1, over=False)])
    names = ("first", "second")
    metric = "speculative_decoding_draft_accepted_tokens_total"
    assert [registry.get_sample_value(metric, {"draft_model": name}) for name in names] == [1, None]


def test_sessions_end_with_their_requests():
    """Finished and aborted requests leave no session at the draft worker."""
    with background(lambda: draft_worker(COUNTING)) as (_, draft), remote_drafts(draft.port) as (remote, registry):
        connected(registry)
        answer(remote, [7], 20)
        aborted = begin(remote, [7], 20)
        step(remote, [aborted], COUNTING)
        assert aborted.link is not None
        remote.drop([aborted])
        assert aborted.link is None
        deadline = time.monotonic() + 5
        while draft._metrics.sessions._value.get():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_stop_ends_the_thread():
    """Nothing is left running, also where a worker's address does not answer."""
    with remote_drafts(free_port()):
        assert any(thread.name == "draft-clients" for thread in threading.enumerate())
    assert not any(thread.name == "draft-clients" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("sampled", "offered", "kept", "tested", "accepted"),
    [
        (1, 0, 1, 0, 0),  # plain decoding
        (1, 3, 1, 1, 0),  # the first proposal was rejected; two behind it were not tested
        (3, 3, 3, 3, 2),  # two accepted, then a correction
        (4, 3, 4, 3, 3),  # all accepted, and the bonus
        (4, 3, 2, 2, 2),  # the answer ended with the second proposal
        (0, 0, 0, 0, 0),  # a piece of a prefill
    ],
)
def test_words_of_an_outcome(sampled: int, offered: int, kept: int, tested: int, accepted: int):
    """What counts as tested and accepted, by the number of tokens that vLLM sampled and kept."""
    stats = Outcome(None, tuple(range(kept)), offered, max(0, sampled - 1), over=False).stats()
    assert (stats.tested_tokens, stats.accepted_tokens, stats.untested_tokens) == (tested, accepted, offered - tested)
    assert stats.committed_tokens == kept
