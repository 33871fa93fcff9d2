"""What a process imports before it knows that it needs it."""

import subprocess
import sys

import pytest

CASES = {
    "draftwire.engine.load": {"transformers"},
    "verify_service.__main__": {"transformers"},
    "draft_service.__main__": {"transformers", "torch"},
    "draftwire.cli.main": {"transformers", "torch"},
}


@pytest.mark.parametrize("module", CASES)
def test_heavy_libraries_stay_out(module):
    """A fake model needs no transformers, an n-gram drafter and the command line not even torch."""
    code = f"import sys, {module}; print(*(name for name in {sorted(CASES[module])} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []
