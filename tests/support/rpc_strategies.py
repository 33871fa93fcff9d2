"""Hypothesis strategies for the plain values that travel between services, and for any message of a proto type."""

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from draftwire.session import messages as m
from draftwire.types import (
    MAX_PROPOSAL_TOKENS,
    MAX_SUPPORT,
    Committed,
    DraftToken,
    EndReason,
    Finished,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    SamplingParams,
    SpeculationStats,
    Started,
    Support,
    Usage,
    VerificationMode,
)

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
ids = st.lists(uint32, max_size=8).map(tuple)
some_ids = st.lists(uint32, min_size=1, max_size=8).map(tuple)
windows = st.integers(0, MAX_PROPOSAL_TOKENS)
names = st.text(max_size=20)


def float32(low: float, high: float, **limits: bool) -> st.SearchStrategy[float]:
    """Values that survive a float field."""
    return st.floats(low, high, width=32, **limits)


sampling = st.builds(
    SamplingParams,
    temperature=float32(0, 100),
    top_k=uint32,
    top_p=float32(0, 1, exclude_min=True),
    min_p=float32(0, 1),
)
models = st.builds(
    ModelInfo,
    name=names,
    vocab_fingerprint=names,
    vocab_size=st.integers(1, 2**32 - 1),
    max_model_len=st.integers(2, 2**32 - 1),
    eos_token_ids=ids,
    engine=names,
    dtype=names,
)
hellos = st.builds(m.Hello, uint32, st.text(min_size=1, max_size=30), models, uint32)
opens = st.builds(m.Open, uint64, some_ids, sampling, st.sampled_from(VerificationMode), uint64, uint32, windows)
commits = st.builds(m.Commit, uint64, st.integers(1, 2**32 - 1), uint32, ids, windows)
verifier_steps = st.builds(
    m.VerifierStep,
    st.lists(opens, max_size=3).map(tuple),
    st.lists(commits, max_size=3).map(tuple),
    st.lists(st.builds(m.Close, uint64), max_size=3).map(tuple),
)
supports = st.lists(st.tuples(uint32, uint32), min_size=1, max_size=MAX_SUPPORT).map(
    lambda pairs: Support(*map(tuple, zip(*pairs, strict=True)))
)
draft_tokens = st.builds(DraftToken, uint32, st.none() | supports)
proposals = st.builds(m.Proposal, uint64, uint32, uint32, st.lists(draft_tokens, min_size=1, max_size=6).map(tuple))
ended = st.builds(m.Ended, uint64, st.sampled_from(EndReason), names)
drafter_steps = st.builds(
    m.DrafterStep,
    st.lists(st.builds(m.Opened, uint64), max_size=3).map(tuple),
    st.lists(proposals, max_size=3).map(tuple),
    st.lists(ended, max_size=3).map(tuple),
    st.lists(st.builds(m.Idle, uint64, uint32), max_size=3).map(tuple),
)
loads = st.builds(m.Load, uint32, uint32, st.floats(0, 1e9))
drafter_messages = hellos | drafter_steps | loads | st.just(m.Draining())

generate_requests = st.builds(
    GenerateRequest,
    request_id=names,
    prompt_token_ids=some_ids,
    committed_token_ids=ids,
    max_tokens=st.none() | st.integers(1, 2**32 - 1),
    sampling=sampling,
    seed=st.none() | uint64,
    choice=uint32,
    stop_token_ids=ids,
    ignore_eos=st.booleans(),
    num_speculative_tokens=st.none() | uint32,
)
usages = st.builds(Usage, uint32, uint32, uint32)
stats = st.builds(SpeculationStats, *[uint32] * 8)
events = (
    st.builds(Started, names, names)
    | st.builds(Committed, uint32, some_ids, stats, uint32)
    | st.builds(Finished, st.sampled_from(FinishReason), usages, stats)
)

_SCALARS = {
    FieldDescriptor.CPPTYPE_UINT32: uint32 | st.integers(0, 3),
    FieldDescriptor.CPPTYPE_UINT64: uint64,
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: st.text(max_size=400),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(-(2**31), 2**31 - 1) | st.integers(0, 5),
}


@st.composite
def any_proto(draw: st.DrawFn, kind: type[Message]) -> Message:
    """A message of this type with any content that the wire format can carry, sensible or not."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if draw(st.integers(0, 3)) == 0:
            continue
        if field.message_type:
            value = any_proto(field.message_type._concrete_class)
        else:
            value = _SCALARS[field.cpp_type]
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(value, max_size=4)))
        elif field.message_type:
            getattr(message, field.name).CopyFrom(draw(value))
        else:
            setattr(message, field.name, draw(value))
    return message
