"""`python -m bench.steps`: how long one step of a model takes alone, on one core, by arithmetic and number of tokens.

What a draft costs beside its target; `draftwire bench` measures both while they are busy side by side.
"""

import argparse
import json
import time
from statistics import median

from draftwire.engine.base import Chunk
from draftwire.engine.load import load_engine
from draftwire.models import EMBEDDED_DRAFT, EMBEDDED_TARGET

#: Tokens that stand before the step, and how often it is timed after a first time that does not count.
CONTEXT, REPEATS = 128, 30


def step_ms(model: str, dtype: str, counts: list[int]) -> dict[int, float]:
    """Milliseconds of a step over so many tokens of one sequence, the median of REPEATS."""
    engine = load_engine(
        model, dtype=dtype, num_slots=1, max_model_len=CONTEXT + max(counts), max_batched_tokens=CONTEXT, threads=1
    )
    ids = [1 + position % (engine.info.vocab_size - 1) for position in range(CONTEXT + max(counts))]
    place = engine.acquire(ids[:CONTEXT])
    assert place is not None
    slot, _ = place
    engine.forward([Chunk(slot, 0, ids[:CONTEXT], 1)])

    def timed(count: int) -> float:
        began = time.perf_counter()
        engine.forward([Chunk(slot, CONTEXT, ids[CONTEXT : CONTEXT + count], count)])
        return 1000 * (time.perf_counter() - began)

    return {count: median([timed(count) for _ in range(REPEATS + 1)][1:]) for count in counts}


def main() -> None:
    """The command; one JSON object a line."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument("--model", nargs="+", default=[EMBEDDED_TARGET, EMBEDDED_DRAFT])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 6])
    options = parser.parse_args()
    for dtype in options.dtype:
        for model in options.model:
            print(json.dumps({"model": model, "dtype": dtype, "step_ms": step_ms(model, dtype, options.tokens)}))


if __name__ == "__main__":
    main()
