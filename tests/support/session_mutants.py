"""Plausible mistakes in the session protocol, each a subclass that the harness must catch."""

from dataclasses import replace

from draftwire.session import Commit, DrafterOutbox, DrafterSession, VerifierOutbox, VerifierSession, VerifierStep


class ComparesEvents(VerifierSession):
    """A token that no guess was there for always refutes the path, whatever the draft is going to guess."""

    def commit(self, token_ids, window):
        guessed = self.pending_count >= len(token_ids)
        message = super().commit(token_ids, window)
        if not guessed:
            self._refute(message.position + len(token_ids) - 1)
        return message


class NoFloor(VerifierSession):
    """A refuted path's later guesses are not told from live ones."""

    def _refute(self, position):
        self._pending.clear()


class FloorAtLatestCommit(VerifierSession):
    """The floor is the latest commit instead of the one that holds the position: the draft's new path may be older."""

    def _refute(self, position):
        super()._refute(position)
        self.floor = self.number


class ComparesAtCommitOnly(VerifierSession):
    """Guesses for positions that are already final are skipped without a look."""

    def receive(self, proposal):
        covered = max(0, self.committed - proposal.position)
        if proposal.path == self.path >= self.floor and covered > 0:
            if covered >= len(proposal.tokens):
                self._next = proposal.position + len(proposal.tokens)
                return
            self._next = self.committed
            proposal = replace(proposal, position=self.committed, tokens=proposal.tokens[covered:])
        super().receive(proposal)


class DropsForWantOfRoom(VerifierSession):
    """Keeps one guess only."""

    def receive(self, proposal):
        super().receive(proposal)
        del self._pending[1:]


class CreditOfLatestCommit(VerifierSession):
    """Holds guesses on the wire to a credit that their draft could not know yet."""

    def _grant(self, window, committed):
        super()._grant(window, committed)
        self._limit = committed + window


class DrawsAgain(DrafterSession):
    """Forgets its guesses at every commit and draws for the same positions of the same path again."""

    def receive(self, commit):
        valid = super().receive(commit)
        del self.tokens[self.committed :]
        return min(valid, self.committed)


class NewPathAtEveryCommit(DrafterSession):
    """Begins a path at every commit, although no token differs."""

    def receive(self, commit):
        valid = super().receive(commit)
        del self.tokens[self.committed :]
        self.path = commit.number
        return min(valid, self.committed)


class PathsCounted(DrafterSession):
    """Names paths 1, 2, 3 instead of by the commit."""

    def receive(self, commit):
        path = self.path
        valid = super().receive(commit)
        self.path = path if self.path == path else path + 1
        return valid


class NeverBeginsAPath(DrafterSession):
    """Cuts back at a difference but keeps the path's name."""

    def receive(self, commit):
        valid = super().receive(commit)
        self.path = 0
        return valid


class MergesToTheFirstNumber(VerifierOutbox):
    """Merged commits bear the first's number."""

    def add(self, step):
        for commit in step.commits:
            waiting = [entry for entry in self._waiting.get(commit.session_id, ()) if isinstance(entry, Commit)]
            super().add(VerifierStep(commits=(commit,)))
            if waiting:
                queue = self._waiting[commit.session_id]
                queue[-1] = replace(queue[-1], number=waiting[-1].number)
        super().add(replace(step, commits=()))


class SendsTheLatestCommitOnly(VerifierOutbox):
    """Of several queued commits the latest replaces the others instead of taking up their tokens."""

    def add(self, step):
        for commit in step.commits:
            queue = self._waiting.get(commit.session_id, [])
            if queue and isinstance(queue[-1], Commit):
                queue.pop()
        super().add(step)


class DropsGuessesOnAJump(DrafterOutbox):
    """Takes any proposal that does not continue the last one for the beginning of a new path."""

    def _add_proposal(self, proposal):
        queue = self._proposals.get(proposal.session_id)
        if queue and queue[-1].position + len(queue[-1].tokens) != proposal.position:
            queue.clear()
        elif queue:
            queue[-1] = replace(queue[-1], tokens=proposal.tokens)
            return
        super()._add_proposal(proposal)
