"""A gateway where nothing is installed but what draftwire asks for without extras: no torch, nor what comes with it."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

CODE = """
import importlib.util
from gateway.__main__ import main
from gateway.requests import ChatMessage
from gateway.tokenizer import load_tokenizer

assert importlib.util.find_spec("torch") is None
tokenizer = load_tokenizer("embedded-target")
ids = tokenizer.encode_chat([ChatMessage("user", "Hello")])
print(tokenizer.decode(ids))
"""


def needed() -> set[str]:
    """The distributions that `pip install draftwire` brings."""
    found: set[str] = set()
    waiting = ["draftwire"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found - {"draftwire"}


@pytest.fixture
def installed(tmp_path) -> Path:
    """A folder with these alone, as links."""
    for name in needed():
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            link = tmp_path / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return tmp_path


@pytest.mark.model
def test_text_to_ids_and_back(installed):
    """The tokenizer and the chat template of a real model."""
    environment = {**os.environ, "PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    ended = subprocess.run(  # -S: without what this environment has besides
        [sys.executable, "-S", "-c", CODE], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "Hello" in ended.stdout
