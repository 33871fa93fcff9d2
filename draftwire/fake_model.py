"""A model that a reader can compute by hand; draftwire.engine.fake runs it, and the gateway knows its vocabulary.

The token that follows token t at position i is (t + 1) mod V; with drift d > 0, a token whose own position is a
multiple of d is (t + 2) mod V instead. Its logit is `sharpness`, every other logit is 0. So prompt [7] at drift 0
continues 8, 9, 10, ..., and a draft without drift guesses a target with drift 5 right, except at positions 5, 10, ...

As a model name: "fake:vocab_size=512,drift=5,sharpness=8,step_seconds=0.01" (every field optional).
"""

from dataclasses import dataclass

from draftwire.errors import ModelError

PREFIX = "fake:"


@dataclass(frozen=True, slots=True)
class FakeModel:
    """The rule above.

    Attributes:
        vocab_size: V.
        drift: positions that are multiples of it skip one token; 0 = none.
        sharpness: logit of the next token.
        step_seconds: how long a forward takes.
        eos: the id that ends an answer; -1 = none.
        max_model_len: longest sequence.
    """

    vocab_size: int = 512
    drift: int = 0
    sharpness: float = 20.0
    step_seconds: float = 0.0
    eos: int = -1
    max_model_len: int = 4096

    @classmethod
    def parse(cls, name: str) -> "FakeModel":
        """Read "fake:field=value,..."; raises ModelError naming a bad field."""
        values: dict[str, int | float] = {}
        for item in filter(None, name.removeprefix(PREFIX).split(",")):
            key, _, value = item.partition("=")
            kind = cls.__annotations__.get(key)
            try:
                values[key] = {int: int, float: float}[kind](value)  # type: ignore[index]
            except (KeyError, ValueError):
                raise ModelError(f"{name!r}: {item!r} is not one of {sorted(cls.__annotations__)} = number") from None
        return cls(**values)  # type: ignore[arg-type]

    @property
    def vocab_fingerprint(self) -> str:
        """Differs with the vocabulary's size, the only thing in which the vocabularies of two fakes can differ."""
        return f"fake-{self.vocab_size}"

    def next_token(self, token: int, position: int) -> int:
        """The likeliest token at `position` after `token`."""
        skip = 2 if self.drift and position % self.drift == 0 else 1
        return (token + skip) % self.vocab_size
