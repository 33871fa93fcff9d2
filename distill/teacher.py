"""The target as a teacher: it writes replies to many prompts at once, and what it thought at each token is kept.

Sampling and the rows that training needs come from the same forward, so that the teacher never runs again. Every draw
is keyed by (seed, sequence, position), whatever shares the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distill.data import Example
from distill.fingerprint import target_fingerprint
from distill.packed import pack_linears
from distill.rows import Rows, teacher_rows
from distill.wave import Wave
from draftwire.errors import InvalidArgument
from draftwire.sampling import Purpose, uniform

#: Ended sequences are dropped once they are this share of a wave.
_DROP = 1 / 32

#: Tokens of a corpus that are run together.
_SCORED_TOKENS = 2048

#: Positions of a corpus whose logits are in memory together.
_JUDGED_ROWS = 256


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to be answered.

    Attributes:
        token_ids: not empty.
        kind: of the prompt, for the record.
        temperature: at which the reply is sampled; 0 = greedy.
        sequence: number of the sequence in the data set; with the seed it decides every draw.
    """

    token_ids: list[int]
    kind: str
    temperature: float
    sequence: int


@dataclass(frozen=True, slots=True)
class GivenText:
    """A given text.

    Attributes:
        token_ids: at least 2.
        kind: for the record.
        supervised_from: index of the first supervised token, at least 1.
        temperature: at which it was sampled, as Example's.
    """

    token_ids: list[int]
    kind: str
    supervised_from: int
    temperature: float


