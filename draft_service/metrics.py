"""The draft worker's Prometheus metrics. No label names a session or a stream."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: Upper bounds of engine steps, seconds.
STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

#: Upper bounds of sessions in one step.
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Every metric of a draft worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.proposed_tokens = Counter(
            "draftwire_draft_proposed_tokens", "Tokens proposed, by what guessed them.", ["source"], registry=registry
        )
        self.ended_sessions = Counter(
            "draftwire_draft_ended_sessions", "Sessions that the worker gave up.", ["reason"], registry=registry
        )
        self.step_seconds = Histogram(
            "draftwire_draft_step_seconds",
            "Length of an engine step; it drafts for every session in it.",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self.batch_size = Histogram(
            "draftwire_draft_batch_size",
            "Sessions that an engine step drafted for.",
            buckets=BATCH_BUCKETS,
            registry=registry,
        )
        self.starved_seconds = Counter(
            "draftwire_draft_starved_seconds",
            "Time without a step though sessions were open: every window was full, or no n-gram matched.",
            registry=registry,
        )
        self.sessions = Gauge("draftwire_draft_sessions", "Sessions held now.", registry=registry)
        self.streams = Gauge("draftwire_draft_streams", "Streams of verify workers open now.", registry=registry)
        self._inbox = Gauge("draftwire_draft_inbox_messages", "Messages that wait for the engine.", registry=registry)

    def watch_inbox(self, depth: Callable[[], int]) -> None:
        """Ask `depth` for the messages that wait, whenever the metrics are read."""
        self._inbox.set_function(depth)
