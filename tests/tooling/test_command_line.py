"""The `draftwire` command: what it makes of what was typed, and one clear line where that is wrong."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.command import Bench
from distill.evaluate_options import Evaluate
from distill.train_options import Train
from draftwire.cli import main as main_module
from draftwire.cli.generate import Generate
from draftwire.errors import Incompatible


@pytest.fixture
def draftwire(monkeypatch, capsys):
    """Runs it in this process. Returns (exit code, stderr)."""

    def run(*words: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["draftwire", *words])
        with pytest.raises(SystemExit) as ended:
            main_module.main()
        return ended.value.code, capsys.readouterr().err

    return run


def stops(*words: str) -> list[str]:
    """The stop strings of `draftwire generate A` with these words."""
    seen: list[Generate] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Generate, "cli_cmd", seen.append)
        patch.setattr(sys, "argv", ["draftwire", "generate", "A", *words])
        main_module.main()
    return list(seen[0].request().stop)


TYPED = ["a, b", " two ", "\n\n", '"q"', "[x", '{"x"', "[a]", "\\", '\\"', "%41", "null", "1.0", "é", "--stop", ""]


def test_stop_strings_arrive_as_they_were_typed():
    assert stops(*(word for text in TYPED for word in ("--stop", text))) == TYPED
    assert stops(*(f"--stop={text}" for text in TYPED)) == TYPED
    assert stops() == []


@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_stop_string(text):
    assert stops("--stop", text) == [text]


@pytest.mark.parametrize(("options", "words"), [(Train, ["train", "--output", "o"]), (Evaluate, ["evaluate"])])
def test_paths_arrive_as_they_were_typed(monkeypatch, options, words):
    typed = ["a, b", " two ", "[x", "data/train", "\udcff"]
    seen = []
    monkeypatch.setattr(options, "cli_cmd", seen.append)
    monkeypatch.setattr(sys, "argv", ["draftwire", "distill", *words, *(f"--data={path}" for path in typed)])
    main_module.main()
    assert [str(path) for path in seen[0].data] == typed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["generate", "A", "--temperature", "nan"], "--temperature: must be less than or equal to 100 (got 'nan')"),
        (["generate", "A", "--seed", "-1"], "--seed: must be greater than or equal to 0 (got '-1')"),
        (["generate", "A", "--top-k", str(2**32)], f"--top-k: must be less than {2**32} (got '{2**32}')"),
        (["generate", "A", "--max-tokens", str(2**32)], f"--max-tokens: must be less than {2**32} (got '{2**32}')"),
        (["generate", "A", "--stop", "\udcff"], "--stop: must be text in UTF-8"),
        (["generate", "\udcff"], "--prompt: must be text in UTF-8"),
        (["up", "--port", "99999"], "--port: must be less than or equal to 65535 (got '99999')"),
        (["bench", "--replay", "1.5"], "--replay: must be less than or equal to 1"),
        (["bench", "--replay", "0.5", "--replay", "-1"], "--replay: must be greater than or equal to 0"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_flag(draftwire, words, problem):
    code, err = draftwire(*words)
    assert code == 2
    assert err.startswith(f"draftwire: error: {problem}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (Incompatible("no"), 1, "draftwire bench: no\n"),
    ],
)
def test_how_it_ends(draftwire, monkeypatch, error, code, said):
    async def fail(*_):
        raise error

    monkeypatch.setattr(Bench, "_run", fail)
    assert draftwire("bench") == (code, said)


def test_a_missing_flag_is_named(draftwire):
    code, err = draftwire("distill", "train")
    assert code == 2
    assert "draftwire: error: --data: is required\n" in err


@pytest.mark.parametrize("flush", [True, False])
def test_nobody_reads_the_output(flush):
    """As in `draftwire generate --help | head -c 5`, but surely: the pipe's other end is closed before it writes."""
    code = (
        "import os, sys; read, write = os.pipe(); os.close(read); os.dup2(write, 1);"
        "from draftwire.cli.generate import Generate; Generate.cli_cmd = "
        f"lambda self: print('text', flush={flush});"
        "from draftwire.cli.main import main; sys.argv = ['draftwire', 'generate', 'A']; main()"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # or nothing waits for the flush at the end
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (ended.returncode, ended.stderr) == (141, "")
