"""Draft and target in one process, taking turns on all cores: what everybody else does, from the same parts.

No network, no threads between the two, no waiting: the same drafters, engine and verification in lock step. It is the
best case of co-located speculation on this machine, to hold the split against.
"""

import time
from collections.abc import Sequence

from bench.load import Result, Task
from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter, Key
from draft_service.drafters.load import make_drafter
from draft_service.session import Session
from draftwire.cli.client import Transcript
from draftwire.cli.stack import StackOptions
from draftwire.engine.base import Chunk, Engine
from draftwire.engine.load import load_engine
from draftwire.sampling import SessionRows, verify
from draftwire.session import VerifierSession
from draftwire.types import SamplingParams, Usage, VerificationMode

_KEY: Key = (0, 1)


def generate(
    target: Engine,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    k: int,
    max_tokens: int,
    sampling: SamplingParams,
    seed: int,
) -> Transcript:
    """One answer by synchronous speculation with K = k."""
    transcript, mode = Transcript(), VerificationMode.REJECTION
    tokens = list(prompt)
    place = target.acquire(tokens)
    assert place is not None, "one answer at a time fits every engine"
    slot, computed = place
    ours = VerifierSession(1, tokens, target.info.vocab_size, k)
    theirs = Session(ours.open(sampling, mode, seed, 0, k), drafter.info)
    assert drafter.open(_KEY, theirs)
    while len(tokens) - computed > 1:  # prefill all but the last token
        piece = tokens[computed : min(len(tokens) - 1, computed + target.max_batched_tokens)]
        target.forward([Chunk(slot, computed, piece, 0)])
        computed += len(piece)
    stats = transcript.speculation
    while len(tokens) < len(prompt) + max_tokens:
        _draft(drafter, theirs, ours, k)
        guesses = ours.pending(min(k, len(prompt) + max_tokens - len(tokens) - 1))
        chunk = [tokens[-1], *(guess.token for guess in guesses)]
        logits = target.forward([Chunk(slot, len(tokens) - 1, chunk, len(chunk))])
        verdict = verify(logits, [SessionRows(len(chunk), guesses, sampling, mode, seed, 0, len(tokens))])[0]
        tokens += verdict.token_ids
        drafter.truncate(_KEY, theirs.receive(ours.commit(verdict.token_ids, k)))
        transcript.arrivals.append((time.monotonic(), len(verdict.token_ids)))
        stats.steps += 1
        stats.committed_tokens += len(verdict.token_ids)
        stats.tested_tokens += verdict.tested
        stats.accepted_tokens += verdict.accepted
    drafter.close(_KEY)
    target.release(slot)
    transcript.token_ids = tokens[len(prompt) :]
    transcript.usage = Usage(len(prompt), max_tokens)
    return transcript


def _draft(drafter: Drafter, theirs: Session, ours: VerifierSession, k: int) -> None:
    while ours.pending_count < k:
        drafts = drafter.step([(_KEY, theirs)])
        if drafts is None:
            return  # the drafter's own length is reached
        for drafted in drafts:
            if drafted.tokens:
                ours.receive(theirs.draft(drafted.tokens))


def run_colocated(
    options: StackOptions, tasks: Sequence[Task], threads: int, repeats: int, max_tokens: int, temperature: float
) -> Result:
    """Every task as `bench.load.run_all` does it, in this process; K and models as in `options`."""
    target = load_engine(
        options.target,
        dtype=options.dtype,
        num_slots=1,
        max_model_len=options.max_model_len,
        max_batched_tokens=512,
        threads=threads,
    )
    drafter = make_drafter(
        DraftConfig(
            draft=options.draft,
            drafter=options.drafter,
            dtype=options.dtype,
            max_model_len=options.max_model_len,
            threads=threads,
        )
    )
    result = Result()
    for repeat in range(-1, repeats):  # -1 warms up
        for task in tasks if repeat >= 0 else tasks[:1]:
            transcript = generate(
                target,
                drafter,
                task.prompt_token_ids,
                k=options.num_speculative_tokens,
                max_tokens=max_tokens,
                sampling=SamplingParams(temperature=temperature),
                seed=repeat + 1,
            )
            if repeat >= 0:
                result.answers.append((task, transcript))
    return result
