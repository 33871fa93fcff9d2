"""What theory says: speed of speculative decoding from acceptance and step times.

a acceptance, K tested proposals, t_v(n) a target step over n + 1 tokens, t_d a draft step, R the round trip; seconds,
measured while both sides are busy. E = (1 - a^(K+1)) / (1 - a) tokens a step (Leviathan et al., arXiv 2211.17192).
"""

from verify_service.policy import Pace, StepTimes, choose, expected_tokens, pace


def lock_step(acceptance: float, k: int, times: StepTimes) -> float:
    """Tokens per second where each step waits for K fresh proposals: E / (R + K t_d + t_v(K))."""
    return expected_tokens(acceptance, k) / lock_step_seconds(k, times)


def lock_step_seconds(k: int, times: StepTimes) -> float:
    """A step that waits for k fresh proposals: R + K t_d + t_v(K)."""
    wait = times.draft_restart + (k - 1) * times.draft_step if k else 0.0
    return wait + times.verify(k + 1)


def pipelined_ceiling(acceptance: float, k: int, times: StepTimes) -> float:
    """Tokens per second where drafting hides completely behind verification: E / max(t_v(K), K t_d + R).

    At acceptance below 1 nothing reaches it: after a rejection the next path begins only when the correction is known.
    """
    drafting = times.draft_restart + (k - 1) * times.draft_step if k else 0.0
    return expected_tokens(acceptance, k) / max(times.verify(k + 1), drafting)


def streaming(acceptance: float, k: int, times: StepTimes) -> Pace:
    """The mean step of the best plan of the pipeline with restarts (verify_service.policy.pace)."""
    plan = choose(k, acceptance, times)
    if plan.num_speculative_tokens == 0:
        return Pace(1.0, times.verify(1), 0.0)
    return pace(plan.num_speculative_tokens, plan.min_proposals, acceptance, times)
