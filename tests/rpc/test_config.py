"""Flags, environment, defaults; and errors that name the flag and the limit."""

import pytest
from pydantic import Field, ValidationError

from draftwire.config import Addresses, ServiceConfig, load_config


class Config(ServiceConfig):
    """What a service adds."""

    max_model_len: int = Field(4096, ge=2, description="longest prompt + output")
    batch_invariant: bool = Field(False, description="bit-identical rows")
    draft_workers: Addresses = Field((), description="draft workers")
    target: str | None = Field(None, description="folder or hub id")


def test_flags_beat_the_environment_which_beats_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source in its place; flags are kebab-case, variables have the prefix, lists are written alike in both."""
    monkeypatch.setenv("DRAFTWIRE_PORT", "1000")
    monkeypatch.setenv("DRAFTWIRE_MAX_MODEL_LEN", "64")
    monkeypatch.setenv("DRAFTWIRE_DRAFT_WORKERS", "a:1, b:2")
    config = load_config(Config, ["--port", "2000", "--batch-invariant"])
    assert (config.port, config.max_model_len, config.batch_invariant) == (2000, 64, True)
    assert config.draft_workers == ("a:1", "b:2")
    assert (config.host, config.target) == ("127.0.0.1", None)
    assert load_config(Config, ["--draft-workers", "c:3,d:4", "--target", "x"]).draft_workers == ("c:3", "d:4")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--port", "65536"], "--port: must be less than or equal to 65535 (got '65536')"),
        (["--port", "x"], "--port: must be a valid integer (got 'x')"),
        (["--max-model-len", "1"], "--max-model-len: must be greater than or equal to 2 (got '1')"),
        (["--shutdown-grace", "-1"], "--shutdown-grace: must be greater than or equal to 0 (got '-1')"),
        (["--log-level", "loud"], "--log-level: must be 'debug', 'info', 'warning' or 'error' (got 'loud')"),
        (["--draft-workers", "a:1,b"], "--draft-workers: must be host:port with a port of 1 to 65535 (got 'b')"),
        (["--no-such", "1"], "unrecognized arguments: --no-such 1"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_a_bad_flag_is_one_clear_line(capsys: pytest.CaptureFixture[str], argv: list[str], line: str) -> None:
    """Exit code 2, flag, limit and value on one line; no traceback."""
    with pytest.raises(SystemExit) as caught:
        load_config(Config, argv)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"test_config: error: {line}\n"


def test_a_bad_variable_is_named_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad value out of the environment gets the same line."""
    monkeypatch.setenv("DRAFTWIRE_PORT", "many")
    with pytest.raises(SystemExit):
        load_config(Config, [])
    assert "--port: must be a valid integer (got 'many')" in capsys.readouterr().err


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """--help exits with 0 and shows flags with descriptions and defaults."""
    with pytest.raises(SystemExit) as caught:
        load_config(Config, ["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for text in ("--max-model-len", "longest prompt + output", "(default: 4096)", "--no-batch-invariant", "--host"):
        assert text in out


def test_a_config_is_frozen_and_knows_its_fields() -> None:
    """What was checked cannot change, and a misspelt field of a test's config is an error."""
    config = Config(port=5)
    with pytest.raises(ValidationError):
        config.port = 6  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Config(prot=5)  # type: ignore[call-arg]
