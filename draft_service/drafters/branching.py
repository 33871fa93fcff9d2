"""The model drafter with branches: in each forward, rows that the sessions leave over draft behind likely corrections.

A target's step lasts as long as several steps of the draft, and a few rows more make a draft's step only a little
longer. So when a commit refutes a path, the next path is often there already and leaves at once, instead of a restart
later. What is prepared is what is most likely to be reached (draft_service.drafters.branches).
"""

import logging
from collections.abc import Sequence
from itertools import count

from torch import Tensor

from draft_service.drafters.base import Drafted, Key, Keyed, Text
from draft_service.drafters.branches import LEAST_CHANCE, Branch, Prospect, Trunk, prospects
from draft_service.drafters.model import ModelDrafter, draw_from_model, draw_key
from draft_service.session import Session
from draftwire.engine.base import Engine
from draftwire.sampling import outlook
from draftwire.types import DraftToken, ModelInfo

logger = logging.getLogger(__name__)

#: How many other tokens are thought of at a position.
OTHERS = 3


class BranchingDrafter:
    """`Drafter` over an engine.

    Args:
        engine: runs the draft model; owned by the calling thread.
        num_branches: most branches at once, over all sessions; each takes one of the engine's slots.
        batch: branches fill a forward up to so many rows.
    """

    def __init__(self, engine: Engine, *, num_branches: int, batch: int) -> None:
        self._model = ModelDrafter(engine, draw=self._draw)
        self._batch = batch
        self._places: list[Key] = [(-1, number) for number in range(num_branches)]
        for place in self._places:
            self._model.reserve(place)
        self.max_sessions = engine.num_slots - num_branches
        self._trunks: dict[Key, Trunk] = {}
        self._ordinals = count(1)
        self._restarts = self._hits = 0

    @property
    def info(self) -> ModelInfo:
        """The model that the engine runs."""
        return self._model.info

    def open(self, key: Key, session: Session) -> bool:
        """Take a KV slot; False if none is free."""
        if len(self._trunks) >= self.max_sessions or not self._model.open(key, session):
            return False
        self._trunks[key] = Trunk(session)
        return True

    def truncate(self, key: Key, length: int) -> None:
        """Of the session's tokens only the first `length` still stand."""
        self._model.truncate(key, length)
        self._trunks[key].truncate(length)

    def close(self, key: Key) -> None:
        """Give the KV slot back, and those of the branches."""
        logger.info("%d of %d restarts hit a branch", self._hits, self._restarts)
        self._model.close(key)
        self._places += [branch.key for branch in self._trunks.pop(key).branches]

    def step(self, sessions: Sequence[Keyed]) -> list[Drafted] | None:
        """Branches that were hit go without a forward; else one ragged forward over sessions that lag and branches."""
        hits = [drafted for key, _ in sessions if (drafted := self._follow(key))]
        if hits:
            return hits
        branches = {branch.key: branch for branch in self._choose(sessions)}
        texts: list[tuple[Key, Text]] = [(key, self._trunks[key]) for key, _ in sessions]
        drafts = self._model.step(texts + list(branches.items()))
        for drafted in drafts or ():
            if drafted.key in branches:
                branches[drafted.key].append(drafted.tokens)
        return None if drafts is None else [drafted for drafted in drafts if drafted.key not in branches]

    def _draw(self, logits: Tensor, texts: Sequence[Text]) -> list[DraftToken]:
        tokens = draw_from_model(logits, texts)
        views = outlook(logits, [draw_key(text) for text in texts], OTHERS + 1)
        for text, token, view in zip(texts, tokens, views, strict=True):
            assert isinstance(text, Trunk | Branch)
            text.note(token.token, view)
        return tokens

    def _follow(self, key: Key) -> Drafted | None:
        """Catch up with a session's commits; returns the rest of the branch that they hit."""
        trunk = self._trunks[key]
        self._restarts += trunk.is_refuted
        hit, over = trunk.follow()
        self._hits += hit is not None
        drafted = None
        if hit and trunk.room:
            known = len(trunk.tokens) - hit.root - 1
            tokens = hit.drawn[known : known + trunk.room]
            self._model.share(hit.key, key, min(self._model.held(hit.key), len(trunk.tokens) + len(tokens)))
            drafted = Drafted(key, tokens, "branch")
        self._places += [branch.key for branch in over]
        return drafted

    def _choose(self, sessions: Sequence[Keyed]) -> list[Branch]:
        """The branches that take part in the next forward, those that are begun now among them."""
        rows = self._batch - sum(1 for _, session in sessions if session.room)
        if rows <= 0 or not self._trunks:
            return []
        known = [(key, prospect) for key, _ in sessions for prospect in prospects(self._trunks[key])]
        known.sort(key=lambda entry: -entry[1].reach)
        chosen: list[Branch] = []
        for key, prospect in known:
            if len(chosen) == rows or prospect.reach < LEAST_CHANCE:
                break
            branch = prospect.branch or self._begin(key, prospect, known, chosen)
            if branch and branch.room > 0:
                chosen.append(branch)
        return chosen

    def _begin(
        self, key: Key, prospect: Prospect, known: Sequence[tuple[Key, Prospect]], chosen: Sequence[Branch]
    ) -> Branch | None:
        """A new branch, in the place of the least likely one if there is no other; None if all are likelier."""
        if not self._places and not self._evict(prospect.hit, known, chosen):
            return None
        place = self._places.pop()
        trunk, (position, token) = prospect.trunk, prospect.root
        self._model.share(key, place, position)
        limit = min(trunk.session.window, self.info.max_model_len - position - 1)
        path = trunk.path | next(self._ordinals) << 32
        branch = Branch(place, trunk.opening, path, position, [*trunk.tokens[:position], token], limit)
        trunk.branches.append(branch)
        return branch

    def _evict(self, hit: float, known: Sequence[tuple[Key, Prospect]], chosen: Sequence[Branch]) -> bool:
        begun = [prospect for _, prospect in known if prospect.branch and prospect.branch not in chosen]
        begun = [prospect for prospect in begun if prospect.branch in prospect.trunk.branches]
        weakest = min(begun, key=lambda prospect: prospect.hit, default=None)
        if weakest is None or weakest.hit >= hit:
            return False
        assert weakest.branch
        weakest.trunk.branches.remove(weakest.branch)
        self._places.append(weakest.branch.key)
        return True
