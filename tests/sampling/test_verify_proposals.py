"""`verify` against a deliberately plain second implementation, and its promises about batches and bad input."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire.errors import EngineError, InvalidArgument
from draftwire.sampling import DrawKey, Purpose, SessionRows, Verdict, draw, target_probs, uniform, verify
from draftwire.sampling.randomness import coupled_key, exponential
from draftwire.sampling.verify import draw_corrections
from draftwire.types import WEIGHT_TOTAL, DraftToken, SamplingParams, Support, VerificationMode

REJECTION, COUPLED = VerificationMode
GREEDY = SamplingParams(temperature=0.0)
VOCAB = 6


def plain_verify(rows, session):
    """One session in Python loops; rows are the p of its positions as lists."""
    tokens = []
    for i, p in enumerate(rows):
        position = session.position + i
        proposal = session.proposals[i] if i < len(session.proposals) else None
        if session.mode is COUPLED and session.sampling.temperature:
            key = coupled_key(session.seed, session.choice, position)
            race = exponential(key, torch.arange(len(p))).tolist()
            winner = min((e / mass, token) for token, (e, mass) in enumerate(zip(race, p, strict=True)) if mass)[1]
            tokens.append(winner)
            if proposal is None or proposal.token != winner:
                break
            continue
        weights = list(p)
        if proposal is not None:
            q = dict(zip(proposal.q.ids, proposal.q.weights, strict=True)) if proposal.q else {proposal.token: 65536}
            u = uniform(session.seed, session.choice, position, Purpose.ACCEPT)
            if u < p[proposal.token] / (q[proposal.token] / 65536):
                tokens.append(proposal.token)
                continue
            weights = [max(mass - q.get(token, 0) / 65536, 0) for token, mass in enumerate(p)]
        mark = uniform(session.seed, session.choice, position, Purpose.CORRECTION) * math.fsum(weights)
        tokens.append(next(t for t in range(len(p)) if sum(weights[: t + 1]) > mark))
        break
    accepted = len(tokens)
    if accepted > len(session.proposals) or session.proposals[accepted - 1].token != tokens[-1]:
        accepted -= 1
    return Verdict(tuple(tokens), accepted, min(accepted + 1, len(session.proposals)))


@st.composite
def supports(draw_value):
    ids = draw_value(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=VOCAB, unique=True))
    cuts = draw_value(
        st.lists(st.integers(1, WEIGHT_TOTAL - 1), min_size=len(ids) - 1, max_size=len(ids) - 1, unique=True)
    )
    edges = [0, *sorted(cuts), WEIGHT_TOTAL]
    return Support(tuple(ids), tuple(b - a for a, b in pairwise(edges)))


PROPOSALS = st.one_of(
    st.integers(0, VOCAB - 1).map(DraftToken),
    supports().flatmap(lambda q: st.sampled_from(q.ids).map(lambda token: DraftToken(token, q))),
)


@st.composite
def sessions(draw_value):
    proposals = draw_value(st.lists(PROPOSALS, max_size=4))
    late_bound = bool(proposals) and draw_value(st.booleans())
    return SessionRows(
        num_rows=len(proposals) + 1 - late_bound,
        proposals=proposals,
        sampling=draw_value(st.sampled_from([GREEDY, SamplingParams(), SamplingParams(temperature=0.4, top_k=3)])),
        mode=draw_value(st.sampled_from(VerificationMode)),
        seed=draw_value(st.integers(0, 2**64 - 1)),
        choice=draw_value(st.integers(0, 3)),
        position=draw_value(st.integers(0, 1000)),
    )


@settings(max_examples=120, deadline=None)
@given(st.lists(sessions(), min_size=1, max_size=5), st.integers(0, 2**32))
def test_verify_matches_the_plain_version(batch, seed):
    """Random batches of greedy, sampled and coupled sessions, late-bound or not: the same verdicts."""
    total = sum(session.num_rows for session in batch)
    logits = torch.randn(total, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    expected, start = [], 0
    for session in batch:
        rows = logits[start : start + session.num_rows]
        start += session.num_rows
        expected.append(plain_verify(target_probs(rows, [session.sampling] * len(rows)).tolist(), session))
    assert verify(logits, batch) == expected


def drafted_batch(vocab, count=24, depth=4):
    """Sessions of all kinds whose proposals were drawn near the target, and their logits."""
    generator = torch.Generator().manual_seed(vocab)
    kinds = [
        (GREEDY, REJECTION),
        (SamplingParams(temperature=0.7), REJECTION),
        (SamplingParams(top_p=0.9), COUPLED),
        (SamplingParams(temperature=1.2, top_k=50, min_p=0.02), REJECTION),
    ]
    logits, batch = [], []
    for i in range(count):
        sampling, mode = kinds[i % len(kinds)]
        rows = torch.randn(depth + 1, vocab, generator=generator) * 3
        keys = [DrawKey(sampling, mode, i, 0, 20 + j, 0) for j in range(depth)]
        proposals = draw(rows[:depth] + 1.5 * torch.randn(depth, vocab, generator=generator), keys)
        num_rows = depth + 1 - i % 2
        logits.append(rows[:num_rows])
        batch.append(SessionRows(num_rows, proposals, sampling, mode, i, 0, 20))
    return logits, batch


@pytest.mark.parametrize("vocab", [7, 513, 20011])
def test_verdicts_do_not_depend_on_the_batch(vocab):
    """Each session alone, in the batch, and in the batch reversed: the same verdicts."""
    logits, batch = drafted_batch(vocab)
    alone = [verify(rows, [session])[0] for rows, session in zip(logits, batch, strict=True)]
    assert verify(torch.cat(logits), batch) == alone
    assert verify(torch.cat(logits[::-1]), batch[::-1]) == alone[::-1]
    assert {verdict.accepted for verdict in alone} >= {0, 1, 4}  # so the batch is not all of one kind


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_cpus_verdicts():
    """The same logits, proposals and keys on the two devices."""
    logits, batch = drafted_batch(513)
    assert verify(torch.cat(logits).cuda(), batch) == verify(torch.cat(logits), batch)


def test_verdict_counts():
    """tested runs up to and including the first rejection; an accepted late-bound proposal leaves no free draw.

    Greedy target: 1, 2, 3.
    """
    logits = torch.eye(4)[[1, 2, 3]]

    def judge(*tokens):
        proposals = [DraftToken(token) for token in tokens]
        return verify(logits, [SessionRows(3, proposals, GREEDY, REJECTION, 0, 0, 0)])[0]

    assert judge(1, 2) == Verdict((1, 2, 3), accepted=2, tested=2)
    assert judge(1, 0) == Verdict((1, 2), accepted=1, tested=2)
    assert judge(0, 2) == Verdict((1,), accepted=0, tested=1)
    assert judge(1, 2, 3) == Verdict((1, 2, 3), accepted=3, tested=3)
    assert judge(1, 2, 0) == Verdict((1, 2, 3), accepted=2, tested=3)
    assert verify(logits[:1], [SessionRows(1, [], GREEDY, REJECTION, 0, 0, 0)]) == [Verdict((1,), 0, 0)]


def test_coupled_tokens_do_not_depend_on_the_proposals():
    """Right, wrong, sparse, late-bound or missing proposals: every output is a prefix of the seed's own sequence."""
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(4))

    def judge(proposals, num_rows):
        rows = SessionRows(num_rows, proposals, SamplingParams(), COUPLED, seed=9, choice=1, position=2)
        return verify(logits[:num_rows], [rows])[0].token_ids

    whole = []
    for position in range(4):
        rows = SessionRows(1, [], SamplingParams(), COUPLED, seed=9, choice=1, position=2 + position)
        whole += verify(logits[position : position + 1], [rows])[0].token_ids
    right = [DraftToken(token) for token in whole]
    wrong = [DraftToken((token + 1) % VOCAB, Support((0, 1, 2, 3, 4, 5), (65531, 1, 1, 1, 1, 1))) for token in whole]
    assert judge(right[:3], 4) == tuple(whole)
    assert judge(right, 4) == tuple(whole)
    for hits in range(4):
        assert judge([*right[:hits], *wrong[hits:3]], 4) == tuple(whole[: hits + 1])


