"""Which schedules of sending and testing keep the target's law, decided by exact enumeration.

Whether, when and with which q the token at position i is sent or tested may depend on the path before i and on
independent randomness, never on the value drawn at i or later. The right schedules below obey and are exact to 1e-12;
each mutant is a natural shortcut that does not, and the same harness must see its bias. Every schedule is a small
program over `draw` and `verify` themselves: it drafts, decides what arrives, and lets the target judge.
"""

from functools import cache

import pytest
import torch
from support.laws import draw_law, exact_law, verdict_law
from support.stats import ToyChain, total_variation

from draftwire.sampling import DrawKey, SessionRows
from draftwire.types import WEIGHT_TOTAL, DraftToken, SamplingParams, Support, VerificationMode

PLAIN = SamplingParams()
REJECTION = VerificationMode.REJECTION
EXACT = 1e-12
FIRST = 0  # every answer starts after token 0

TARGET = ToyChain(((0.5, 0.2, 0.3), (0.1, 0.6, 0.3), (1.0, 0.0, 0.0)), eos=2)
DRAFT = ToyChain(((0.3, 0.3, 0.4), (0.5, 0.3, 0.2), (1.0, 0.0, 0.0)), eos=2)
COIN = ToyChain(((0.5, 0.5), (0.5, 0.5)), eos=1)
LOADED = ToyChain(((0.7, 0.3), (0.7, 0.3)))
MEMORY = ToyChain(((0.5, 0.5), (0.9, 0.1)))  # after a 1 another 1 is unlikely


class World:
    """A target and a draft, and the choices of one run."""

    def __init__(self, choose, target, draft):
        self.choose, self.target, self.draft = choose, target, draft

    def propose(self, last):
        """What the draft sends for the position after `last`."""
        return self.choose(_drawn(self.draft, last))

    def propose_block(self, last, count, *, past_eos=False):
        """`count` proposals in a row; fewer after an eos, unless the draft goes on past it."""
        block = []
        while len(block) < count and (past_eos or last != self.draft.eos):
            block.append(self.propose(last))
            last = block[-1].token
        return block

    def judge(self, last, proposals, *, bonus=True):
        """The tokens that the target commits after `last`; bonus=False makes the last proposal a late-bound one."""
        verdict = self.choose(_judged(self.target, last, tuple(proposals), len(proposals) + bonus))
        return verdict.token_ids

    def evenly(self, *options):
        """A choice that is independent of every token."""
        return self.choose(dict.fromkeys(options, 1 / len(options)))


@cache
def _drawn(chain, last):
    return draw_law(chain.logits([last])[0], DrawKey(PLAIN, REJECTION, seed=1, choice=0, position=0, path=0))


@cache
def _judged(chain, last, proposals, num_rows):
    context = [last, *(proposal.token for proposal in proposals)][:num_rows]
    rows = SessionRows(num_rows, proposals, PLAIN, REJECTION, seed=1, choice=0, position=0)
    return verdict_law(chain.logits(context), rows)


def output_law(step, target, draft, length):
    """The law of answers when `step(world, last)` commits tokens again and again."""

    def answer(choose):
        world, tokens = World(choose, target, draft), ()
        while not target.is_complete(tokens, length):
            tokens += step(world, tokens[-1] if tokens else FIRST)
        return target.cut(tokens, length)

    return exact_law(answer)


# Right schedules.


def whatever_arrived(world, last):
    """Some number of proposals is there, independent of what they say; an eos ends a block, and it is all tested."""
    return world.judge(last, world.propose_block(last, world.evenly(0, 1, 2)))


def late_bound(world, last):
    """The last proposal is tested in place of the free draw."""
    return world.judge(last, world.propose_block(last, world.evenly(1, 2)), bonus=False)


def surviving_path(world, last):
    """Drafted ahead in one go, tested piece by piece; the rest is tested only if its path survived."""
    block = world.propose_block(last, 2)
    tokens = world.judge(last, block[:1], bonus=False)
    if len(block) == 2 and tokens == (block[0].token,):
        tokens += world.judge(tokens[-1], block[1:])
    return tokens


def fixed_coalescing(world, last):
    """Proposals travel in twos; a single one waits for its second even if it is an eos: the draft goes on past it."""
    block = world.propose_block(last, world.evenly(0, 1, 2), past_eos=True)
    return world.judge(last, block if len(block) == 2 else [])


def hybrid_before_drawing(world, last):
    """Which drafter serves a position is decided by the path before it: the n-gram says 1 after 0."""
    return world.judge(last, [DraftToken(1)] if last == 0 else [world.propose(last)])


def stop_before_drawing(world, last):
    """The draft stops where q is flat, which it knows before it draws."""
    return world.judge(last, [world.propose(last)] if max(world.draft.rows[last]) > 0.45 else [])


# Mutants, and on which toy each shows its bias.


