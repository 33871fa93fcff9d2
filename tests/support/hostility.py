"""What the tests of hostile messages share: the answer of another caller, which nothing may disturb."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from support.verify_worker import RunningWorker, output

from draftwire.types import SamplingParams

VOCAB = 512
GREEDY = SamplingParams(temperature=0.0)

ids_beyond = st.integers(VOCAB, 2**32 - 1)

#: A message that nobody answers costs PATIENCE, so failures are shown as they were found, unshrunk.
ALL = settings(suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.reuse, Phase.generate))


def counting(first: int, count: int) -> list[int]:
    """What the fake target says after the prompt [.., first]."""
    return [(first + i) % VOCAB for i in range(1, count + 1)]


async def good_answer(target: RunningWorker) -> None:
    """Another caller's answer is what it must be."""
    assert output(await target.generate([20], max_tokens=8, sampling=GREEDY)) == counting(20, 8)
