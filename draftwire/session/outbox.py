"""What waits to be written on a stream, merged per session, so that a slow stream costs detail but never memory.

One task writes to a stream; whoever has something to say adds it here and the writer takes the next message when the
last one is gone. Messages are bounded in size, because one that is too large would end the stream for every session.
"""

from collections import deque
from itertools import chain

from draftwire.session.messages import Close, Commit, DrafterStep, Ended, Idle, Open, Opened, Proposal, VerifierStep
from draftwire.types import MAX_PROPOSAL_TOKENS


class VerifierOutbox:
    """Verify worker to draft worker.

    Holds at most an open and a commit a session, so never more tokens than the sessions themselves, and at most one
    close for each session that the draft worker has seen.
    """

    def __init__(self) -> None:
        self._closes: dict[int, Close] = {}
        # Per session its open, its commit or both, in this order; sessions in the order in which they began to wait.
        self._waiting: dict[int, deque[Open | Commit]] = {}

    def __len__(self) -> int:
        """How many entries wait."""
        return len(self._closes) + sum(map(len, self._waiting.values()))

    def add(self, step: VerifierStep) -> None:
        """Queue a step. A session's commits merge into the latest; a close drops what waits for its session."""
        for opening in step.opens:
            self._waiting.setdefault(opening.session_id, deque()).append(opening)
        for commit in step.commits:
            entries = self._waiting.setdefault(commit.session_id, deque())
            last = entries[-1] if entries else None
            if isinstance(last, Commit):
                entries[-1] = _merge_commits(last, commit)
            else:
                entries.append(commit)
        for close in step.closes:
            entries = self._waiting.pop(close.session_id, deque())
            if not (entries and isinstance(entries[0], Open)):  # else the draft worker has never heard of it
                self._closes[close.session_id] = close

    def take(self, max_tokens: int) -> VerifierStep | None:
        """The next message, with at most `max_tokens` token ids in opens and commits; None if nothing waits.

        First come, first served, so that no session starves. A larger entry goes alone. An entry without tokens counts
        as one.
        """
        opens: list[Open] = []
        commits: list[Commit] = []
        closes = tuple(self._closes.values())
        self._closes.clear()
        budget = max_tokens
        for session_id, entries in list(self._waiting.items()):
            while entries and (_cost(entries[0]) <= budget or not (opens or commits)):
                entry = entries.popleft()
                budget -= _cost(entry)
                if isinstance(entry, Open):
                    opens.append(entry)
                else:
                    commits.append(entry)
            if entries:
                break
            del self._waiting[session_id]
        if not (opens or commits or closes):
            return None
        return VerifierStep(tuple(opens), tuple(commits), closes)


class DrafterOutbox:
    """Draft worker to verify worker.

    Credit bounds it: a guess lies at most MAX_PROPOSAL_TOKENS past what its draft knows to be committed, so guesses
    further back than that are final already and need not be sent. Per session at most one opened, one idle (the latest)
    and one ended wait.
    """

    def __init__(self) -> None:
        self._opened: dict[int, Opened] = {}
        self._idle: dict[int, Idle] = {}
        self._ended: dict[int, Ended] = {}
        self._proposals: dict[int, deque[Proposal]] = {}

    def __len__(self) -> int:
        """How many entries wait."""
        return len(self._opened) + len(self._idle) + len(self._ended) + sum(map(len, self._proposals.values()))

    def add(self, step: DrafterStep) -> None:
        """Queue a step. Contiguous proposals of a path merge; those that can no longer be tested are dropped."""
        for opened in step.opened:
            self._opened[opened.session_id] = opened
        for proposal in step.proposals:
            self._add_proposal(proposal)
        for idle in step.idle:
            self._idle[idle.session_id] = idle
        for ended in step.ended:
            self._ended[ended.session_id] = ended

    def take(self, max_tokens: int) -> DrafterStep | None:
        """The next message, with at most `max_tokens` guesses but at least one proposal; None if nothing waits."""
        opened, ended = tuple(self._opened.values()), tuple(self._ended.values())
        self._opened.clear()
        self._ended.clear()
        proposals: list[Proposal] = []
        budget = max_tokens
        for session_id, queue in list(self._proposals.items()):
            while queue and (len(queue[0].tokens) <= budget or not proposals):
                budget -= len(queue[0].tokens)
                proposals.append(queue.popleft())
            if queue:
                break
            del self._proposals[session_id]
        # An idle that overtook guesses could end the wait for them because of what they are.
        idle = tuple([self._idle.pop(session_id) for session_id in self._idle.keys() - self._proposals.keys()])
        if not (opened or proposals or idle or ended):
            return None
        return DrafterStep(opened, tuple(proposals), ended, idle)

    def forget(self, session_id: int) -> None:
        """Drop what waits for a session that is over."""
        for waiting in (self._opened, self._idle, self._ended, self._proposals):
            waiting.pop(session_id, None)

    def _add_proposal(self, proposal: Proposal) -> None:
        queue = self._proposals.setdefault(proposal.session_id, deque())
        if queue and queue[-1].path != proposal.path:
            # A path ends only because a committed token differs from it. Every position up to that token is final at
            # the verifier, and every later guess was drawn after a wrong token: none of them can be tested any more, so
            # dropping them, whatever their values, changes no test. The verifier learns of the path's end from the new
            # path's number.
            queue.clear()
        if queue and (merged := _merge_proposals(queue[-1], proposal)):
            queue[-1] = merged
        else:
            queue.append(proposal)
        known_committed = _end(proposal) - MAX_PROPOSAL_TOKENS
        while _end(queue[0]) <= known_committed:
            queue.popleft()


def _cost(entry: Open | Commit) -> int:
    return max(1, len(entry.token_ids))


def _merge_commits(first: Commit, then: Commit) -> Commit:
    tokens = tuple(chain(first.token_ids, then.token_ids))
    return Commit(then.session_id, then.number, first.position, tokens, then.window)


def _merge_proposals(first: Proposal, then: Proposal) -> Proposal | None:
    """Both as one; None if there is a jump between them or they are too many for one message."""
    if then.position != _end(first) or len(first.tokens) + len(then.tokens) > MAX_PROPOSAL_TOKENS:
        return None
    return Proposal(first.session_id, first.path, first.position, first.tokens + then.tokens)


def _end(proposal: Proposal) -> int:
    return proposal.position + len(proposal.tokens)
