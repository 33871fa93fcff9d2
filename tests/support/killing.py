"""Processes that are killed in the middle of writing a file."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from support.timing import PATIENCE


def kill_at(arguments: Sequence[str], file: Path, sign: Path) -> None:
    """Run python with these arguments and send it SIGKILL where it opens `file`; half a file stays behind.

    Until then the file is a pipe that nobody reads, so the process cannot get past it. That it is there, or just
    before, shows in `sign`, which it writes shortly before.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(file)
    with tempfile.TemporaryFile("w+") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=environment) as process:
            try:
                _wait_for(sign, process)
            finally:
                process.kill()
        log.seek(0)
        assert sign.exists(), log.read()
        assert process.returncode < 0, "ended by itself"
    file.unlink()
    file.write_text("half of somethi")


def _wait_for(sign: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE
    while not sign.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
