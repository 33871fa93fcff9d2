"""What a verify worker tells Prometheus. Labels never carry a request's id."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draftwire.types import SpeculationStats
from verify_service.policy import Plan, StepTimes

#: Draft models that are told apart; the tokens of any further one count as OTHER_DRAFT's.
MAX_DRAFT_MODELS = 32
OTHER_DRAFT = "other"

_LATENCY_BUCKETS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0)


class VerifyMetrics:
    """Every metric of a verify worker, on a registry of its own so that a process may hold several workers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, registry=registry)

        self.accepted = counter("speculative_decoding_accepted_tokens_total", "Proposals accepted.")
        self.rejected = counter("speculative_decoding_rejected_tokens_total", "First rejections: one a step at most.")
        self.untested = counter(
            "speculative_decoding_untested_tokens_total", "Proposals in a step behind its first rejection."
        )
        self._draft_tested = counter(
            "speculative_decoding_draft_tested_tokens_total", "Proposals tested, by draft model.", ("draft_model",)
        )
        self._draft_accepted = counter(
            "speculative_decoding_draft_accepted_tokens_total", "Proposals accepted, by draft model.", ("draft_model",)
        )
        self._draft_models = {OTHER_DRAFT}
        self.stale = counter("speculative_decoding_stale_tokens_total", "Proposals that arrived on a refuted path.")
        self.late_bound = counter(
            "speculative_decoding_late_bound_tokens_total",
            "Proposals that arrived during the forward and were tested in place of a free draw; part of the tested.",
        )
        self._step_acceptance = Histogram(
            "speculative_decoding_step_acceptance",
            "Proposals accepted in one step of one session that tested any.",
            buckets=tuple(range(17)),
            registry=registry,
        )
        self.verification_latency = Histogram(
            "speculative_decoding_verification_latency_seconds",
            "One step of the target: forward and verification, for all sessions in it.",
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.steps = counter("draftwire_verify_steps_total", "Steps of the target.")
        self.committed = counter("draftwire_verify_committed_tokens_total", "Output tokens.")
        self.prefilled = counter("draftwire_verify_prefill_tokens_total", "Prompt tokens run through the target.")
        self.cached = counter(
            "draftwire_verify_cached_tokens_total", "Prompt tokens whose keys and values were reused."
        )
        self.batch_tokens = Histogram(
            "draftwire_verify_step_tokens",
            "Tokens in one step.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
            registry=registry,
        )
        self.answers = counter(
            "draftwire_verify_answers_total",
            "Answers that ended, by outcome; cancelled: by the caller, as the gateway does at a stop string.",
            ("outcome",),
        )
        self.collected = counter(
            "draftwire_verify_collected_prompts_total", "Answers for --collect-prompts, by outcome.", ("outcome",)
        )
        self.running = gauge("draftwire_verify_running_sessions", "Sessions that hold a KV slot.")
        self.waiting = gauge("draftwire_verify_waiting_sessions", "Sessions that wait for a KV slot.")
        self.draft_workers = gauge("draftwire_verify_draft_workers", "Draft workers connected.")
        self.reassignments = counter(
            "draftwire_verify_draft_reassignments_total",
            "Sessions that lost their draft worker, by reason.",
            ("reason",),
        )
        self.times = Gauge(
            "draftwire_verify_estimated_seconds",
            "Times that the policy reckons with: verify_base, verify_per_token, draft_step, draft_restart.",
            ("part",),
            registry=registry,
        )
        self.planned_tokens = gauge("draftwire_verify_planned_speculative_tokens", "K that the policy chose last.")
        self.planned_wait = gauge("draftwire_verify_planned_min_proposals", "m that the policy chose last.")

    def count(self, step: SpeculationStats) -> None:
        """Add what one step did, over all its sessions (stale tokens are counted as they arrive)."""
        self.committed.inc(step.committed_tokens)
        self.accepted.inc(step.accepted_tokens)
        self.rejected.inc(step.tested_tokens - step.accepted_tokens)
        self.untested.inc(step.untested_tokens)
        self.late_bound.inc(step.late_bound_tokens)

    def tested(self, draft_model: str, accepted: int, tested: int) -> None:
        """One step of one session tested guesses of this draft model."""
        self._step_acceptance.observe(accepted)
        if draft_model not in self._draft_models:
            if len(self._draft_models) < MAX_DRAFT_MODELS + 1:
                self._draft_models.add(draft_model)
            else:
                draft_model = OTHER_DRAFT
        self._draft_tested.labels(draft_model).inc(tested)
        self._draft_accepted.labels(draft_model).inc(accepted)

    def show_plan(self, plan: Plan, times: StepTimes) -> None:
        """Export the policy's last choice and the times that it went by."""
        self.planned_tokens.set(plan.num_speculative_tokens)
        self.planned_wait.set(plan.min_proposals)
        for part in StepTimes.__slots__:
            self.times.labels(part).set(getattr(times, part))
