"""The teacher: waves of replies against one forward a token, and given texts against a plain forward."""

import math

import pytest
import torch
from engine.tiny_models import EXTRA, VOCAB_SIZE, make

from distill import teacher as judging
from distill.hardware import has_tiles
from distill.packed import PackedLinear, pack_linears
from distill.teacher import GivenText, Request, Teacher
from draftwire.errors import InvalidArgument

TOP_K = 4

#: Of different lengths, some with a beginning that all share.
PROMPTS = ([5, 6, 7, 8, 9, 10, 11], [5, 6, 7], [5, 6, 7, 30], [5, 6, 7, 8], [5, 6, 40, 41, 42])
UNLIKE = ([9, 8, 7], [1], [44, 3, 2, 1, 0])


def teacher(model, eos=(), **changes):
    """Over the whole vocabulary of a tiny model."""
    options = {"top_k": TOP_K, "temperatures": (1.0, 2.0), "seed": 1, "batch_size": 8} | changes
    return Teacher(model, vocab_size=VOCAB_SIZE, eos_token_ids=eos, **options)


def requests(prompts, temperature=0.0):
    """One each, numbered."""
    return [Request(list(ids), f"kind {i}", temperature, i) for i, ids in enumerate(prompts)]


def plain(model, token_ids):
    """Logits [n, V] of a text, by transformers' own attention."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0].double()


def check_rows(model, example, prompt_length):
    """The stored rows are those of a plain forward over the whole sequence."""
    tokens = example.token_ids.tolist()
    assert example.supervised.tolist() == [i >= prompt_length for i in range(len(tokens))]
    logits = plain(model, tokens)[prompt_length - 1 : -1]
    logprobs = logits.log_softmax(-1)
    torch.testing.assert_close(logprobs.gather(1, example.top_ids), example.top_logprobs.double(), atol=1e-2, rtol=1e-3)
    assert (logprobs.gather(1, example.top_ids)[:, 0] - logprobs.amax(-1)).abs().max() < 1e-4
    for column, temperature in enumerate((1.0, 2.0)):
        outside = (logits / temperature).softmax(-1).scatter(1, example.top_ids, 0).sum(-1).log()
        torch.testing.assert_close(outside, example.tail_logmass[:, column].double(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("architecture", EXTRA)
def test_greedy_replies_are_the_models(architecture):
    """Every architecture: prompts side by side give what each gives alone, with the rows of a plain forward."""
    model = make(architecture)
    for prompts in (PROMPTS, UNLIKE):
        found = teacher(model).sample(requests(prompts), 6)
        for ids, example in zip(prompts, found, strict=True):
            expected = list(ids)
            for _ in range(6):
                expected.append(plain(model, expected)[-1].argmax().item())
            assert example.token_ids.tolist() == expected
            check_rows(model, example, len(ids))


def test_sampled_replies_do_not_depend_on_the_batch():
    """A draw is keyed by the sequence's number: alone, in waves of two, or all together. Kinds and order are kept."""
    model = make("LlamaForCausalLM")
    asked = requests(PROMPTS * 2, temperature=1.0)
    together = teacher(model, eos=range(0, 90, 9)).sample(asked, 12)
    small = teacher(model, eos=range(0, 90, 9), batch_size=2).sample(asked, 12)
    for request, one, two in zip(asked, together, small, strict=True):
        (alone,) = teacher(model, eos=range(0, 90, 9)).sample([request], 12)
        assert one.token_ids.tolist() == two.token_ids.tolist() == alone.token_ids.tolist()
        assert (one.kind, one.temperature) == (request.kind, 1.0)
        check_rows(model, one, len(request.token_ids))
    replies = {
        tuple(example.token_ids[len(request.token_ids) :].tolist())
        for request, example in zip(asked, together, strict=True)
    }
    assert len(replies) == len(asked)  # the same prompt twice, but not the same draws
    assert len({len(reply) for reply in replies}) > 3  # some ended early, so the wave shrank


