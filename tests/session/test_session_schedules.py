"""Both ends played against each other: every schedule of small worlds, and thousands of random ones of larger worlds.

What is checked in every state stands in support.session_sim: no token lost, repeated or wrongly offered, and once
everything is delivered both ends agree and a new guess still arrives. The mutants show that these checks see mistakes.
"""

import random
from dataclasses import replace

import pytest
from support import session_mutants as mutants
from support.session_sim import SessionSim, World, explore

from draftwire.errors import ProtocolViolation

# A world, how deep every order of actions is tried, and at least how many states that must reach.
UNMERGED = (World(windows=(2,), message_tokens=()), 12, 3500)
CHANGING_WINDOW = (World(windows=(2, 1), k=1, message_tokens=()), 8, 5000)
MERGED = (World(windows=(2,), message_tokens=(1, 64)), 11, 3000)
LOSSES = (World(windows=(2,), losses=1), 8, 2500)


@pytest.mark.parametrize(
    ("world", "depth", "at_least"),
    [UNMERGED, CHANGING_WINDOW, MERGED, LOSSES],
    ids=["unmerged", "changing-window", "merged", "losses"],
)
def test_every_schedule_of_a_small_world(world: World, depth: int, at_least: int):
    """Two tokens, a window of two, every order of drawing, sending, delivering, verifying, and (in the last) losing."""
    assert explore(world, depth) >= at_least


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules(seed: int):
    """A hundred schedules of 80 actions each, with a draft that is usually right, so that paths live and die."""
    play_many(random.Random(seed), games=100)


def play_many(choose: random.Random, games: int, **parts: type) -> None:
    """That many random games, with the given parts in place of the real ones."""
    for _ in range(games):
        play(replace(random_world(choose), **parts), choose, actions=80)


def random_world(choose: random.Random) -> World:
    """Any vocabulary, windows, sizes of messages and number of losses."""
    return World(
        vocab_size=choose.randint(2, 9),
        windows=tuple(choose.sample(range(9), choose.randint(1, 3))),
        k=choose.randint(1, 6),
        length=60,
        message_tokens=choose.choice([(), (64,), (1, 3, 64)]),
        losses=choose.choice([0, 0, 2]),
    )


def play(world: World, choose: random.Random, actions: int) -> None:
    """Random actions, then silence."""
    sim = SessionSim(world)
    right = choose.random()
    for _ in range(actions):
        possible = sim.actions()
        if not possible:
            break
        name, argument = choose.choice(possible)
        if name == "draw" and choose.random() < right:
            argument = world.target(tuple(sim.drafter.tokens))
        sim.apply((name, argument))
    sim.settle()


MUTANTS = {
    mutants.ComparesEvents: ("verifier", UNMERGED),
    mutants.NoFloor: ("verifier", UNMERGED),
    mutants.FloorAtLatestCommit: ("verifier", UNMERGED),
    mutants.ComparesAtCommitOnly: ("verifier", UNMERGED),
    mutants.DropsForWantOfRoom: ("verifier", UNMERGED),
    mutants.CreditOfLatestCommit: ("verifier", CHANGING_WINDOW),
    mutants.DrawsAgain: ("drafter", UNMERGED),
    mutants.NewPathAtEveryCommit: ("drafter", UNMERGED),
    mutants.PathsCounted: ("drafter", UNMERGED),
    mutants.NeverBeginsAPath: ("drafter", UNMERGED),
    mutants.MergesToTheFirstNumber: ("verifier_outbox", MERGED),
    mutants.SendsTheLatestCommitOnly: ("verifier_outbox", MERGED),
    mutants.DropsGuessesOnAJump: ("drafter_outbox", MERGED),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_every_mutant_is_caught(mutant: type):
    """Walking the same small world with the mistake in it fails."""
    part, (world, depth, _) = MUTANTS[mutant]
    with pytest.raises((AssertionError, ProtocolViolation)):
        explore(replace(world, **{part: mutant}), depth)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_random_schedules_catch_every_mutant_too(mutant: type):
    """So the random schedules are not blind, either."""
    part, _ = MUTANTS[mutant]
    with pytest.raises((AssertionError, ProtocolViolation)):
        play_many(random.Random(0), games=1000, **{part: mutant})
