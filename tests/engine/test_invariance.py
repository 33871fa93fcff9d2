"""Batch-invariant mode refuses machines whose kernels do not keep it: kernels that misbehave on purpose."""

import pytest
import tiny_models
import torch
from torch import nn

from draftwire.engine import invariance
from draftwire.engine.load import load_engine
from draftwire.errors import ModelError


class CountingLinear(nn.Linear):
    """Adds a little to the rows that do not fill a group of `group`; without a group, more the more rows there are."""

    group = 4

    def forward(self, x):
        rows = super().forward(x)
        if self.group:
            rows[:, rows.shape[1] // self.group * self.group :] += 1e-6
        else:
            rows += 1e-6 * rows.shape[1]
        return rows


def tiny_with(group):
    """A tiny model whose largest layer is a CountingLinear."""
    model = tiny_models.make("LlamaForCausalLM").requires_grad_(False).double()  # one kernel for every count
    head = CountingLinear(model.lm_head.in_features, model.lm_head.out_features, bias=False, dtype=torch.float64)
    head.group = group
    model.lm_head = head.requires_grad_(False)
    return model


@pytest.mark.parametrize("group", [6, 8, 12])
def test_finds_what_the_kernel_needs(group):
    """A kernel that treats whole groups alike gives a multiple of that group."""
    assert invariance.find_row_multiple(tiny_with(group)) % group == 0


def test_blocks_of_one_size_where_no_multiple_helps():
    """A kernel that treats no two counts alike sees one count only, and every row has the same bits in any batch."""
    model = tiny_with(None)
    rows = torch.randn(1, 4 * invariance.BLOCK_ROWS, model.lm_head.in_features, dtype=torch.float64)
    block = invariance.find_row_multiple(model)
    assert block == invariance.BLOCK_ROWS
    whole = model.lm_head(rows)
    assert whole.shape == (1, 4 * block, model.lm_head.out_features)
    for end in (block, 3 * block):
        assert torch.equal(model.lm_head(rows[:, :end]), whole[:, :end])


def test_check_passes_a_good_engine(tmp_path):
    """The check accepts the engine that the mode builds, and leaves every slot free."""
    engine = load_engine(
        tiny_models.save(tmp_path), dtype="float32", num_slots=3, max_batched_tokens=512, batch_invariant=True
    )
    invariance.check_engine(engine)
    assert engine.max_batched_tokens <= invariance.MAX_ROWS
    assert all(engine.acquire([i]) for i in range(3))


def test_check_catches_a_row_that_depends_on_its_company(tmp_path):
    """An engine whose rows move by one bit with the size of the batch is refused."""
    engine = load_engine(
        tiny_models.save(tmp_path), dtype="float32", num_slots=3, max_batched_tokens=512, batch_invariant=True
    )
    honest = engine.forward

    def disturbed(chunks):
        logits = honest(chunks)
        if len(chunks) == 2:
            logits[0, 0] = torch.nextafter(logits[0, 0], torch.tensor(torch.inf))  # the smallest change there is
        return logits

    engine.forward = disturbed
    with pytest.raises(ModelError, match="--batch-invariant"):
        invariance.check_engine(engine)
