"""Exact laws of the real sampling code, by exhaustion instead of by sampling.

`pieces` finds, to the last of the 53 bits of a uniform number, where a function of it changes its value. `draw_law` and
`verdict_law` apply that to `draw` and `verify` themselves, with their random numbers replaced by chosen ones, so the
probabilities come from the code under test and not from a copy of its formulas. `exact_law` runs a little random
program (a schedule of drafting and verifying) through every outcome of its choices and adds up the probabilities.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar
from unittest.mock import patch

from torch import Tensor

from draftwire.sampling import DrawKey, Purpose, SessionRows, Verdict, draw, verify
from draftwire.types import DraftToken

T = TypeVar("T", bound=Hashable)
Choose = Callable[[Mapping[T, float]], T]
Script = dict[tuple[int, Purpose], float]

_STEPS = 1 << 53
LARGEST_UNIFORM = (_STEPS - 1) / _STEPS


def pieces(outcome: Callable[[float], T]) -> dict[T, float]:
    """The law of outcome(u) for uniform u in [0, 1); every value must fill one interval of u."""
    law: dict[T, float] = {}
    start, last = 0, outcome(LARGEST_UNIFORM)
    while start < _STEPS:
        value = outcome(start / _STEPS)
        assert value not in law, f"{value} fills more than one interval"
        low, high = start, _STEPS
        while value != last and high - low > 1:  # outcome is `value` at low, and not any more at high
            middle = (low + high) // 2
            low, high = (middle, high) if outcome(middle / _STEPS) == value else (low, middle)
        law[value] = (high - start) / _STEPS
        start = high
    return law


def exact_law(program: Callable[[Choose], T]) -> dict[T, float]:
    """The law of a program whose only randomness is choose(law) -> outcome."""
    law: dict[T, float] = {}
    pending: list[list[int]] = [[]]
    while pending:
        prefix = pending.pop()
        taken: list[int] = []
        mass = 1.0

        def choose(options: Mapping[T, float], prefix: list[int] = prefix, taken: list[int] = taken) -> T:
            nonlocal mass
            likely = [(value, p) for value, p in options.items() if p > 0]
            index = prefix[len(taken)] if len(taken) < len(prefix) else 0
            if len(taken) >= len(prefix):
                pending.extend([*taken, other] for other in range(1, len(likely)))
            taken.append(index)
            mass *= likely[index][1]
            return likely[index][0]

        outcome = program(choose)
        law[outcome] = law.get(outcome, 0.0) + mass
    return law


def draw_law(logits: Tensor, key: DrawKey) -> dict[DraftToken, float]:
    """The law of what `draw` sends for one row of logits [V]."""

    def outcome(u: float) -> DraftToken:
        with patch("draftwire.sampling.support.uniform", lambda *_: u):
            return draw(logits[None], [key])[0]

    return pieces(outcome)


def verdict_law(logits: Tensor, session: SessionRows) -> dict[Verdict, float]:
    """The law of the verdict on one session with logits [num_rows, V], in rejection mode or greedy."""

    def run(script: Script) -> Verdict:
        def scripted(seed: int, choice: int, position: int, purpose: Purpose) -> float:
            assert (seed, choice) == (session.seed, session.choice)
            return script.get((position, purpose), 0.5)

        with patch("draftwire.sampling.verify.uniform", scripted):
            return verify(logits, [session])[0]

    law: dict[Verdict, float] = {}

    def add_draws(reach: float, script: Script, position: int) -> None:
        for verdict, p in pieces(lambda u: run(script | {(position, Purpose.CORRECTION): u})).items():
            law[verdict] = law.get(verdict, 0.0) + reach * p

    reach, script = 1.0, Script()
    for index in range(len(session.proposals)):
        position = session.position + index
        test = (position, Purpose.ACCEPT)
        passes = _chance_to_pass(run, script, test, index)
        if passes < 1:
            add_draws(reach * (1 - passes), script | {test: LARGEST_UNIFORM}, position)
        if passes == 0:
            return law
        reach, script = reach * passes, script | {test: 0.0}
    if len(session.proposals) < session.num_rows:
        add_draws(reach, script, session.position + len(session.proposals))
    else:
        law[run(script)] = reach
    return law


def _chance_to_pass(run: Callable[[Script], Verdict], script: Script, test: tuple[int, Purpose], index: int) -> float:
    return pieces(lambda u: run(script | {test: u}).accepted > index).get(True, 0.0)
