"""The student: a small causal model with the head that training needs.

Of a target's text only some positions are supervised, so the head runs on these rows alone. There are two kinds:

    trimmed   decoder layers on the target's embedding, which is shared, frozen and stored nowhere. Logits over
              draft_vocab are E[draft_vocab] (A h): the rows of the target's head E stay frozen too, the adapter A is
              learnt. What it stores has the names of draftwire.engine.trimmed.
    plain     any model of transformers with a head of its own over the whole vocabulary, all of it learnt.

Sequences are padded at their right ends. Attention is causal, so no row before the padding can see it and no mask is
needed, which lets attention take its quickest kernel.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from draftwire.errors import ModelError


class FrozenEmbedding(nn.Module):
    """The target's input embedding, as it is: no gradient, and no part of what the student stores.

    Args:
        weight: [V, H], of any type; looked-up rows are widened to float32.
    """

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: [..], int64. Returns [.., H], float32."""
        return F.embedding(token_ids, self.weight).float()


class Student(nn.Module):
    """A causal model of transformers under training, in float32.

    Args:
        causal: the model; for a trimmed student cut to its layers.
        draft_vocab: [R], the target's ids that a trimmed student can propose, likeliest first; None = plain.
    """

    draft_vocab: Tensor | None
    _rows: Tensor | None

    def __init__(self, causal: Any, draft_vocab: Tensor | None = None) -> None:
        super().__init__()
        self.causal = causal
        self.adapter: nn.Linear | None = None
        rows = None
        if draft_vocab is None:
            causal.float()
        else:
            # Both stay of the target's type, which takes half the memory where that is bfloat16.
            embedding = causal.get_input_embeddings().weight.detach()
            rows = causal.get_output_embeddings().weight.detach()[draft_vocab.long()]
            causal.set_output_embeddings(nn.Identity())
            causal.set_input_embeddings(nn.Identity())
            causal.float()
            causal.set_input_embeddings(FrozenEmbedding(embedding))
            self.adapter = nn.Linear(rows.shape[1], rows.shape[1], bias=False)
            nn.init.eye_(self.adapter.weight)
            draft_vocab = draft_vocab.int()
        self.register_buffer("draft_vocab", draft_vocab, persistent=False)
        self.register_buffer("_rows", rows, persistent=False)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Logits [n, R], or [n, V] of a plain student.

        Args:
            input_ids: [b, s], padded at the right.
            positions: [n], the rows wanted, counted through b * s.
        """
        hidden = self.causal.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        hidden = hidden.flatten(0, 1)[positions]
        if self.adapter is None or self._rows is None:
            return self.causal.get_output_embeddings()(hidden)  # type: ignore[no-any-return]
        hidden = self.adapter(hidden)
        return F.linear(hidden, self._rows.to(hidden.dtype))

    @property
    def max_length(self) -> int:
        """Longest sequence that it can read, tokens."""
        return int(self.causal.config.max_position_embeddings)

    def learnt(self) -> dict[str, nn.Parameter]:
        """What training changes, by the name that it is stored under. Tied weights come once."""
        return {name.removeprefix("causal."): p for name, p in self.named_parameters() if p.requires_grad}

    def tables(self) -> list[nn.Parameter]:
        """What of it looks tokens up or scores them: the matrices with a row for each token. Empty if trimmed."""
        modules = (self.causal.get_input_embeddings(), self.causal.get_output_embeddings())
        return [p for module in modules for p in module.parameters() if p.ndim == 2 and p.requires_grad]

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes on the disk, at most: weights, their average and AdamW's two moments, in float32."""
        return sum(4 * 4 * parameter.numel() for parameter in self.learnt().values())

    def digest(self) -> str:
        """SHA-256, hex, of its weights and its draft_vocab."""
        digest = hashlib.sha256()
        for name, tensor in (*sorted(self.learnt().items()), ("draft_vocab", self.draft_vocab)):
            if tensor is not None:
                digest.update(f"\0{name}{list(tensor.shape)}\0".encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def load(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Take over weights by stored name. Raises ModelError, naming `source`, if they are not this student's."""
        mine = self.learnt()
        problem = ", ".join(sorted(mine.keys() ^ weights.keys())[:3])
        for name in mine.keys() & weights.keys():
            if mine[name].shape != weights[name].shape:
                problem = f"{name}: {list(weights[name].shape)} is not {list(mine[name].shape)}"
        if problem:
            raise ModelError(f"{source}: the weights do not fit the student: {problem}")
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(weights[name])
