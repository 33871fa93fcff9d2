"""The golden scripts in tests/interaction: what the two ends say and hold, command by command.

DRAFTWIRE_REWRITE=1 writes the traces anew; read the difference before you commit it.
"""

import os
from pathlib import Path

import pytest
from support.session_script import run_script

SCRIPTS = sorted((Path(__file__).parent.parent / "interaction").glob("*.txt"))


def test_there_are_scripts():
    """The folder is where this test looks for it."""
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path):
    """The trace of every command is the recorded one."""
    trace = run_script(script)
    if os.environ.get("DRAFTWIRE_REWRITE"):
        script.write_text(trace)
    assert trace == script.read_text()
