"""The draft worker's flags."""

import pytest

from draft_service.config import DraftConfig
from draftwire.config import load_config


def test_defaults_follow_other_flags() -> None:
    """A stream may hold all sessions, and the engine has a thread for each core that the process may use."""
    config = load_config(DraftConfig, ["--max-num-seqs", "5", "--cpu-affinity", "0", "--cpu-affinity", "1"])
    assert (config.stream_sessions, config.engine_threads) == (5, 2)
    config = load_config(DraftConfig, ["--max-sessions-per-stream", "3", "--threads", "4", "--cpu-affinity", "1"])
    assert (config.stream_sessions, config.engine_threads) == (3, 4)
    assert load_config(DraftConfig, []).engine_threads is None


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "--max-num-batched-tokens"),
        (["--drafter", "replay"], "--replay-file"),
        (["--replay-file", "recordings.jsonl"], "--replay-file"),
        (["--drafter", "oracle"], "--drafter"),
        (["--acceptance", "1.5"], "--acceptance"),
        (["--max-model-len", "1"], "--max-model-len"),
    ],
)
def test_a_bad_flag_is_named(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The process ends with code 2 and a line that names the flag."""
    with pytest.raises(SystemExit) as ended:
        load_config(DraftConfig, flags)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err
