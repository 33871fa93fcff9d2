"""`draftwire bench` and the summary of `draftwire demo`, on fake models and on numbers that can be checked by hand."""

import asyncio
import json
import sys

import pytest
from support.timing import in_some_try

from bench.load import Result, Task
from draftwire.cli.client import Transcript
from draftwire.cli.demo import summary
from draftwire.types import SpeculationStats

MODES = ["plain", "streaming", "lock step", "plain", "co-located", "streaming, replay A=1", "lock step, replay A=1"]


@pytest.mark.e2e
@pytest.mark.timeout(1200)  # for all tries on a slow machine
async def test_bench_on_the_fake_models():
    """A perfect fake draft: acceptance 1 wherever something is tested, one token a step in plain decoding."""

    async def rows():
        bench = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "draftwire.cli.main", "bench", "--json", "--prompts", "2", "--max-tokens", "32"),
            *("--target", "fake:step_seconds=0.03", "--draft", "fake:", "--drafter", "model", "--replay", "1"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await bench.communicate()
        assert bench.returncode == 0
        report = json.loads(out.decode().splitlines()[-1])
        assert report["machine"]["cores"] >= 1
        found = report["rows"]
        assert [row["mode"] for row in found] == MODES
        for row in found:
            assert row["tokens_per_second"] > 0
            assert 0 < row["inter_token_latency_p50"] <= row["inter_token_latency_p95"]
            if row["mode"] == "plain":
                assert (row["tokens_per_step"], row["acceptance_rate"]) == (1, 0)
            else:
                assert row["acceptance_rate"] in {0, 1}  # 0 = nothing tested
        assert set(found[1]["predicted_tokens_per_second"]) == {"streaming", "ceiling"}
        return found

    def drafts_take_part(found):
        steps = [row["tokens_per_step"] for row in found if row["mode"] != "plain"]
        steps += [found[1][step]["tokens"] for step in ("measured_step", "predicted_step")]
        return min(steps) > 3 and all(row["acceptance_rate"] for row in found if row["mode"] != "plain")

    await in_some_try(rows, drafts_take_part)


def transcript(times, counts, stats):
    """An answer whose events came at these times with so many tokens."""
    return Transcript(began=0.0, arrivals=list(zip(times, counts, strict=True)), speculation=stats)


def test_demo_summary_by_hand():
    """Plain: 4 tokens in 2 s after the first event; split: 6 tokens in 1 s; so the speed-up is 3."""
    plain, everything, split = Result(), Result(), Result()
    task = Task("chat", (1,))
    plain.answers.append((task, transcript([1, 2, 3], [1, 2, 2], SpeculationStats(steps=5, committed_tokens=5))))
    everything.answers.append((task, transcript([1, 2], [1, 4], SpeculationStats(steps=5, committed_tokens=5))))
    stats = SpeculationStats(steps=3, committed_tokens=7, tested_tokens=8, accepted_tokens=4)
    split.answers.append((task, transcript([1, 1.5, 2], [1, 3, 3], stats)))
    report = summary(plain, everything, split)
    assert report["plain_tokens_per_second"] == 2
    assert report["plain_all_cores_tokens_per_second"] == 4
    assert report["split_tokens_per_second"] == 6
    assert report["speedup"] == 3
    assert report["speedup_equal_cores"] == 1.5
    assert report["acceptance_rate"] == 0.5
    assert report["tokens_per_step"] == round(7 / 3, 3)


def test_inter_token_latencies_share_an_events_distance():
    """Two tokens that arrive together, 0.4 s after the one before, took 0.2 s each."""
    answer = transcript([1.0, 1.4], [1, 2], SpeculationStats())
    assert answer.time_to_first_token == 1.0
    assert list(answer.inter_token_latencies()) == pytest.approx([0.2, 0.2])
