"""The output's law over the real loop, drafters and verification is the target's; a biased hybrid is caught.

Three tokens are possible, the target and the draft disagree, and the prompt repeats itself, so that the n-gram and the
model take turns. The first three output tokens of many sessions are compared with the target's law by chi-square.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from math import exp

import pytest
import torch
from draft_harness import HandLoop, ngram_info
from scipy.stats import chisquare

from draft_service.drafters.base import Drafted, Drafter, Keyed
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.model import ModelDrafter
from draft_service.drafters.ngram import NgramDrafter
from draftwire.engine.fake import FakeEngine
from draftwire.fake_model import FakeModel
from draftwire.sampling import SessionRows, verify
from draftwire.session import VerifierSession
from draftwire.types import DraftToken, SamplingParams, VerificationMode

SESSIONS, OUTPUT, K = 1200, 3, 2
PROMPT = (0, 1, 2, 0, 1, 2, 0)
TARGET = FakeModel(vocab_size=3, drift=2, sharpness=1.0)
DRAFT = FakeModel(vocab_size=3, sharpness=1.5)
SAMPLING = SamplingParams()


def engine() -> FakeEngine:
    return FakeEngine(DRAFT, num_slots=SESSIONS, max_batched_tokens=SESSIONS * 16)


class DressedUpHybrid(ModelDrafter):
    """A mutant: it draws from the model and calls the token certain because the n-gram would have said the same."""

    def step(self, sessions: Sequence[Keyed]) -> list[Drafted] | None:
        drafts = super().step(sessions)
        by_key = dict(sessions)
        for drafted in drafts or []:
            session = by_key[drafted.key]
            ngram = NgramDrafter(self.info, max_sessions=1, sizes=(3,))
            ngram.open(drafted.key, session)
            if drafted.tokens and [t.token for t in ngram.guesses(drafted.key, session)[:1]] == [
                drafted.tokens[0].token
            ]:
                drafted.tokens[0] = DraftToken(drafted.tokens[0].token)
        return drafts


def target_logits(text: Sequence[int]) -> list[float]:
    """What the target says of the position after `text`."""
    logits = [0.0] * TARGET.vocab_size
    logits[TARGET.next_token(text[-1], len(text))] = TARGET.sharpness
    return logits


def target_law() -> dict[tuple[int, ...], float]:
    """The probability of each output, by the model's rule."""
    law = {}
    for output in product(range(3), repeat=OUTPUT):
        law[output] = 1.0
        for i, token in enumerate(output):
            logits = target_logits(PROMPT + output[:i])
            law[output] *= exp(logits[token]) / sum(map(exp, logits))
    return law


class Pipeline:
    """Many sessions drafted by one loop and verified in lock step."""

    def __init__(self, drafter: Drafter, mode: VerificationMode) -> None:
        self._mode = mode
        self._hand = HandLoop(drafter, max_sessions_per_stream=SESSIONS)
        self._texts = [list(PROMPT) for _ in range(SESSIONS)]
        self._sessions = [VerifierSession(i, PROMPT, TARGET.vocab_size, K) for i in range(SESSIONS)]
        self._hand.say(1, *(session.open(SAMPLING, mode, seed, 0, K) for seed, session in enumerate(self._sessions)))

    def outputs(self) -> list[tuple[int, ...]]:
        """The first output tokens of every session."""
        while min(map(len, self._texts)) < len(PROMPT) + OUTPUT:
            self._hand.rest()
            for _, step in self._hand.emitted:
                for proposal in step.proposals:
                    self._sessions[proposal.session_id].receive(proposal)
            self._hand.emitted.clear()
            self._verify()
        return [tuple(text[len(PROMPT) : len(PROMPT) + OUTPUT]) for text in self._texts]

    def _verify(self) -> None:
        rows, logits = [], []
        for seed, (text, session) in enumerate(zip(self._texts, self._sessions, strict=True)):
            proposals = session.pending(K)
            rows.append(SessionRows(len(proposals) + 1, proposals, SAMPLING, self._mode, seed, 0, len(text)))
            guesses = [guess.token for guess in proposals]
            logits += [target_logits(text + guesses[:i]) for i in range(len(guesses) + 1)]
        verdicts = verify(torch.tensor(logits), rows)
        for text, session, verdict in zip(self._texts, self._sessions, verdicts, strict=True):
            text.extend(verdict.token_ids)
            self._hand.say(1, session.commit(verdict.token_ids, K))


def p_value(outputs: Sequence[tuple[int, ...]]) -> float:
    """How likely outputs at least this far from the target's law are, if that is their law."""
    counts, law = Counter(outputs), target_law()
    return float(chisquare([counts[output] for output in law], [SESSIONS * p for p in law.values()]).pvalue)


MAKERS: dict[str, Callable[[], Drafter]] = {
    "model": lambda: ModelDrafter(engine()),
    "hybrid": lambda: HybridDrafter(ModelDrafter(engine())),
    "ngram": lambda: NgramDrafter(ngram_info(), max_sessions=SESSIONS),
}


@pytest.mark.parametrize("drafter", MAKERS)
def test_the_output_has_the_targets_law(drafter: str) -> None:
    """In rejection mode chi-square does not reject, whatever drafts."""
    assert p_value(Pipeline(MAKERS[drafter](), VerificationMode.REJECTION).outputs()) > 1e-4


def test_a_biased_hybrid_is_caught() -> None:
    """The same test rejects the mutant, so it would see such a mistake."""
    assert p_value(Pipeline(DressedUpHybrid(engine()), VerificationMode.REJECTION).outputs()) < 1e-4


def test_coupled_output_does_not_depend_on_the_drafter() -> None:
    """With the same seeds every session gives the same tokens with model, hybrid and n-gram, by the target's law."""
    outputs = [Pipeline(make(), VerificationMode.COUPLED).outputs() for make in MAKERS.values()]
    assert outputs[0] == outputs[1] == outputs[2]
    assert p_value(outputs[0]) > 1e-4
