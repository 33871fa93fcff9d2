"""The target's side: accept or correct the proposals of many sessions at once, so that the output has law p.

Rejection mode (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318): accept x with probability
min(1, p(x)/q(x)); at the first rejection draw from max(p - q, 0), normalised; if everything is accepted, draw one more
from p. Greedy and coupled sessions draw nothing: the target's token of each row is settled beforehand, and a proposal
is accepted iff it is that token.

A session's verdict depends on its own rows, proposals and key, never on what shares the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from draftwire.errors import InvalidArgument
from draftwire.sampling.coupled import coupled_tokens
from draftwire.sampling.distribution import greedy_tokens, target_probs
from draftwire.sampling.randomness import Purpose, coupled_key, uniform
from draftwire.types import WEIGHT_TOTAL, DraftToken, SamplingParams, Support, VerificationMode


@dataclass(frozen=True, slots=True)
class SessionRows:
    """One session's share of a batch: consecutive rows of logits, and the proposals that they judge.

    Attributes:
        num_rows: rows of logits, at least 1; row i decides the token at position + i.
        proposals: guesses for position, position + 1, .. : num_rows - 1 of them, the last row then giving a free draw;
            or num_rows, if one for the last position arrived in time to be tested in place of that draw (late binding).
            Their ids are below the vocabulary's size and their supports are valid: the receiver of a message checks.
        sampling: how the target's logits become p.
        mode: rejection or coupled.
        seed: key of the randomness, with choice and position.
        choice: key of the randomness.
        position: index in prompt + output of the token that row 0 decides.
    """

    num_rows: int
    proposals: Sequence[DraftToken]
    sampling: SamplingParams
    mode: VerificationMode
    seed: int
    choice: int
    position: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says.

    Attributes:
        token_ids: the accepted proposals, then the correction or the free draw; the latter is missing if the proposal
            for the last row was accepted.
        accepted: how many proposals were accepted.
        tested: how many were tested, up to and including the first rejection.
    """

    token_ids: tuple[int, ...]
    accepted: int
    tested: int


def verify(
    logits: Tensor,  # [R, V], R = sum of num_rows
    sessions: Sequence[SessionRows],
) -> list[Verdict]:
    """Judge every session's proposals; the verdicts are in the order of the sessions.

    Raises InvalidArgument if rows and sessions do not fit, EngineError if a row of logits is not a distribution.
    """
    for session in sessions:
        if session.num_rows < 1 or session.num_rows - len(session.proposals) not in (0, 1):
            raise InvalidArgument("proposals", f"{len(session.proposals)} do not go with {session.num_rows} rows")
    starts = list(accumulate((session.num_rows for session in sessions), initial=0))
    if starts[-1] != logits.shape[0]:
        raise InvalidArgument("logits", f"{logits.shape[0]} rows for sessions that hold {starts[-1]}")

    groups: dict[Callable[[Tensor, Sequence[SessionRows]], list[Verdict]], list[int]]
    groups = {_verify_greedy: [], _verify_coupled: [], _verify_sampled: []}
    for index, session in enumerate(sessions):
        if not session.sampling.temperature:
            groups[_verify_greedy].append(index)
        elif session.mode is VerificationMode.COUPLED:
            groups[_verify_coupled].append(index)
        else:
            groups[_verify_sampled].append(index)
    verdicts: dict[int, Verdict] = {}
    for verify_group, group in groups.items():
        if group:
            part = logits
            if len(group) < len(sessions):
                rows = [row for index in group for row in range(starts[index], starts[index + 1])]
                part = logits[_ints(rows, logits)]
            verdicts.update(zip(group, verify_group(part, [sessions[index] for index in group]), strict=True))
    return [verdicts[index] for index in range(len(sessions))]


def _verify_greedy(logits: Tensor, sessions: Sequence[SessionRows]) -> list[Verdict]:
    return _follow(greedy_tokens(logits).tolist(), sessions)


def _verify_coupled(logits: Tensor, sessions: Sequence[SessionRows]) -> list[Verdict]:
    keys = [
        coupled_key(session.seed, session.choice, session.position + i)
        for session in sessions
        for i in range(session.num_rows)
    ]
    return _follow(coupled_tokens(target_probs(logits, _row_params(sessions)), keys).tolist(), sessions)


