"""The committed stubs are what the protos generate."""

import filecmp
import os
import subprocess
import sys
from pathlib import Path

from support.timing import PATIENCE

ROOT = Path(__file__).parents[2]


def test_stubs_are_what_the_protos_generate(tmp_path: Path) -> None:
    """`make protos` would change nothing, and no stub is left of a proto that is gone."""
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "protos" / "generate.sh", tmp_path], check=True, env=environment, timeout=PATIENCE)
    committed, generated = ROOT / "draftwire" / "v1", tmp_path / "draftwire" / "v1"
    names = {path.name for path in generated.iterdir()}
    assert {path.name for path in committed.glob("*_pb2*")} == names
    _, different, missing = filecmp.cmpfiles(committed, generated, sorted(names), shallow=False)
    assert (different, missing) == ([], []), "run `make protos`"