def test_a_residual_without_mass_falls_back_to_p():
    """p below q everywhere, as rounding can make it: the correction comes from p instead of from nothing."""
    q = Support((0, 1), (32768, 32768))
    p = torch.tensor([[0.5 - 1e-9, 0.5 - 1e-9, 0.0]])
    assert draw_corrections(p, [DraftToken(0, q)], [0.9]) == [1]


def test_tokens_without_probability_are_never_drawn():
    """The ends of [0, 1) fall on the first and the last token with mass, not on their neighbours."""
    p = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]] * 2, dtype=torch.float64)
    assert draw_corrections(p, [None, None], [0.0, 1 - 2.0**-53]) == [1, 3]


def test_nothing_to_verify():
    """An empty batch is no error."""
    assert verify(torch.empty(0, VOCAB), []) == []


@pytest.mark.parametrize(("num_rows", "count"), [(0, 0), (1, 2), (3, 1)])
def test_proposals_must_fit_the_rows(num_rows, count):
    """num_rows or num_rows - 1 proposals, at least one row."""
    session = SessionRows(num_rows, [DraftToken(0)] * count, GREEDY, REJECTION, 0, 0, 0)
    with pytest.raises(InvalidArgument, match="proposals"):
        verify(torch.zeros(num_rows, VOCAB), [session])


def test_rows_must_fit_the_sessions():
    """Every row belongs to a session."""
    with pytest.raises(InvalidArgument, match="logits"):
        verify(torch.zeros(3, VOCAB), [SessionRows(2, [DraftToken(0)], GREEDY, REJECTION, 0, 0, 0)])


@pytest.mark.parametrize("mode", VerificationMode)
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams()], ids=["greedy", "sampled"])
def test_broken_logits_are_an_engine_error(mode, sampling):
    """NaN never becomes a token."""
    with pytest.raises(EngineError):
        verify(torch.full((1, VOCAB), torch.nan), [SessionRows(1, [], sampling, mode, 0, 0, 0)])
