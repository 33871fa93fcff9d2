"""The law of the output is the target's, to 1e-12, by enumeration of the real `draw` and `verify`."""

import pytest
import torch
from support.laws import draw_law, pieces, verdict_law
from support.stats import total_variation

from draftwire.sampling import DrawKey, SessionRows, reference, target_probs, verify_draft_tokens
from draftwire.types import WEIGHT_TOTAL, DraftToken, SamplingParams, Support, VerificationMode

REJECTION = VerificationMode.REJECTION
PLAIN = SamplingParams()
EXACT = 1e-12


def session(proposals, num_rows, sampling=PLAIN):
    return SessionRows(num_rows, proposals, sampling, REJECTION, seed=7, choice=0, position=3)


def first_token_law(target_logits, sent_law, num_rows, sampling=PLAIN):
    """The law of the token that row 0 decides, over what the draft sends and the verdict on it."""
    law = {}
    for proposal, sent in sent_law.items():
        for verdict, p in verdict_law(target_logits[:num_rows], session([proposal], num_rows, sampling)).items():
            law[verdict.token_ids[0]] = law.get(verdict.token_ids[0], 0.0) + sent * p
    return law


def as_law(probs):
    return dict(enumerate(probs.tolist()))


@pytest.fixture
def target_logits():
    return torch.randn(2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1.5


DRAFTS = {
    "sparse": {DraftToken(t, Support((4, 0, 1, 2), (1, 30000, 30000, 5535))): w / WEIGHT_TOTAL
               for t, w in ((4, 1), (0, 30000), (1, 30000), (2, 5535))},
    "truncated": {DraftToken(t, Support((3, 2), (65535, 1))): w / WEIGHT_TOTAL for t, w in ((3, 65535), (2, 1))},
    "point mass": {DraftToken(2): 1.0},
}  # fmt: skip


@pytest.mark.parametrize("num_rows", [1, 2], ids=["late-bound", "with a bonus row"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_law_is_the_targets(target_logits, draft, num_rows):
    """Whatever the support of q, and late-bound or not, the decided token has law p."""
    p = target_probs(target_logits, [PLAIN] * 2)[0]
    assert total_variation(first_token_law(target_logits, DRAFTS[draft], num_rows), as_law(p)) < EXACT


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=2),
        SamplingParams(temperature=1.3, top_p=0.7, min_p=0.05),
    ],
    ids=str,
)
def test_law_is_the_processed_targets(target_logits, sampling):
    """Draft and target process their own logits; the law is the processed target's, also if it excludes proposals."""
    draft_logits = target_logits[1] - 0.5 * target_logits[0]
    sent = draw_law(draft_logits, DrawKey(sampling, REJECTION, seed=7, choice=0, position=3, path=0))
    p = target_probs(target_logits[:1], [sampling])[0]
    assert total_variation(first_token_law(target_logits, sent, 2, sampling), as_law(p)) < EXACT


def test_greedy_accepts_a_sparse_draft_iff_it_is_the_argmax(target_logits):
    """Temperature 0 leaves nothing to chance, whatever q says."""
    best = int(target_logits[0].argmax())
    other = (best + 1) % 5
    q = Support((best, other), (1, 65535))
    greedy = SamplingParams(temperature=0.0)
    accepted = verdict_law(target_logits[:1], session([DraftToken(best, q)], 1, greedy))
    rejected = verdict_law(target_logits[:1], session([DraftToken(other, q)], 1, greedy))
    assert [(v.token_ids, v.accepted, v.tested, p) for v, p in accepted.items()] == [((best,), 1, 1, 1.0)]
    assert [(v.token_ids, v.accepted, v.tested, p) for v, p in rejected.items()] == [((best,), 0, 1, 1.0)]


def test_joint_law_of_a_block(target_logits):
    """A block of two proposals and a bonus: the three tokens are jointly distributed as the target's product.

    The toy's rows do not depend on earlier tokens, so every prefix of the output must have the product law.
    """
    logits = torch.cat([target_logits, target_logits[:1] * 0.5])
    p = target_probs(logits, [PLAIN] * 3)
    sent = DRAFTS["sparse"]
    decided = {}  # mass of each (first, second) among outputs of two or more tokens, and of each lone first
    for x, qx in sent.items():
        for y, qy in sent.items():
            for verdict, mass in verdict_law(logits, session([x, y], 3)).items():
                key = verdict.token_ids[:2]
                decided[key] = decided.get(key, 0.0) + qx * qy * mass
    first = {t: sum(mass for key, mass in decided.items() if key[0] == t) for t in range(5)}
    assert total_variation(first, as_law(p[0])) < EXACT
    for t in range(5):
        pairs = {key[1]: mass for key, mass in decided.items() if len(key) == 2 and key[0] == t}
        reached = sum(pairs.values())
        if reached:
            assert total_variation({key: mass / reached for key, mass in pairs.items()}, as_law(p[1])) < EXACT


def test_equal_p_and_q_accept_always():
    """p(x) = q(x) is accepted for every u in [0, 1): the comparison is strict and u never reaches 1."""
    q = Support((0, 1), (32768, 32768))
    law = verdict_law(torch.zeros(1, 2), session([DraftToken(1, q)], 1))
    assert [(verdict.accepted, mass) for verdict, mass in law.items()] == [(1, 1.0)]


def test_a_token_without_probability_is_never_accepted():
    """p(x) = 0 is rejected even at u = 0."""
    logits = torch.tensor([[0.0, -torch.inf]])
    law = verdict_law(logits, session([DraftToken(1)], 1))
    assert [(verdict.token_ids, verdict.accepted, mass) for verdict, mass in law.items()] == [((0,), 0, 1.0)]


def test_reference_has_the_targets_law():
    """The textbook function, enumerated like the rest: one draft token of law q turns into a first token of law p."""
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    q = torch.tensor([[0.4, 0.35, 0.25, 0.0]], dtype=torch.float64)
    law = {}
    for x in range(3):

        def run(accept, drawn, x=x):
            numbers = iter([accept, drawn])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(reference, "_uniform", lambda generator: next(numbers))
                tokens, first_rejected = verify_draft_tokens(p, q, torch.tensor([x]), torch.Generator())
                assert len(tokens) == first_rejected + 1
                return int(tokens[0]), first_rejected

        passes = pieces(lambda u, run=run: run(u, 0.5)[1] == 1).get(True, 0.0)
        law[x] = law.get(x, 0.0) + q[0, x].item() * passes
        if passes < 1:
            for (token, _), mass in pieces(lambda u, run=run: run(1 - 2.0**-53, u)).items():
                law[token] = law.get(token, 0.0) + q[0, x].item() * (1 - passes) * mass
    assert total_variation(law, as_law(p[0])) < EXACT
