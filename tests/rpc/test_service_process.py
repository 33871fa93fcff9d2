"""How a service process starts and stops, seen from outside, and its metrics over HTTP."""

import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client import Counter
from support.timing import PATIENCE

from draftwire.errors import InvalidArgument
from draftwire.metrics import new_registry, start_metrics_server
from draftwire.service import instance_id

PROGRAM = """
import asyncio, logging, sys
from draftwire.errors import InvalidArgument
from draftwire.service import run

async def main(stop):
    logging.getLogger("test").info("ready\\nfor %s", "work")
    {body}

sys.exit(run("some_service", main, log_level="info"))
"""


def start(body: str) -> subprocess.Popen[str]:
    """A process whose main does `body`, once it has logged that it is ready."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(body=body)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO some_service test: ready\\nfor work\n", line), (
        line
    )
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_stop_and_main_decides(number: signal.Signals) -> None:
    """The first signal only asks; main returns when it is done, and its value is the exit code."""
    with start("await stop.wait(); return 7") as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == 7


def test_a_second_signal_exits_at_once() -> None:
    """A drain that hangs can be broken off."""
    with start("await asyncio.Event().wait()") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "SIGTERM: draining" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


def test_an_error_at_start_is_one_line() -> None:
    """Exit code 1 and the error's own text, no traceback."""
    with start('raise InvalidArgument("--port", "is in use")') as process:
        assert process.stderr is not None
        assert process.wait(PATIENCE) == 1
        assert process.stderr.read() == "some_service: error: --port: is in use\n"


def test_metrics_of_two_services_stay_apart() -> None:
    """Each registry has its own server on its own port, and the process's metrics."""
    texts = []
    for value in (1, 2):
        registry = new_registry()
        Counter("things", "Things seen.", registry=registry).inc(value)
        port = start_metrics_server("127.0.0.1", 0, registry)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as response:
            texts.append(response.read().decode())
    assert "things_total 1.0" in texts[0]
    assert "things_total 2.0" in texts[1]
    assert "process_resident_memory_bytes" in texts[0]


def test_a_taken_metrics_port_is_named() -> None:
    """The error names the flag, the address and the reason."""
    port = start_metrics_server("127.0.0.1", 0, new_registry())
    with pytest.raises(
        InvalidArgument, match=f"--metrics-port: cannot listen on 127.0.0.1:{port}: Address already in use"
    ):
        start_metrics_server("127.0.0.1", port, new_registry())


def test_instance_ids_are_unique_and_short() -> None:
    """Two starts have two names, and a name fits into Hello (128 bytes)."""
    first, second = instance_id("verify"), instance_id("verify")
    assert first != second
    assert first.startswith("verify-")
    assert len(first.encode()) <= 128