def flush_on_eos(world, last):
    """Coalescing, but an eos is flushed at once: a step that comes early sees eos proposals only."""
    proposal = world.propose(last)
    return world.judge(last, [proposal] if proposal.token == world.draft.eos else [])


def plain_if_fewer_than_two(world, last):
    """Plain decoding if fewer than m = 2 came: a block that ends with an early eos is short and is never tested."""
    block = world.propose_block(last, 2)
    return world.judge(last, block if len(block) == 2 else [])


def hybrid_after_drawing(world, last):
    """Draws from the model, and calls the token a point mass because the n-gram says the same."""
    proposal = world.propose(last)
    return world.judge(last, [DraftToken(0) if proposal.token == 0 else proposal])


def gate_at_the_verifier(world, last):
    """Ignores a proposal whose q(x) is small and draws freely."""
    proposal = world.propose(last)
    likely = proposal.q.weights[proposal.q.ids.index(proposal.token)] > WEIGHT_TOTAL / 2
    return world.judge(last, [proposal] if likely else [])


def gate_at_the_draft(world, last):
    """llama.cpp's p_min: stops at a drawn token of small q(x) and does not send it, but sends those before."""
    block = []
    for proposal in world.propose_block(last, 2):
        if proposal.q.weights[proposal.q.ids.index(proposal.token)] < WEIGHT_TOTAL / 2:
            break
        block.append(proposal)
    return world.judge(last, block)


def withhold_the_block(world, last):
    """Withholds two tokens because the second was unlikely."""
    block = world.propose_block(last, 2)
    unlikely = block[1].q.weights[block[1].q.ids.index(block[1].token)] < WEIGHT_TOTAL / 5
    return world.judge(last, [] if unlikely else block)


def rounded_to_quarters(world, last):
    """Draws from floats (0.7, 0.3) and sends weights rounded to quarters (0.75, 0.25)."""
    token = world.choose(dict(enumerate(world.draft.rows[last])))
    return world.judge(last, [DraftToken(token, Support((0, 1), (3 * WEIGHT_TOTAL // 4, WEIGHT_TOTAL // 4)))])


def rounded_to_weights(world, last):
    """Draws from floats and sends the weights of `draw`: wrong in the fifth digit only."""
    token = world.choose(dict(enumerate(world.draft.rows[last])))
    return world.judge(last, [DraftToken(token, world.propose(last).q)])


RIGHT = [whatever_arrived, late_bound, surviving_path, fixed_coalescing, hybrid_before_drawing, stop_before_drawing]
MUTANTS = [
    (flush_on_eos, COIN, 0.25),
    (plain_if_fewer_than_two, COIN, 0.25),
    (hybrid_after_drawing, COIN, 0.25),
    (gate_at_the_verifier, LOADED, 0.21),
    (gate_at_the_draft, LOADED, 0.21),
    (withhold_the_block, MEMORY, 0.025),
    (rounded_to_quarters, LOADED, 0.7 - 0.7 * 0.7 / 0.75),
]


@pytest.mark.parametrize("step", RIGHT, ids=lambda step: step.__name__)
@pytest.mark.parametrize(("target", "draft"), [(TARGET, DRAFT), (COIN, COIN)], ids=["p differs from q", "p is q"])
def test_right_schedules_keep_the_targets_law(step, target, draft):
    """Answers of up to three tokens have exactly the target's law, where drafts are poor and where they are perfect."""
    law = output_law(step, target, draft, length=3)
    assert total_variation(law, target.answer_law(FIRST, 3)) < EXACT


@pytest.mark.parametrize(("step", "toy", "bias"), MUTANTS, ids=lambda value: getattr(value, "__name__", None))
def test_mutants_are_biased_and_seen(step, toy, bias):
    """The first token's total variation from the target is the value computed by hand, although p is q."""
    law = output_law(step, toy, toy, length=1)
    assert total_variation(law, toy.answer_law(FIRST, 1)) == pytest.approx(bias, abs=1e-4)


def test_even_the_smallest_rounding_is_seen():
    """Rounding to 2**-16 after the draw biases by 1e-6 and more: far above what a right schedule shows."""
    law = output_law(rounded_to_weights, LOADED, LOADED, length=1)
    assert 1e-6 < total_variation(law, LOADED.answer_law(FIRST, 1)) < 1e-4


def test_draw_sends_what_it_drew_from():
    """The law of the token that `draw` sends is the support that it sends with it, weight for weight."""
    logits = torch.tensor([0.1, 2.0, -0.5, -20.0, 1.1, 0.3, -3.0])
    law = draw_law(logits, DrawKey(PLAIN, REJECTION, seed=1, choice=0, position=0, path=0))
    supports = {proposal.q for proposal in law}
    assert len(supports) == 1
    support = supports.pop()
    assert {proposal.token: mass * WEIGHT_TOTAL for proposal, mass in law.items()} == dict(
        zip(support.ids, support.weights, strict=True)
    )
