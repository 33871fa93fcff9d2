"""The verify worker's end of a session on one draft worker: which guesses are live, and which came too late.

A path is refuted by a token, never by an event: whether a committed token was an accepted guess, a correction or a
bonus makes no difference. The comparison happens twice, when tokens become final and when a guess for a position that
is already final arrives; a difference puts the floor at the commit that holds the position, and paths below the floor
are stale. The draft reaches the same answer by the same comparison, so nothing is ever acknowledged.
"""

from bisect import bisect_right
from collections.abc import Sequence

from draftwire.errors import ProtocolViolation
from draftwire.session.messages import Commit, Open, Proposal
from draftwire.session.paths import first_difference
from draftwire.session.validity import check_draft_token
from draftwire.types import MAX_PROPOSAL_TOKENS, DraftToken, SamplingParams, VerificationMode


class VerifierSession:
    """One session on one draft worker; moving to another worker makes a new one.

    Args:
        session_id: never used before on the stream.
        token_ids: every token so far, prompt and committed output.
        vocab_size: guesses must be below it.
        window: the largest credit that will ever be given; 0 to MAX_PROPOSAL_TOKENS.

    Attributes:
        committed: how many tokens are final.
        number: number of the last commit made.
        window: credit given last.
        path: the path heard of last.
        floor: paths below it are refuted.
        stale: guesses that arrived on a refuted path, in tokens.
    """

    def __init__(self, session_id: int, token_ids: Sequence[int], vocab_size: int, window: int) -> None:
        if not 0 <= window <= MAX_PROPOSAL_TOKENS:
            raise ValueError(f"window {window} is not in 0 to {MAX_PROPOSAL_TOKENS}")
        self.session_id = session_id
        self.vocab_size = vocab_size
        self.max_window = window
        self.number = 0
        self.window = 0
        self.path = 0
        self.floor = 0
        self.stale = 0
        self._tokens = list(token_ids)
        # The log of commits that hold tokens, as two rising columns; entry 0 is Open. At most one entry a token.
        self._log_numbers = [0]
        self._log_ends = [len(self._tokens)]
        self._next = len(self._tokens)  # end of what was received on `path`
        self._limit = len(self._tokens)  # no honest guess stands here or later
        self._pending: list[DraftToken] = []  # for positions committed, committed + 1, ...

    @property
    def committed(self) -> int:
        """How many tokens are final."""
        return len(self._tokens)

    @property
    def pending_count(self) -> int:
        """How many live guesses for the next positions are here."""
        return len(self._pending)

    def open(self, sampling: SamplingParams, mode: VerificationMode, seed: int, choice: int, window: int) -> Open:
        """The message that begins the session; called once and first. Raises ValueError for a bad window."""
        self._grant(window, self.committed)
        return Open(self.session_id, tuple(self._tokens), sampling, mode, seed, choice, window)

    def pending(self, limit: int) -> tuple[DraftToken, ...]:
        """Live guesses for positions committed, committed + 1, ..., at most `limit`; they stay.

        Until the next commit a later call returns the same guesses and perhaps more, so the position after those that
        went into a forward may be looked up again when it ends (late binding).
        """
        return tuple(self._pending[:limit])

    def commit(self, token_ids: Sequence[int], window: int) -> Commit:
        """Make tokens final; returns the message that says so. No tokens = only the window changes.

        Raises ValueError for a window above the largest.
        """
        position = self.committed
        self._grant(window, position + len(token_ids))
        self.number += 1
        if token_ids:
            self._tokens += token_ids
            self._log_numbers.append(self.number)
            self._log_ends.append(self.committed)
        if first_difference((guess.token for guess in self._pending), token_ids) is None:
            del self._pending[: len(token_ids)]
        else:
            self._refute(position)
        return Commit(self.session_id, self.number, position, tuple(token_ids), window)

    def receive(self, proposal: Proposal) -> None:
        """Take guesses. Those of a refuted path are dropped and counted.

        Raises ProtocolViolation, with the session unchanged, if an honest draft could not have sent them; the session
        must then be ended.
        """
        if proposal.path < self.floor:
            self.stale += len(proposal.tokens)
            return
        begun_at = self._next if proposal.path == self.path else self._end_of(proposal.path)
        self._check(proposal, begun_at)
        self.floor = self.path = proposal.path
        self._next = proposal.position + len(proposal.tokens)
        covered = self._tokens[proposal.position :]
        difference = first_difference((guess.token for guess in proposal.tokens), covered)
        if difference is None:
            self._pending += proposal.tokens[len(covered) :]
        else:
            self.stale += len(proposal.tokens) - difference
            self._refute(proposal.position + difference)

    def _check(self, proposal: Proposal, begun_at: int) -> None:
        path, position, count = proposal.path, proposal.position, len(proposal.tokens)
        if path > self.number:
            raise ProtocolViolation(f"proposal: path {path}, but the last commit is {self.number}")
        if path > self.path and self._pending:
            # A draft leaves a path only because of a difference, and it has sent us the token that differs.
            raise ProtocolViolation(f"proposal: path {path} begins while path {self.path} is not refuted")
        if not 1 <= count <= MAX_PROPOSAL_TOKENS:
            raise ProtocolViolation(f"proposal: {count} tokens, not 1 to {MAX_PROPOSAL_TOKENS}")
        if position < begun_at:
            raise ProtocolViolation(f"proposal: position {position} on path {path} is held up to {begun_at} already")
        if position > max(begun_at, self.committed):
            raise ProtocolViolation(f"proposal: position {position} on path {path} leaves a gap from {begun_at}")
        if position + count > self._limit:
            raise ProtocolViolation(f"proposal: ends at {position + count}, beyond the credit up to {self._limit}")
        for guess in proposal.tokens:
            check_draft_token(guess, self.vocab_size)

    def _grant(self, window: int, committed: int) -> None:
        """Give credit past `committed`. Taking it back cannot recall guesses on the wire, so the limit only rises.

        It is the furthest that any commit so far allowed, hence at most committed + the largest window.
        """
        if not 0 <= window <= self.max_window:
            raise ValueError(f"window {window} is not in 0 to {self.max_window}")
        self.window = window
        self._limit = max(self._limit, committed + window)

    def _refute(self, position: int) -> None:
        """The current path has a wrong token at `position`: paths begun before the commit that holds it are stale."""
        self.floor = self._log_numbers[bisect_right(self._log_ends, position)]
        self._pending.clear()

    def _end_of(self, number: int) -> int:
        """Where the tokens of commit `number` ended; a path that it began has no guess before."""
        return self._log_ends[bisect_right(self._log_numbers, number) - 1]
