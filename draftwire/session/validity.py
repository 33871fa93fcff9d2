"""What a guess must be before it may be tested: an id of the vocabulary, drawn from well-formed integer weights."""

from draftwire.errors import ProtocolViolation
from draftwire.types import MAX_SUPPORT, WEIGHT_TOTAL, DraftToken


def check_draft_token(guess: DraftToken, vocab_size: int) -> None:
    """Raise ProtocolViolation saying which rule the guess breaks.

    Ids and weights are unsigned, as the wire has them. Every guess of every session passes here, so each rule is one
    pass of a built-in.
    """
    if guess.token >= vocab_size:
        raise ProtocolViolation(f"proposal: token {guess.token} is not below {vocab_size}")
    if guess.q is None:
        return
    ids, weights = guess.q.ids, guess.q.weights
    if not 1 <= len(ids) <= MAX_SUPPORT:
        raise ProtocolViolation(f"proposal: support_ids has {len(ids)} entries, not 1 to {MAX_SUPPORT}")
    if len(weights) != len(ids):
        raise ProtocolViolation(f"proposal: {len(weights)} support_weights for {len(ids)} support_ids")
    distinct = set(ids)
    if len(distinct) != len(ids):
        raise ProtocolViolation("proposal: support_ids has an id twice")
    if max(ids) >= vocab_size:
        raise ProtocolViolation(f"proposal: support_ids has an id that is not below {vocab_size}")
    if not all(weights):
        raise ProtocolViolation("proposal: support_weights has a weight of 0")
    if sum(weights) != WEIGHT_TOTAL:
        raise ProtocolViolation(f"proposal: support_weights sum to {sum(weights)}, not {WEIGHT_TOTAL}")
    if guess.token not in distinct:
        raise ProtocolViolation(f"proposal: token {guess.token} is not among its support_ids")
