"""The draft worker's end of a session: what is committed, what it has guessed beyond, and on which path.

The draft never waits for a verdict. It guesses ahead within its credit, and when a commit comes it compares tokens:
equal, and the path goes on; different, and it cuts back to the first difference and begins a path that bears the
commit's number. Nothing here knows a clock, a socket or a model.
"""

from collections.abc import Sequence

from draftwire.errors import ProtocolViolation
from draftwire.session.messages import Commit, Open, Proposal
from draftwire.session.paths import first_difference
from draftwire.types import MAX_PROPOSAL_TOKENS, DraftToken


class DrafterSession:
    """One session on a draft worker, from its Open on.

    Attributes:
        session_id: as in Open.
        tokens: prompt + output as this path has it: `committed` final tokens, then the guesses. Read only.
        committed: how many of `tokens` are final.
        path: number of the commit at which the current path was begun; 0 = Open.
        number: number of the last commit taken.
        window: how many guesses past `committed` the verifier allows now.

    Raises ProtocolViolation if the Open has no tokens or a bad window.
    """

    def __init__(self, opening: Open) -> None:
        if not opening.token_ids:
            raise ProtocolViolation("open: token_ids is empty; a session begins with at least one token")
        _check_window("open", opening.window)
        self.session_id = opening.session_id
        self.tokens = list(opening.token_ids)
        self.committed = len(self.tokens)
        self.path = 0
        self.number = 0
        self.window = opening.window

    @property
    def room(self) -> int:
        """How many more tokens may be guessed now."""
        return max(0, self.committed + self.window - len(self.tokens))

    def receive(self, commit: Commit) -> int:
        """Take a commit; returns how long a prefix of the former `tokens` is still valid (the KV cache may keep it).

        Raises ProtocolViolation, with the session unchanged, if the number does not rise, the position is not where
        the last commit ended, or the window is out of range.
        """
        if commit.number <= self.number:
            raise ProtocolViolation(f"commit: number {commit.number} does not follow {self.number}")
        if commit.position != self.committed:
            raise ProtocolViolation(f"commit: position {commit.position}, but {self.committed} tokens are committed")
        _check_window("commit", commit.window)
        self.number, self.window = commit.number, commit.window
        difference = first_difference(self.tokens[self.committed :], commit.token_ids)
        if difference is None:
            valid = len(self.tokens)
            self.tokens += commit.token_ids[valid - self.committed :]
        else:
            valid = self.committed + difference
            self.tokens[valid:] = commit.token_ids[difference:]
            self.path = commit.number
        self.committed += len(commit.token_ids)
        return valid

    def draft(self, drawn: Sequence[DraftToken]) -> Proposal:
        """Record what was drawn for the next positions; returns the message that says so.

        Everything that is drawn goes through here at once: a guess that is held back or drawn again would bias the
        output. Raises ValueError for no token or for more than `room`.
        """
        if not 1 <= len(drawn) <= self.room:
            raise ValueError(f"{len(drawn)} tokens drawn, but there is room for 1 to {self.room}")
        proposal = Proposal(self.session_id, self.path, len(self.tokens), tuple(drawn))
        self.tokens += [guess.token for guess in drawn]
        return proposal


def _check_window(message: str, window: int) -> None:
    if not 0 <= window <= MAX_PROPOSAL_TOKENS:
        raise ProtocolViolation(f"{message}: window {window} is not in 0 to {MAX_PROPOSAL_TOKENS}")
