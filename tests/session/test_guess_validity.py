"""A guess whose q is malformed is refused before it could be tested."""

import pytest

from draftwire.errors import ProtocolViolation
from draftwire.session.validity import check_draft_token
from draftwire.types import MAX_SUPPORT, WEIGHT_TOTAL, DraftToken, Support

FULL = tuple(range(MAX_SUPPORT))
EVEN = (WEIGHT_TOTAL // MAX_SUPPORT,) * MAX_SUPPORT


@pytest.mark.parametrize(
    "guess",
    [
        DraftToken(0),
        DraftToken(99),
        DraftToken(5, Support((5,), (WEIGHT_TOTAL,))),
        DraftToken(6, Support((5, 6), (WEIGHT_TOTAL - 1, 1))),
        DraftToken(63, Support(FULL, EVEN)),
    ],
)
def test_good_guesses_pass(guess: DraftToken):
    """Point masses, tiny weights and the largest support are all legal."""
    check_draft_token(guess, 100)


@pytest.mark.parametrize(
    ("guess", "says"),
    [
        (DraftToken(100), "token 100 is not below 100"),
        (DraftToken(5, Support((), ())), "0 entries, not 1 to 64"),
        (DraftToken(5, Support((*FULL, 64), (*EVEN, 1))), "65 entries, not 1 to 64"),
        (DraftToken(5, Support((5, 6), (WEIGHT_TOTAL,))), "1 support_weights for 2 support_ids"),
        (DraftToken(5, Support((5, 5), (1, WEIGHT_TOTAL - 1))), "an id twice"),
        (DraftToken(5, Support((5, 100), (1, WEIGHT_TOTAL - 1))), "an id that is not below 100"),
        (DraftToken(5, Support((5, 6), (0, WEIGHT_TOTAL))), "a weight of 0"),
        (DraftToken(5, Support((5, 6), (1, WEIGHT_TOTAL))), "sum to 65537, not 65536"),
        (DraftToken(5, Support((5, 6), (1, 1))), "sum to 2, not 65536"),
        (DraftToken(5, Support((6, 7), (1, WEIGHT_TOTAL - 1))), "token 5 is not among"),
    ],
)
def test_bad_guesses_are_refused(guess: DraftToken, says: str):
    """Each rule has a text of its own."""
    with pytest.raises(ProtocolViolation, match=says):
        check_draft_token(guess, 100)
