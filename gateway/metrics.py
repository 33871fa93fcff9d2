"""What the gateway tells Prometheus. Labels never carry a request's id."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from draftwire.errors import DeadlineExceeded, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from draftwire.types import Usage

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_ANSWER_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

#: gRPC's timers and ours need not agree to the millisecond. Unit: seconds.
_TIMER_SLACK = 0.05

_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (InvalidArgument, "invalid_argument"),
    (NotFound, "not_found"),
    (ResourceExhausted, "resource_exhausted"),
    (Unavailable, "unavailable"),
    (DeadlineExceeded, "deadline_exceeded"),
    (asyncio.CancelledError, "cancelled"),
    (GeneratorExit, "cancelled"),
)


class GatewayMetrics:
    """Every metric of a gateway."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.first_token = Histogram(
            "draftwire_gateway_time_to_first_token_seconds",
            "From the request to its first token.",
            buckets=_FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self.inter_token = Histogram(
            "draftwire_gateway_inter_token_latency_seconds",
            "Between tokens of an answer: those of an event share the time since the one before, the first have none.",
            buckets=_TOKEN_BUCKETS,
            registry=registry,
        )
        self.end_to_end = Histogram(
            "draftwire_gateway_end_to_end_latency_seconds",
            "From the request to the end of its answer; answers that failed are not in it.",
            buckets=_ANSWER_BUCKETS,
            registry=registry,
        )
        self.requests = Counter(
            "draftwire_gateway_requests_total",
            "Requests that ended: stop, length, or what failed them.",
            ("outcome",),
            registry=registry,
        )
        self.in_flight = Gauge("draftwire_gateway_requests_in_flight", "Requests being answered.", registry=registry)
        self.prompt_tokens = Counter("draftwire_gateway_prompt_tokens_total", "Prompt tokens.", registry=registry)
        self.completion_tokens = Counter(
            "draftwire_gateway_completion_tokens_total", "Output tokens of complete answers.", registry=registry
        )
        self.failures = Counter(
            "draftwire_gateway_worker_failures_total",
            "Times that a verify worker failed a request, which then went on elsewhere or was given up.",
            registry=registry,
        )
        self.workers = Gauge("draftwire_gateway_verify_workers", "Verify workers that can be used.", registry=registry)

    @contextmanager
    def request(self, timeout: float | None) -> Iterator["RequestTimer"]:
        """Around one request; its outcome is `done`'s reason or the exception that left the block.

        Args:
            timeout: the caller's, seconds; gRPC cancels the call when it is over.
        """
        timer = RequestTimer(self, self._clock)
        self.in_flight.inc()
        try:
            yield timer
        except BaseException as error:
            if not timer.is_done:
                outcome = _outcome(error)
                if outcome == "cancelled" and timeout is not None and timer.elapsed() > timeout - _TIMER_SLACK:
                    outcome = "deadline_exceeded"
                self.requests.labels(outcome).inc()
            raise
        finally:
            self.in_flight.dec()


class RequestTimer:
    """Measures one request."""

    def __init__(self, metrics: GatewayMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._begun = clock()
        self._last_token: float | None = None
        self.is_done = False

    def elapsed(self) -> float:
        """Seconds since the request came."""
        return self._clock() - self._begun

    def tokens(self, count: int) -> None:
        """`count` tokens (at least 1) arrived together."""
        now = self._clock()
        if self._last_token is None:
            self._metrics.first_token.observe(now - self._begun)
        else:
            for _ in range(count):
                self._metrics.inter_token.observe((now - self._last_token) / count)
        self._last_token = now

    def done(self, reason: str, usage: Usage) -> None:
        """The answer is complete."""
        self.is_done = True
        self._metrics.end_to_end.observe(self.elapsed())
        self._metrics.requests.labels(reason).inc()
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.completion_tokens.inc(usage.completion_tokens)


def _outcome(error: BaseException) -> str:
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), "internal")
