"""What a draft is judged on: texts of the target, from a data set or written on the spot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import nan

from bench.workloads import PROMPTS
from distill.data import DistillationData
from draftwire.engine.base import Chunk, Engine
from draftwire.errors import InvalidArgument
from draftwire.sampling import SessionRows, verify
from draftwire.types import SamplingParams, VerificationMode
from gateway.requests import ChatMessage
from gateway.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class TargetText:
    """Tokens that a draft shall foretell.

    Attributes:
        token_ids: prompt and output.
        begin: index of the first output token; at least 1, and below len(token_ids).
        kind: of the prompt.
        temperature: at which the target sampled the output; NaN = somebody else wrote it.
    """

    token_ids: tuple[int, ...]
    begin: int
    kind: str = "text"
    temperature: float = nan


def stored_texts(data: DistillationData, max_model_len: int, most: int | None = None) -> Iterator[TargetText]:
    """Every run of supervised tokens, after what stands before it, cut to max_model_len tokens.

    At most `most` sequences, evenly spread over the data set, whose kinds of prompts may lie one behind the other.
    """
    count = min(len(data), most or len(data))
    for index in (place * len(data) // count for place in range(count)):
        example = data[index]
        token_ids = tuple(example.token_ids.tolist())
        for supervised, run in groupby(range(len(token_ids)), key=example.supervised.tolist().__getitem__):
            places = list(run)
            begin, end = places[0], min(places[-1] + 1, max_model_len)
            if supervised and 0 < begin < end:
                yield TargetText(token_ids[:end], begin, example.kind, example.temperature)


def bench_prompts(target: str) -> list[tuple[str, tuple[int, ...]]]:
    """(kind, token ids) of the prompts of `draftwire bench`, in the target's chat template. Raises ModelError."""
    tokenizer = load_tokenizer(target)
    return [(p.kind, tuple(tokenizer.encode_chat([ChatMessage("user", p.text)]))) for p in PROMPTS]


def write_texts(
    engine: Engine, prompts: Sequence[tuple[str, tuple[int, ...]]], *, temperature: float, max_tokens: int, seed: int
) -> list[TargetText]:
    """The target's answer to each prompt of (kind, token ids): exactly max_tokens tokens, as `draftwire bench` asks.

    As many at once as the engine has slots; prompt i draws by (seed, choice i). Raises InvalidArgument if too long.
    """
    longest = max(len(token_ids) for _, token_ids in prompts) + max_tokens
    if longest > engine.info.max_model_len:
        raise InvalidArgument("--max-tokens", f"prompt and answer take {longest} tokens, --max-model-len allows less")
    numbered = list(enumerate(prompts))
    texts: list[TargetText] = []
    for first in range(0, len(numbered), engine.num_slots):
        part = numbered[first : first + engine.num_slots]
        answers = [_Answer(engine, list(token_ids), choice) for choice, (_, token_ids) in part]
        for _ in range(max_tokens):
            logits = engine.forward([answer.chunk() for answer in answers])
            rows = [answer.rows(temperature, seed) for answer in answers]
            for answer, verdict in zip(answers, verify(logits, rows), strict=True):
                answer.tokens += verdict.token_ids
        for answer, (_, (kind, prompt)) in zip(answers, part, strict=True):
            engine.release(answer.slot)
            texts.append(TargetText(tuple(answer.tokens), len(prompt), kind, temperature))
    return texts


class _Answer:
    """A prompt and what the target has said to it so far; the slot holds all but the last token."""

    def __init__(self, engine: Engine, tokens: list[int], choice: int) -> None:
        self.slot, self.tokens, self._choice = prefill(engine, tokens, len(tokens) - 1), tokens, choice

    def chunk(self) -> Chunk:
        return Chunk(self.slot, len(self.tokens) - 1, self.tokens[-1:], 1)

    def rows(self, temperature: float, seed: int) -> SessionRows:
        mode, position = VerificationMode.REJECTION, len(self.tokens)
        return SessionRows(1, (), SamplingParams(temperature=temperature), mode, seed, self._choice, position)


def prefill(engine: Engine, token_ids: Sequence[int], length: int) -> int:
    """Take a slot that holds token_ids[:length]; length < len(token_ids). One must be free."""
    place = engine.acquire(token_ids)
    assert place is not None, "more texts at once than slots"
    slot, held = place
    while held < length:
        piece = token_ids[held : min(length, held + engine.max_batched_tokens)]
        engine.forward([Chunk(slot, held, piece, 0)])
        held += len(piece)
    return slot
