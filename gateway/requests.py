"""What a caller asks and gets, as plain values; every front door (gRPC today) converts to and from these."""

from dataclasses import dataclass, field

from draftwire.types import Finished, SamplingParams


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text, tokenised as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, oldest message first."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """Token ids, used as they are."""

    token_ids: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | IdsPrompt


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """One prompt and how to answer it (fields as in gateway_service.proto).

    model "" = the only one; seed None = fresh randomness; num_speculative_tokens None = the worker's own, 0 = plain.
    """

    prompt: Prompt
    model: str = ""
    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_speculative_tokens: int | None = None
    request_id: str = ""
    include_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer: whole characters, and the tokens committed since the last event; either may be empty."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Last event of an answer: why it ended and what it cost; stop = the stop string that ended it, if one did."""

    finished: Finished
    stop: str | None
    request_id: str
    model: str
