"""Rows and the table that people read."""

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version

from rich.table import Table

from bench.load import Result


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration.

    Attributes:
        mode: plain, plain all cores, lock step, streaming, co-located; with "replay A=..." where it is one.
        cores: CPU cores that its engines had.
        result: what was measured.
        predicted: tokens per second by each formula of bench.predict that applies, by name.
    """

    mode: str
    cores: int
    result: Result
    predicted: dict[str, float]

    def summary(self) -> dict[str, object]:
        """For --json: seconds, tokens per second, rates."""
        return {
            "mode": self.mode,
            "cores": self.cores,
            **self.result.summary(),
            "by_kind": {kind: asdict(numbers) for kind, numbers in self.result.by_kind().items()},
            "predicted_tokens_per_second": self.predicted,
        }


def table(rows: list[Row]) -> Table:
    """Speeds are of decoding; latencies in milliseconds."""
    made = Table(title="tokens per second, measured and predicted; latencies in ms")
    for name in ("mode", "cores", "TTFT", "ITL p50", "ITL p95", "tokens/s", "predicted", "acceptance", "tokens/step"):
        made.add_column(name, justify="left" if name == "mode" else "right")
    for row in rows:
        numbers = row.result.summary()
        made.add_row(
            row.mode,
            str(row.cores),
            *(
                f"{1000 * numbers[key]:.1f}"
                for key in ("time_to_first_token", "inter_token_latency_p50", "inter_token_latency_p95")
            ),
            f"{numbers['tokens_per_second']:.2f}",
            ", ".join(f"{name} {value:.2f}" for name, value in row.predicted.items()),
            f"{numbers['acceptance_rate']:.3f}",
            f"{numbers['tokens_per_step']:.2f}",
        )
    return made


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as lines:
        return next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
        )
