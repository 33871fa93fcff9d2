"""Branches: what a session's text may become where its path is wrong, and how likely that is. Pure bookkeeping.

A path is a line of guesses. Where the draft guessed a token it thought of others, too; if the target says one of those,
its commit refutes the path, and the draft would begin the next one from nothing. A branch is that next path, begun in
advance: a root, the token that may come instead, and what the draft drew behind it. (Kumar, Dao, May, "Speculative
speculative decoding", arXiv 2603.03251, prepare for a verifier's outcomes in this way.)

Nothing here draws or sends. A branch is sent only when the commit that is its root's beginning has come, and then it is
what the draft would draw there, drawn earlier: which branches there are decides when a guess is made, never which.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from draft_service.drafters.base import Key
from draft_service.session import Session
from draftwire.session import Open
from draftwire.types import DraftToken, VerificationMode

#: How often a looked-up guess is right (draft_service.drafters.hybrid).
LOOKUP_CHANCE = 0.83

#: What is less likely to be of use than this is not prepared for.
LEAST_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class Guess:
    """A position as the draft sees it: the chance that the target says what stands there, and others with theirs."""

    chance: float
    others: Sequence[tuple[int, float]]


def judge(opening: Open, token: int, view: Sequence[tuple[int, float]]) -> Guess:
    """What drawing `token` from a distribution with these likeliest tokens says.

    Where both sides choose by the same rule (greedy, coupled) the target says a token about as often as the draft gives
    it chance. Where both draw, a token that was drawn is kept more often than that: with chance 1/2 even if it is rare.
    """
    chances = dict(view)
    q = chances.pop(token, 0.0)
    draws = opening.sampling.temperature > 0 and opening.mode is VerificationMode.REJECTION
    chance = (1 + q) / 2 if draws else q
    share = (1 - chance) / max(1 - q, 1e-6)
    return Guess(chance, [(other, other_chance * share) for other, other_chance in chances.items()])


@dataclass(slots=True)
class Branch:
    """A `Text` that begins like a session's path and goes on with another token, its root.

    Attributes:
        key: names its place in the model drafter.
        opening: the session's.
        path: no other text of the session has it, so its draws are independent of all others.
        root: the root's position.
        tokens: all up to the root, then what was drawn.
        drawn: what was drawn, in order.
        guesses: what the draft thinks of the drawn positions.
        limit: most tokens that may be drawn.
    """

    key: Key
    opening: Open
    path: int
    root: int
    tokens: list[int]
    limit: int
    drawn: list[DraftToken] = field(default_factory=list)
    guesses: dict[int, Guess] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        """Were it the session's path, all up to the root would be final."""
        return self.root + 1

    @property
    def room(self) -> int:
        """How many more tokens may be drawn."""
        return self.limit - len(self.drawn)

    @property
    def chance(self) -> float:
        """That the target says all that was drawn, once it said the root."""
        chance = 1.0
        for guess in self.guesses.values():
            chance *= guess.chance
        return chance

    def note(self, token: int, view: Sequence[tuple[int, float]]) -> None:
        """`token` is drawn next, from a distribution with these likeliest tokens."""
        self.guesses[len(self.tokens)] = judge(self.opening, token, view)

    def append(self, drawn: Sequence[DraftToken]) -> None:
        """Record what was drawn."""
        self.drawn += drawn
        self.tokens += [guess.token for guess in drawn]


class Trunk:
    """A session with its branches; to the model a `Text` like any other."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.branches: list[Branch] = []
        self.guesses: dict[int, Guess] = {}
        self._known_path = session.path
        self._standing = len(session.tokens)  # a prefix of the path that no commit changed since the last `follow`

    @property
    def opening(self) -> Open:
        """The session's."""
        return self.session.opening

    @property
    def tokens(self) -> Sequence[int]:
        """The session's."""
        return self.session.tokens

    @property
    def committed(self) -> int:
        """The session's."""
        return self.session.committed

    @property
    def path(self) -> int:
        """The session's."""
        return self.session.path

    @property
    def room(self) -> int:
        """The session's."""
        return self.session.room

    def note(self, token: int, view: Sequence[tuple[int, float]]) -> None:
        """As Branch.note."""
        self.guesses[len(self.tokens)] = judge(self.opening, token, view)

    def truncate(self, length: int) -> None:
        """A commit came; of the tokens before it the first `length` stand."""
        self._standing = min(self._standing, length)

    @property
    def is_refuted(self) -> bool:
        """Whether a commit refuted the path since the last `follow`."""
        return self.path != self._known_path

    def follow(self) -> tuple[Branch | None, list[Branch]]:
        """Catch up with the commits that came: (the branch that is the session's path now, those that are over).

        A branch that was hit has more tokens than the session, whose tokens it begins with; it is over, too.
        """
        before, self.branches = self.branches, []
        hit = None
        if self.path == self._known_path:
            self.branches = [branch for branch in before if branch.root >= self.committed]
        else:
            hit = next((branch for branch in before if self._is_hit(branch)), None)
            self.guesses = {i: guess for i, guess in self.guesses.items() if i < self._standing}
            if hit:
                self.guesses.update(hit.guesses)
        for position in [position for position in self.guesses if position < self.committed]:
            del self.guesses[position]
        self._known_path, self._standing = self.path, len(self.tokens)
        return hit, [branch for branch in before if branch not in self.branches]

    def _is_hit(self, branch: Branch) -> bool:
        now = self.tokens[branch.root :]
        return (
            branch.root <= self._standing
            and 0 < len(now) < len(branch.tokens) - branch.root
            and (branch.tokens[branch.root : branch.root + len(now)] == now)
        )


@dataclass(frozen=True, slots=True)
class Prospect:
    """A guess that could be prepared: the next of `branch`, or the first behind a root that has no branch yet.

    Attributes:
        hit: the chance that the next path begins with the root.
        reach: the chance that the target comes to the prepared guess's position on this way.
        root: position and token.
    """

    hit: float
    reach: float
    trunk: Trunk
    root: tuple[int, int]
    branch: Branch | None


def prospects(trunk: Trunk) -> Iterator[Prospect]:
    """All that could be prepared for a session, and its branches."""
    begun = {(branch.root, branch.tokens[branch.root]): branch for branch in trunk.branches}
    reach = 1.0
    for position in range(trunk.committed, len(trunk.tokens)):
        guess = trunk.guesses.get(position)
        for token, chance in guess.others if guess else ():
            branch = begun.get((position, token))
            hit = reach * chance
            yield Prospect(hit, hit * branch.chance if branch else hit, trunk, (position, token), branch)
        reach *= guess.chance if guess else LOOKUP_CHANCE
        if reach < LEAST_CHANCE:
            return
