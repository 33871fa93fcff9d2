"""The layers of docs/architecture.md hold."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH = """
import importlib, pkgutil, sys
sys.modules["torch"] = None  # importing it now fails
import gateway
for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
    importlib.import_module(module.name)
print(len([name for name in sys.modules if name.startswith("gateway.")]))
"""


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with this repository's contracts on the packages under `root`."""
    program = "from importlinter.cli import lint_imports_command as run; run()"
    command = [sys.executable, "-c", program, "--no-logo", "--no-cache", "--config", ROOT / "pyproject.toml"]
    return subprocess.run(
        command, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=120, check=False
    )


def test_imports_point_down() -> None:
    """Every contract of pyproject.toml is kept."""
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("draftwire/types.py", "import draftwire.rpc.client", "Imports point down"),
        ("draft_service/__init__.py", "import gateway", "Imports point down"),
        ("gateway/__init__.py", "import torch", "The gateway runs without torch"),
        ("draftwire/session/messages.py", "import time", "The session protocol is pure"),
        ("draftwire/sampling/__init__.py", "import random", "Probability knows no wire"),
    ],
)
def test_one_bad_import_breaks_a_contract(tmp_path: Path, module: str, statement: str, contract: str) -> None:
    """The contracts can fail: a single import in a copy of the packages is found."""
    for package in ("draftwire", "draft_service", "verify_service", "gateway"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / module
    path.write_text(f"{path.read_text()}\n{statement}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert re.search(rf"{contract}.* BROKEN", result.stdout), result.stdout


def test_the_gateway_runs_without_torch() -> None:
    """Every module of the gateway can be imported where torch is not installed, transformers' lazy imports included."""
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 3


def test_only_the_status_module_knows_status_codes() -> None:
    """grpc.StatusCode is nowhere else in the packages: everybody else raises and catches draftwire.errors."""
    packages = ("draftwire", "draft_service", "verify_service", "gateway", "bench")
    knowing = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if "StatusCode" in path.read_text() and not path.is_relative_to(ROOT / "draftwire" / "v1")
    }
    assert knowing == {"draftwire/rpc/status.py"}
