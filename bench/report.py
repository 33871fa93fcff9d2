"""Rows and the table that people read."""

import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from rich.table import Table

from bench.load import Result
from bench.theory import Theory


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration.

    Attributes:
        mode: plain, plain all cores, lock step, streaming, co-located; with "replay A=..." where it is one.
        cores: CPU cores that its engines had.
        result: what was measured.
        theory: what the formulas of bench.predict say to it.
    """

    mode: str
    cores: int
    result: Result
    theory: Theory = field(default_factory=Theory)

    def summary(self) -> dict[str, object]:
        """For --json: seconds, tokens per second, rates."""
        return {
            "mode": self.mode,
            "cores": self.cores,
            **self.result.summary(),
            "by_kind": {kind: asdict(numbers) for kind, numbers in self.result.by_kind().items()},
            **self.theory.summary(),
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
            "\n".join(f"{name} {value:.2f}" for name, value in row.theory.tokens_per_second.items()),
            f"{numbers['acceptance_rate']:.3f}",
            f"{numbers['tokens_per_step']:.2f}",
        )
    return made


def steps_table(rows: list[Row]) -> Table:
    """The mean step of streaming rows, measured against predicted: which factor makes the difference in speed."""
    made = Table(title="the mean step of streaming, measured / predicted; times in ms")
    for name in ("mode", "tokens", "in the target", "waiting", "draft step", "restart"):
        made.add_column(name, justify="left" if name == "mode" else "right")
    for row in rows:
        measured, predicted, times = row.theory.measured, row.theory.predicted, row.theory.step_times
        if measured and predicted and times:
            made.add_row(
                row.mode,
                f"{measured.tokens:.2f} / {predicted.tokens:.2f}",
                f"{1000 * measured.verify:.1f} / {1000 * predicted.verify:.1f}",
                f"{1000 * measured.wait:.1f} / {1000 * predicted.wait:.1f}",
                f"{1000 * times.draft_step:.1f}",
                f"{1000 * times.draft_restart:.1f}",
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
