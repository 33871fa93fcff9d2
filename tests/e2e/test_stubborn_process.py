"""The processes behind `draftwire up`, when they do not end as they should."""

import psutil

from draftwire.cli import processes
from draftwire.cli.processes import ServiceProcess

#: A service whose own child holds its stdout, and outlives it.
STUBBORN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"port": %d, "metrics_port": 0}' % child.pid, flush=True)
time.sleep(600)
"""


async def test_a_killed_service_whose_child_lives_on(tmp_path, monkeypatch):
    """Nobody waits for what the service itself had started."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.5)
    service = ServiceProcess("stubborn", "stubborn", {}, tmp_path / "log", {"PYTHONPATH": str(tmp_path)})
    await service.start()
    child = psutil.Process(service.port)
    try:
        await service.kill()
        assert service.returncode == -9
        await service.stop(0.5)  # has nothing to do
        assert child.is_running()
    finally:
        child.kill()
