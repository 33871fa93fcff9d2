"""From sequences to the batches that a student is trained on.

A batch holds whole sequences, padded on the right, and one row of the teacher for each supervised token. The token at
i is predicted by the student's output at i - 1, so a batch names the outputs that the loss needs (`positions`) and the
student runs its head on those alone. Padding on the right needs no attention mask in a causal model: no supervised
position sees it.

Batches are cut by tokens, not by sequences: each holds about equally many supervised tokens, which is what the loss is
a mean over, and sequences of like length, so that little of it is padding.

One iteration over the batch sampler is a whole run, all its passes over the data. Hugging Face's Trainer resumes inside
an epoch by skipping the first batches of the sampler, and wraps it in others that do not tell it the epoch; a run that
is one epoch to the Trainer therefore continues with the very batches that it would have had.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler, Subset

from distill.data import DistillationData, Example
from draftwire.errors import InvalidArgument

#: Sequences are sorted by length among those of so many batches, so that a batch still is a random mixture.
_WINDOW = 16


class Collator:
    """Makes a batch of examples; the `collate_fn` of a DataLoader.

    What is beyond the maximum length is cut off at the end.

    Args:
        temperatures: at which the data set has the mass outside the stored ids.
        temperature: of the loss, one of these.
        max_length: tokens that are kept of a sequence.
        pad_id: any id; nothing that counts ever sees it.

    Raises InvalidArgument if the data set was not collected for the temperature, or max_length is below 2.
    """

    def __init__(self, temperatures: Sequence[float], temperature: float, max_length: int, pad_id: int = 0) -> None:
        if temperature not in temperatures:
            known = ", ".join(f"{t:g}" for t in temperatures)
            raise InvalidArgument("temperature", f"is {temperature:g}, but the data was collected for {known}")
        if max_length < 2:
            raise InvalidArgument("max_length", f"is {max_length}, must be at least 2")
        self._column = tuple(temperatures).index(temperature)
        self._max_length, self._pad_id = max_length, pad_id

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Pad and join b examples with n supervised tokens within the maximum length.

        Returns:
            input_ids: [b, s] int64.
            attention_mask: [b, s] int64, 0 where padded.
            positions: [n] int64, ascending: where in the b * s outputs the supervised tokens are predicted.
            labels: [n] int64, those tokens.
            top_ids: [n, k] int64, the teacher's rows for them.
            top_logprobs: [n, k] float32, at temperature 1.
            tail_logmass: [n] float32, at the loss's temperature.

        Raises InvalidArgument if a sequence's first token is supervised: nothing predicts it.
        """
        cut = [_truncate(example, self._max_length) for example in examples]
        input_ids = pad_sequence([e.token_ids for e in cut], batch_first=True, padding_value=self._pad_id)
        real = pad_sequence([torch.ones_like(e.token_ids) for e in cut], batch_first=True)
        supervised = pad_sequence([e.supervised for e in cut], batch_first=True)
        if supervised[:, 0].any():
            raise InvalidArgument("supervised", "marks the first token of a sequence, which nothing predicts")
        targets = supervised.flatten().nonzero()[:, 0]
        return {
            "input_ids": input_ids,
            "attention_mask": real,
            "positions": targets - 1,
            "labels": input_ids.flatten()[targets],
            "top_ids": torch.cat([e.top_ids for e in cut]),
            "top_logprobs": torch.cat([e.top_logprobs for e in cut]),
            "tail_logmass": torch.cat([e.tail_logmass[:, self._column] for e in cut]),
        }


class TokenBudgetBatches(Sampler[list[int]]):
    """Batches of indices for a whole run; the `batch_sampler` of a DataLoader. The same arguments, the same batches.

    Each pass has every example that has a supervised token exactly once, in an order of its own. Only the last batch
    of a pass may fall far short of `tokens`.

    Args:
        sizes: length and supervised tokens of each example, from `example_sizes`.
        tokens: most supervised tokens in a batch; an example that alone has more is a batch.
        padded: most tokens in a batch, padding included; likewise.
        passes: over the data.
        seed: of the order.

    Raises InvalidArgument if there is nothing to learn from, or a number is below 1.
    """

    def __init__(
        self, sizes: Sequence[tuple[int, int]], tokens: int, padded: int, passes: int = 1, seed: int = 0
    ) -> None:
        for name, value in (("tokens", tokens), ("padded", padded), ("passes", passes)):
            if value < 1:
                raise InvalidArgument(name, f"is {value}, must be at least 1")
        self._sizes, self._tokens, self._padded = sizes, tokens, padded
        usable = [index for index, (_, supervised) in enumerate(sizes) if supervised]
        if not usable:
            raise InvalidArgument("data", "no sequence has a supervised token within the maximum length")
        self._batches = [
            batch for number in range(passes) for batch in self._pass(usable, random.Random(f"{seed}/{number}"))
        ]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)

    def _pass(self, usable: Sequence[int], rng: random.Random) -> Iterator[list[int]]:
        rest: list[int] = []
        for window in self._windows(rng.sample(usable, len(usable))):
            *batches, rest = self._cut(sorted(rest + window, key=lambda index: self._sizes[index][0]))
            rng.shuffle(batches)
            yield from batches
        yield rest

    def _windows(self, order: Sequence[int]) -> Iterator[list[int]]:
        """Consecutive stretches that fill `_WINDOW` batches, and what remains."""
        window: list[int] = []
        total = 0
        for index in order:
            window.append(index)
            total += self._sizes[index][1]
            if total >= _WINDOW * self._tokens:
                yield window
                window, total = [], 0
        if window:
            yield window

    def _cut(self, ascending: Sequence[int]) -> Iterator[list[int]]:
        """Batches of examples in order of length; each is full but the last."""
        batch: list[int] = []
        total = 0
        for index in ascending:
            length, supervised = self._sizes[index]
            if batch and (total + supervised > self._tokens or (len(batch) + 1) * length > self._padded):
                yield batch
                batch, total = [], 0
            batch.append(index)
            total += supervised
        yield batch


def example_sizes(
    data: DistillationData | Subset[Example],
    max_length: int,
) -> list[tuple[int, int]]:
    """(length, supervised tokens) of each example, as the collator cuts it."""
    cut = (_truncate(data[index], max_length) for index in range(len(data)))
    return [(len(example.token_ids), len(example.top_ids)) for example in cut]


def _truncate(example: Example, max_length: int) -> Example:
    """The beginning of an example, and the teacher's rows for it."""
    supervised = example.supervised[:max_length]
    rows = int(supervised.sum())
    return replace(
        example,
        token_ids=example.token_ids[:max_length],
        supervised=supervised,
        top_ids=example.top_ids[:rows],
        top_logprobs=example.top_logprobs[:rows],
        tail_logmass=example.tail_logmass[:rows],
    )
