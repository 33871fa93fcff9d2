"""All text in two halves, one for even seeds and one for odd ones: what one half asks is held out from the other."""

import zlib
from random import Random


class Half(Random):
    """A generator of prompts of an odd seed or of an even one.

    Attributes:
        parity: of the seed.
    """

    parity: int = 0

    def owns(self, text: str) -> bool:
        """Whether a prompt or a source is for seeds of this parity; every text is for one of the two."""
        return zlib.crc32(text.encode()) % 2 == self.parity


def half(seed: int, stream: int) -> Half:
    """The generator of a seed's stream."""
    rng = Half(f"{seed}/{stream}")
    rng.parity = seed % 2
    return rng