class Teacher:
    """A target that writes and judges.

    Args:
        model: a transformers model that draftwire.engine.supported allows, in evaluation mode, on its device. Its
            linear layers may be packed.
        vocab_size: V; logits at and above it are cut off.
        eos_token_ids: end a reply.
        top_k: likeliest ids that are kept; at most V.
        temperatures: at which the mass of the others is kept.
        seed: of every draw.
        batch_size: sequences of a wave.
    """

    def __init__(
        self,
        model: Any,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        top_k: int,
        temperatures: Sequence[float],
        seed: int,
        batch_size: int,
    ) -> None:
        if top_k > vocab_size:
            raise InvalidArgument("--top-k", f"must be at most {vocab_size}, the target's vocabulary (got {top_k})")
        self.fingerprint = target_fingerprint(model)
        self.batch_size = batch_size
        self._head = model.get_output_embeddings().weight.detach()[:vocab_size]
        pack_linears(model, batch_size)
        self._model = model
        self._vocab_size, self._top_k, self._temperatures, self._seed = vocab_size, top_k, temperatures, seed
        self._eos = torch.tensor(list(eos_token_ids), dtype=torch.int64, device=model.device)

    def sample(
        self,
        requests: Sequence[Request],
        max_new_tokens: int,
        told: Callable[[int], None] = lambda _: None,
        salt: int = 0,
    ) -> list[Example]:
        """The requests with their replies, in order; an end token belongs to the reply and is supervised.

        Prompts of about the same length share a wave. `told` hears of new tokens; another `salt` draws anew.
        """
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].token_ids))
        examples: dict[int, Example] = {}
        for start in range(0, len(order), self.batch_size):
            some = order[start : start + self.batch_size]
            answered = self._sample_wave([requests[i] for i in some], max_new_tokens, told, salt)
            examples.update(zip(some, answered, strict=True))
        return [examples[i] for i in range(len(requests))]

    @torch.inference_mode()
    def _sample_wave(
        self, requests: Sequence[Request], max_new_tokens: int, told: Callable[[int], None], salt: int
    ) -> list[Example]:
        wave = Wave(self._model, [request.token_ids for request in requests], max_new_tokens - 1)
        rows: list[Rows] = []
        owners: list[list[int]] = []
        lengths = [0] * len(requests)
        current, running = list(range(len(requests))), set(range(len(requests)))
        for step in range(max_new_tokens):
            keys = [(requests[i].sequence, len(requests[i].token_ids) + step) for i in current]
            new = teacher_rows(
                self._model.get_output_embeddings()(wave.last_hidden)[:, : self._vocab_size],
                wave.last_hidden,
                self._head,
                top_k=self._top_k,
                temperatures=self._temperatures,
                samplings=[requests[i].temperature for i in current],
                uniforms=[uniform(self._seed, *key, Purpose.CORRECTION, salt) for key in keys],
            )
            rows.append(new)
            owners.append(current)
            told(len(running))
            for i in running:
                lengths[i] += 1
            ended = torch.isin(new.tokens, self._eos).tolist()
            running -= {i for i, end in zip(current, ended, strict=True) if end}
            if not running or step + 1 == max_new_tokens:
                break
            tokens = new.tokens
            if len(running) <= len(current) * (1 - _DROP):
                order = wave.drop([row for row, i in enumerate(current) if i not in running])
                tokens, current = tokens[order], [current[row] for row in order]
            wave.advance(tokens)
        return _assemble(requests, rows, owners, lengths)

    @torch.inference_mode()
    def score(self, texts: Sequence[GivenText], told: Callable[[int], None] = lambda _: None) -> list[Example]:
        """The texts with what the teacher thinks of their supervised tokens, in order."""
        self._model.set_attn_implementation("sdpa")
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].token_ids))
        examples: dict[int, Example] = {}
        while order:
            count = max(1, min(len(order), _SCORED_TOKENS // len(texts[order[-1]].token_ids)))
            some, order = order[-count:], order[:-count]
            examples.update(zip(some, self._score_batch([texts[i] for i in some], told), strict=True))
        return [examples[i] for i in range(len(texts))]

    def _score_batch(self, texts: Sequence[GivenText], told: Callable[[int], None]) -> list[Example]:
        """Padded on the right, where a causal model does not look."""
        width = max(len(text.token_ids) for text in texts)
        padded = [text.token_ids + [0] * (width - len(text.token_ids)) for text in texts]
        ids = torch.tensor(padded, device=self._model.device)
        hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        examples = []
        for text, states in zip(texts, hidden, strict=True):
            own = states[text.supervised_from - 1 : len(text.token_ids) - 1]
            parts = [self._judge(some) for some in own.split(_JUDGED_ROWS)]
            rows = Rows(*(torch.cat([getattr(part, name) for part in parts]) for name in Rows.__slots__))
            told(len(own))
            examples.append(_example(text.token_ids, text.supervised_from, rows, text.kind, text.temperature))
        return examples

    def _judge(self, hidden: Tensor) -> Rows:
        """Rows of hidden states [n, H], with the likeliest token as the one drawn."""
        return teacher_rows(
            self._model.get_output_embeddings()(hidden)[:, : self._vocab_size],
            hidden,
            self._head,
            top_k=self._top_k,
            temperatures=self._temperatures,
            samplings=[0.0] * len(hidden),
            uniforms=[0.0] * len(hidden),
        )


def _assemble(
    requests: Sequence[Request], rows: Sequence[Rows], owners: Sequence[Sequence[int]], lengths: list[int]
) -> list[Example]:
    """Examples from the rows of every step: `owners` says whose they are, `lengths` how many of each are its reply."""
    owner = torch.tensor([i for step in owners for i in step])
    step = torch.tensor([number for number, some in enumerate(owners) for _ in some])
    counts = torch.tensor(lengths)
    valid = (step < counts[owner]).nonzero()[:, 0]
    order = valid[owner[valid].argsort(stable=True)]
    columns = ([getattr(r, name).cpu() for r in rows] for name in Rows.__slots__)
    parts = zip(*(torch.split(torch.cat(column)[order], lengths) for column in columns), strict=True)
    return [
        _example(
            request.token_ids + own[0].tolist(), len(request.token_ids), Rows(*own), request.kind, request.temperature
        )
        for request, own in zip(requests, parts, strict=True)
    ]


def _example(token_ids: list[int], supervised_from: int, rows: Rows, kind: str, temperature: float) -> Example:
    ids = torch.tensor(token_ids)
    return Example(
        ids,
        torch.arange(len(ids)) >= supervised_from,
        rows.top_ids.cpu().long(),
        rows.top_logprobs.cpu().float(),
        rows.tail_logmass.cpu(),
        kind,
        temperature,
    )
