"""The probability of speculative decoding: logits in, tokens out, and a proof that their law is the target's.

    randomness    counter-based noise: (seed, choice, position, purpose) -> uniform, token ids -> Gumbel noise
    distribution  logits -> p, after temperature, top-k, top-p, min-p
    coupled       the token that p and the seed alone decide
    support       the draft's side: draw a token, and say exactly what it was drawn from
    verify        the target's side: accept or correct the proposals of many sessions at once
    reference     the textbook algorithm on dense distributions, for people who only want that

p is always the target's distribution, q the draft's. Everything here is a pure function of its arguments.
"""

from draftwire.sampling.distribution import target_probs
from draftwire.sampling.randomness import Purpose, gumbel, uniform
from draftwire.sampling.reference import verify_draft_tokens
from draftwire.sampling.support import DrawKey, draft_weights, draw
from draftwire.sampling.verify import SessionRows, Verdict, verify

__all__ = [
    "DrawKey",
    "Purpose",
    "SessionRows",
    "Verdict",
    "draft_weights",
    "draw",
    "gumbel",
    "target_probs",
    "uniform",
    "verify",
    "verify_draft_tokens",
]
