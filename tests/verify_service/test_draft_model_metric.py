"""Acceptance by draft model: few labels, whatever draft workers call themselves."""

from prometheus_client import CollectorRegistry

from verify_service.metrics import MAX_DRAFT_MODELS, VerifyMetrics


def test_the_labels_are_bounded():
    """Every name beyond the limit counts as "other"; those that are known keep their own."""
    registry = CollectorRegistry()
    metrics = VerifyMetrics(registry)
    for index in range(MAX_DRAFT_MODELS + 10):
        metrics.tested(f"draft-{index}", accepted=2, tested=3)
    metrics.tested("draft-0", accepted=1, tested=1)

    def count(kind: str, name: str) -> float | None:
        return registry.get_sample_value(f"speculative_decoding_draft_{kind}_tokens_total", {"draft_model": name})

    assert (count("accepted", "draft-0"), count("tested", "draft-0")) == (3, 4)
    assert (count("accepted", "other"), count("tested", "other")) == (20, 30)
    assert count("tested", f"draft-{MAX_DRAFT_MODELS}") is None