def _follow(tokens: list[int], sessions: Sequence[SessionRows]) -> list[Verdict]:
    """Verdicts where the target's token of every row is settled: follow it as far as the proposals do."""
    verdicts, start = [], 0
    for session in sessions:
        own = tuple(tokens[start : start + session.num_rows])
        start += session.num_rows
        accepted = 0
        while accepted < len(session.proposals) and session.proposals[accepted].token == own[accepted]:
            accepted += 1
        tested = min(accepted + 1, len(session.proposals))
        verdicts.append(Verdict(own[: accepted + 1], accepted, tested))
    return verdicts


def _verify_sampled(logits: Tensor, sessions: Sequence[SessionRows]) -> list[Verdict]:
    probs = target_probs(logits, _row_params(sessions))
    accepted = _count_accepted(probs, sessions)

    rows: list[int] = []  # of the sessions that need a draw: the row that it is made from,
    refuted: list[DraftToken | None] = []  # the proposal that this row rejected (None: free draw),
    uniforms: list[float] = []  # and its randomness
    start = 0
    for session, count in zip(sessions, accepted, strict=True):
        if count < session.num_rows:
            rows.append(start + count)
            refuted.append(session.proposals[count] if count < len(session.proposals) else None)
            uniforms.append(uniform(session.seed, session.choice, session.position + count, Purpose.CORRECTION))
        start += session.num_rows
    drawn = iter(draw_corrections(probs[_ints(rows, probs)], refuted, uniforms) if rows else ())

    verdicts = []
    for session, count in zip(sessions, accepted, strict=True):
        kept = [proposal.token for proposal in session.proposals[:count]]
        if count < session.num_rows:
            kept.append(next(drawn))
        verdicts.append(Verdict(tuple(kept), count, min(count + 1, len(session.proposals))))
    return verdicts


def _count_accepted(probs: Tensor, sessions: Sequence[SessionRows]) -> list[int]:
    """How many proposals each session accepts before its first rejection."""
    rows: list[int] = []
    ids: list[int] = []
    start = 0
    for session in sessions:
        rows.extend(range(start, start + len(session.proposals)))
        ids.extend(proposal.token for proposal in session.proposals)
        start += session.num_rows
    target = iter(probs[_ints(rows, probs), _ints(ids, probs)].tolist())  # p of every proposal, in one transfer

    counts = []
    for session in sessions:
        session_target = [next(target) for _ in session.proposals]
        count = 0
        for p, proposal in zip(session_target, session.proposals, strict=True):
            u = uniform(session.seed, session.choice, session.position + count, Purpose.ACCEPT)
            if not u * _weight(proposal) < p * WEIGHT_TOTAL:
                break
            count += 1
        counts.append(count)
    return counts


def _weight(proposal: DraftToken) -> int:
    """q of the proposed token, in units of 1 / WEIGHT_TOTAL."""
    return WEIGHT_TOTAL if proposal.q is None else proposal.q.weights[proposal.q.ids.index(proposal.token)]


def draw_corrections(
    probs: Tensor,  # [N, V] p of the rows to draw from
    refuted: Sequence[DraftToken | None],  # per row: the proposal that was rejected there, None for a free draw
    uniforms: Sequence[float],  # per row, [0, 1)
) -> list[int]:
    """Draw from max(p - q, 0), or from p where nothing was rejected, by inverse CDF in float64."""
    rows: list[int] = []  # q in coordinate form, one entry per (row, id)
    ids: list[int] = []
    weights: list[int] = []
    for row, proposal in enumerate(refuted):
        if proposal is not None:
            q = proposal.q or Support((proposal.token,), (WEIGHT_TOTAL,))
            rows += [row] * len(q.ids)
            ids += q.ids
            weights += q.weights
    residual = probs.double()
    if rows:
        excess = _ints(weights, probs).double() / -WEIGHT_TOTAL
        residual = residual.index_put((_ints(rows, probs), _ints(ids, probs)), excess, accumulate=True).clamp_(min=0.0)
        # p = q up to rounding leaves nothing over: then p is the limit of what to draw from.
        residual = torch.where(residual.amax(dim=-1, keepdim=True) > 0, residual, probs)
    reached = residual.cumsum(dim=-1)
    marks = reached.new_tensor(uniforms)[:, None] * reached[:, -1:]
    return torch.searchsorted(reached, marks, right=True)[:, 0].tolist()  # the first entry beyond its mark


def _ints(values: list[int], like: Tensor) -> Tensor:
    """An int64 tensor on the device of `like`; through numpy, which reads a list five times as fast as torch."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(like.device)


def _row_params(sessions: Sequence[SessionRows]) -> list[SamplingParams]:
    return [session.sampling for session in sessions for _ in range(session.num_rows)]
