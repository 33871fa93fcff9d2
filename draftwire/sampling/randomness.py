"""Counter-based randomness: every random number is a hash of what it is for.

Nothing here has state, so a number does not depend on batch order, on which process asks, or on how often. The hash
is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), chained over the words of the key; Python integers
and int64 tensors, on any device, give the same bits.
"""

import enum
from functools import lru_cache

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB


class Purpose(enum.IntEnum):
    """What a random number decides; numbers for different purposes are independent."""

    ACCEPT = 1
    CORRECTION = 2
    DRAFT = 3
    COUPLED = 4


def uniform(seed: int, choice: int, position: int, purpose: Purpose, salt: int = 0) -> float:
    """A uniform number in [0, 1), a multiple of 2**-53.

    Args:
        seed: of the answer, 64 bits.
        choice: which of several answers to one prompt.
        position: index in prompt + output of the token that it helps to decide.
        purpose: what it decides there.
        salt: makes a second draw for the same position fresh; the draft passes its path's number.
    """
    return (_key(seed, choice, position, purpose, salt) >> 11) * 2.0**-53


def gumbel(seed: int, choice: int, position: int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of each token id (int64, any shape) at a position: float64, same shape, finite.

    argmax over ids of log p + noise is a draw from p, and the same draw for everybody who knows the seed.
    """
    return -torch.log(exponential(coupled_key(seed, choice, position), token_ids))


def coupled_key(seed: int, choice: int, position: int) -> int:
    """The key of the noise that draft and target share at a position: 64 bits, as a signed integer."""
    return _signed(_key(seed, choice, position, Purpose.COUPLED, 0))


def exponential(key: int | Tensor, token_ids: Tensor) -> Tensor:
    """Standard exponential noise, strictly positive float64: -log(u) of a uniform u for each token id under `key`.

    `key` is a `coupled_key`, or an int64 tensor of them that broadcasts against token_ids. u is an odd multiple of
    2**-53, so strictly inside (0, 1): fp32 would round some to 1 and make infinite noise.
    """
    bits = token_ids ^ key
    scratch = torch.empty_like(bits)  # memory is what costs time at a whole vocabulary, so there are two buffers only
    _mix_in_place(bits, scratch)
    bits >>= 11
    bits &= (1 << 53) - 1
    bits |= 1
    return scratch.view(torch.float64).copy_(bits).mul_(2.0**-53).log_().neg_()


def _key(seed: int, choice: int, position: int, purpose: Purpose, salt: int) -> int:
    return _mix(_mix(_stream(seed, choice) ^ position) ^ purpose ^ (salt << 8 & _MASK))


@lru_cache(maxsize=4096)
def _stream(seed: int, choice: int) -> int:
    """The part of the key that an answer's positions share."""
    return _mix(_mix(seed & _MASK) ^ choice)


def _mix(x: int) -> int:
    x = (x + _GAMMA) & _MASK
    x = (x ^ x >> 30) * _MIX_A & _MASK
    x = (x ^ x >> 27) * _MIX_B & _MASK
    return x ^ x >> 31


def _mix_in_place(x: Tensor, scratch: Tensor) -> None:
    """`_mix` on int64, whose products wrap; its right shift copies the sign, which a mask removes."""
    x += _signed(_GAMMA)
    _xor_shifted(x, 30, scratch)
    x *= _signed(_MIX_A)
    _xor_shifted(x, 27, scratch)
    x *= _signed(_MIX_B)
    _xor_shifted(x, 31, scratch)


def _xor_shifted(x: Tensor, shift: int, scratch: Tensor) -> None:
    x ^= torch.bitwise_right_shift(x, shift, out=scratch).bitwise_and_((1 << 64 - shift) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