def test_ended_sequences_that_stay_for_a_while():
    """In a wave of 40 a single one that has ended is not dropped at once; what it would say next is not kept."""
    model = make("LlamaForCausalLM")
    asked = requests([[5, 6, 7 + i] for i in range(40)], temperature=1.0)
    told = []
    found = teacher(model, eos=[3, 30], batch_size=40).sample(asked, 12, told.append)
    ends = [[token in (3, 30) for token in example.token_ids[3:].tolist()] for example in found]
    assert all(not any(reply[:-1]) for reply in ends)
    assert 3 < sum(reply[-1] for reply in ends) < 40
    assert all(reply[-1] or len(reply) == 12 for reply in ends)
    assert sum(told) == sum(map(len, ends))


def test_another_seed_and_another_salt_draw_anew():
    """And the same ones draw the same."""
    model = make("LlamaForCausalLM")

    def tokens(seed, salt):
        (example,) = teacher(model, seed=seed).sample(requests([[5, 6]], 1.0), 12, salt=salt)
        return tuple(example.token_ids.tolist())

    assert tokens(1, 0) == tokens(1, 0)
    assert len({tokens(1, 0), tokens(2, 0), tokens(1, 1)}) == 3


def test_an_end_token_ends_the_reply_and_belongs_to_it():
    """The third greedy token made an end token: replies stop there, with a row for it."""
    model = make("LlamaForCausalLM")
    (free,) = teacher(model).sample(requests([[5, 6, 7]]), 6)
    end = free.token_ids[5].item()
    first = free.token_ids[3:].tolist().index(end)
    told = []
    (stopped,) = teacher(model, eos=[end]).sample(requests([[5, 6, 7]]), 6, told.append)
    assert torch.equal(stopped.token_ids, free.token_ids[: 4 + first])
    assert len(stopped.top_ids) == int(stopped.supervised.sum()) == sum(told) == first + 1


def test_given_texts():
    """Rows of a corpus are those of a plain forward, from where each text is supervised; texts of unequal length."""
    model = make("LlamaForCausalLM")
    texts = [
        GivenText([1, 2, 3, 4, 5, 6], "a", 1, math.nan),
        GivenText([9, 8], "b", 1, 0.7),
        GivenText([4, 5, 6, 7], "c", 3, 0.0),
    ]
    told = []
    for text, example in zip(texts, teacher(model).score(texts, told.append), strict=True):
        assert example.token_ids.tolist() == text.token_ids
        assert (example.kind, str(example.temperature)) == (text.kind, str(text.temperature))
        check_rows(model, example, text.supervised_from)
    assert sum(told) == 5 + 1 + 1


def test_a_long_text_is_judged_in_parts(monkeypatch):
    """Logits of four positions at a time: the same rows."""
    model, text = make("LlamaForCausalLM"), GivenText(list(range(5, 12)), "a", 1, math.nan)
    monkeypatch.setattr(judging, "_JUDGED_ROWS", 4)
    (example,) = teacher(model).score([text])
    check_rows(model, example, 1)


def test_top_k_above_the_vocabulary():
    """Named before anything is computed."""
    with pytest.raises(InvalidArgument, match=f"--top-k: must be at most {VOCAB_SIZE}"):
        teacher(make("LlamaForCausalLM"), top_k=VOCAB_SIZE + 1)


@pytest.mark.skipif(not has_tiles(), reason="this CPU has no bfloat16 tiles")
def test_packed_layers_compute_the_same():
    """In bfloat16, on a CPU where layers are packed: the same product for any number of rows; float32 is left alone."""
    model = make("Qwen2ForCausalLM").bfloat16()  # its query layer has a bias
    linear = model.model.layers[0].self_attn.q_proj
    inputs = torch.randn(37, linear.in_features).bfloat16()
    with torch.inference_mode():
        expected = linear(inputs)
        assert pack_linears(model, 16) == 3 * 7 + 1
        packed = model.model.layers[0].self_attn.q_proj
        assert isinstance(packed, PackedLinear)
        torch.testing.assert_close(packed(inputs), expected, atol=2e-2, rtol=2e-2)
        assert packed(inputs[None, :1]).shape == (1, 1, linear.out_features)
    assert pack_linears(make("LlamaForCausalLM"), 16) == 0
