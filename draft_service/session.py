"""A session as the draft worker holds it: the protocol's state, and what the draft model adds to its rules."""

from collections.abc import Iterable, Sequence

from draftwire.errors import ProtocolViolation
from draftwire.session import Commit, DrafterSession, Open, Proposal
from draftwire.types import DraftToken, ModelInfo


class Session:
    """A `DrafterSession` within the limits of one draft model.

    Args:
        opening: begins the session.
        info: the draft model.

    Attributes:
        opening: sampling, mode, seed and choice stand in it.
        opened: whether the verifier was told that drafting begins; the loop's to set.
        told_idle: number of the commit after which the verifier was last told Idle, -1 = never; the loop's to set.

    Raises ProtocolViolation if the Open breaks a rule.
    """

    def __init__(self, opening: Open, info: ModelInfo) -> None:
        self.opening = opening
        self.opened = False
        self.told_idle = -1
        self._info = info
        self._check_ids("open", opening.token_ids)
        self._protocol = DrafterSession(opening)

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens, then what was drafted beyond."""
        return self._protocol.tokens

    @property
    def committed(self) -> int:
        """How many of `tokens` are final."""
        return self._protocol.committed

    @property
    def path(self) -> int:
        """The current path."""
        return self._protocol.path

    @property
    def number(self) -> int:
        """Number of the last commit taken; 0 = Open."""
        return self._protocol.number

    @property
    def room(self) -> int:
        """How many more tokens may be drafted now: credit, within the model's length."""
        return max(0, min(self._protocol.room, self._info.max_model_len - len(self._protocol.tokens)))

    @property
    def is_at_limit(self) -> bool:
        """Whether the final tokens alone fill the model's length, so that nothing can be drafted any more."""
        return self._protocol.committed >= self._info.max_model_len

    def receive(self, commit: Commit) -> int:
        """Take a commit; returns how many of the former `tokens` still stand. Raises ProtocolViolation."""
        self._check_ids("commit", commit.token_ids)
        return self._protocol.receive(commit)

    def draft(self, drawn: Sequence[DraftToken]) -> Proposal:
        """Append what was drawn; returns the message that says so."""
        return self._protocol.draft(drawn)

    def _check_ids(self, message: str, token_ids: Iterable[int]) -> None:
        largest = max(token_ids, default=0)
        if largest >= self._info.vocab_size:
            raise ProtocolViolation(f"{message}: token {largest} is not below vocab_size {self._info.vocab_size}")
