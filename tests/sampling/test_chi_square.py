"""Whole answers of the real `draw` and `verify`, with their real randomness, against the target's law.

Thousands of sessions draft and verify side by side, each with its own seed and an irregular number of proposals a step.
"""

import random
from collections import Counter

import pytest
from support.stats import P_VALUE_PASS, P_VALUE_REJECT, ToyChain, chi_square_p

from draftwire.sampling import DrawKey, SessionRows, draw, verify
from draftwire.types import SamplingParams, VerificationMode

EOS = 5
TARGET = ToyChain(
    (
        (0.30, 0.25, 0.20, 0.10, 0.05, 0.10),
        (0.05, 0.05, 0.50, 0.20, 0.10, 0.10),
        (0.60, 0.10, 0.02, 0.08, 0.10, 0.10),
        (0.16, 0.16, 0.16, 0.16, 0.16, 0.20),
        (0.00, 0.30, 0.00, 0.00, 0.40, 0.30),
        (1.00, 0.00, 0.00, 0.00, 0.00, 0.00),
    ),
    eos=EOS,
)
DRAFT = ToyChain(
    (
        (0.10, 0.45, 0.10, 0.10, 0.05, 0.20),
        (0.15, 0.05, 0.40, 0.30, 0.10, 0.00),
        (0.30, 0.20, 0.12, 0.18, 0.10, 0.10),
        (0.02, 0.30, 0.16, 0.16, 0.16, 0.20),
        (0.20, 0.20, 0.20, 0.00, 0.20, 0.20),
        (1.00, 0.00, 0.00, 0.00, 0.00, 0.00),
    ),
    eos=EOS,
)
LENGTH = 4
SESSIONS = 4000
PLAIN = SamplingParams()


def tokens_of(block):
    return [proposal.token for proposal in block]


def generate(mode, *, sent=lambda block: block, draft=DRAFT, seed=1):
    """One answer a session; `sent` filters each session's block before it is tested (the schedule)."""
    chance = random.Random(seed)
    answers = [()] * SESSIONS
    step = 0
    while running := [s for s in range(SESSIONS) if not TARGET.is_complete(answers[s], LENGTH)]:
        step += 1  # also the number of the path: every step drafts anew
        blocks = {s: [] for s in running}
        open_blocks = {s: chance.randrange(4) for s in running}  # session -> proposals wanted
        while open_blocks := {
            s: wanted
            for s, wanted in open_blocks.items()
            if len(blocks[s]) < wanted and EOS not in tokens_of(blocks[s])
        }:
            last = [(0, *answers[s], *tokens_of(blocks[s]))[-1] for s in open_blocks]
            keys = [DrawKey(PLAIN, mode, seed, s, len(answers[s]) + len(blocks[s]), step) for s in open_blocks]
            for s, proposal in zip(open_blocks, draw(draft.logits(last), keys), strict=True):
                blocks[s].append(proposal)
        sessions, context = [], []
        for s in running:
            proposals = sent(blocks[s])
            late_bound = bool(proposals) and chance.random() < 0.5
            num_rows = len(proposals) + 1 - late_bound
            context += [(0, *answers[s])[-1], *tokens_of(proposals)][:num_rows]
            sessions.append(SessionRows(num_rows, proposals, PLAIN, mode, seed, s, len(answers[s])))
        for s, verdict in zip(running, verify(TARGET.logits(context), sessions), strict=True):
            answers[s] = TARGET.cut(answers[s] + verdict.token_ids, LENGTH)
    return answers


@pytest.mark.parametrize("mode", VerificationMode)
def test_answers_follow_the_target(mode):
    """Sampled answers pass the chi-square test in both modes."""
    assert chi_square_p(Counter(generate(mode)), TARGET.answer_law(0, LENGTH)) > P_VALUE_PASS


def test_a_biased_schedule_fails():
    """The test can fail: a block whose last token is not eos is held back (coalescing that flushes on eos)."""
    flushing = generate(
        VerificationMode.REJECTION, sent=lambda block: block if block and block[-1].token == EOS else []
    )
    assert chi_square_p(Counter(flushing), TARGET.answer_law(0, LENGTH)) < P_VALUE_REJECT


def test_the_drafts_law_fails():
    """The test can fail: answers of the draft are not the target's."""
    drafted = Counter(generate(VerificationMode.REJECTION))
    assert chi_square_p(drafted, DRAFT.answer_law(0, LENGTH)) < P_VALUE_REJECT


def test_coupled_output_is_independent_of_the_draft():
    """With the same seeds, no proposals, a poor draft's and the target's own give the same answers, token for token."""
    coupled = VerificationMode.COUPLED
    usual = generate(coupled)
    assert usual == generate(coupled, sent=lambda block: [])
    assert usual == generate(coupled, draft=TARGET)
