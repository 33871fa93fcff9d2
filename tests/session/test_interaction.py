"""The golden scripts in tests/interaction: what the two ends say and hold, command by command.

DRAFTWIRE_REWRITE=1 writes the traces anew; read the difference before you commit it.
"""

import os
import re
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


def test_the_protocol_page_shows_what_the_script_does():
    """The worked example in docs/protocol.md is the golden script, word for word."""
    root = Path(__file__).parent.parent.parent
    page = (root / "docs" / "protocol.md").read_text()
    example = re.search(r"<!-- correction\.txt -->\n```text\n(.*?)```", page, re.DOTALL).group(1)
    assert example == (root / "tests" / "interaction" / "correction.txt").read_text()
