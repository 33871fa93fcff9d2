"""The embedded target is converted once, by one process, and never half."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from draftwire.engine import embedded
from draftwire.models import EMBEDDED_TARGET, resolve, target_folder


@pytest.fixture
def conversions(tmp_path, monkeypatch):
    """An empty cache, and a converter that writes one file and lists what it did."""
    done = []

    def convert(gguf, folder):
        (folder / "config.json").write_text("{}")
        done.append(gguf)

    monkeypatch.setenv("DRAFTWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "_find_gguf", lambda: tmp_path / "weights.gguf")
    monkeypatch.setattr(embedded, "_convert", convert)
    return done


def test_once(conversions):
    """Several that need it at the same time convert it once; from then on its name resolves to the folder."""
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: embedded.convert_target(), range(8)))
    assert folders == {target_folder()}
    assert len(conversions) == 1
    assert resolve(EMBEDDED_TARGET) == str(target_folder())
    assert (target_folder() / "config.json").is_file()


def test_never_half(conversions, monkeypatch):
    """A conversion that breaks off leaves no folder behind, and the next one succeeds."""
    convert = embedded._convert

    def break_off(gguf, folder):
        convert(gguf, folder)
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "_convert", break_off)
        with pytest.raises(OSError, match="disk full"):
            embedded.convert_target()
    assert [entry.name for entry in target_folder().parent.iterdir() if entry.is_dir()] == []
    assert embedded.convert_target() == target_folder()


def test_main_prints_where_the_pair_is(conversions, capsys):
    """The command that `make models` runs ends with 0 and the two folders."""
    assert embedded.main() == 0
    target, draft = capsys.readouterr().out.splitlines()
    assert target == f"target: {target_folder()}"
    assert draft.startswith("draft:  ")
