"""What the plug-in is told: additional config before the environment, and a clear word on what is wrong."""

import pytest

from draftwire.errors import InvalidArgument
from draftwire.vllm_plugin.config import read_config

DRAFTS = {"drafts": "a:1"}


def test_additional_config_comes_before_the_environment(monkeypatch):
    """A field in both is the additional config's; one in neither has its default."""
    monkeypatch.setenv("DRAFTWIRE_DRAFTS", "a:1,b:2")
    monkeypatch.setenv("DRAFTWIRE_MAX_WAIT", "0.5")
    config = read_config({"draftwire": {"max_wait": 0.125}, "others": 1})
    assert config.drafts == ("a:1", "b:2")
    assert config.max_wait == 0.125
    assert config.schedule == "auto"


@pytest.mark.parametrize(
    ("fields", "named", "problem"),
    [
        ({}, "additional_config.draftwire.drafts", "must be set, there or as DRAFTWIRE_DRAFTS"),
        ({"draftwire": {"drafts": ""}}, "additional_config.draftwire.drafts", "at least 1 item"),
        ({"draftwire": {"drafts": "nowhere"}}, "additional_config.draftwire.drafts", "must be host:port"),
        ({"draftwire": DRAFTS | {"max_wait": 1.5}}, "additional_config.draftwire.max_wait", "less than or equal to 1"),
        ({"draftwire": DRAFTS | {"schedule": "slow"}}, "additional_config.draftwire.schedule", "must be 'auto'"),
        ({"draftwire": DRAFTS | {"draft": "a"}}, "additional_config.draftwire.draft", "not permitted"),
        ({"draftwire": "a:1"}, "additional_config.draftwire", "must be an object"),
    ],
)
def test_errors_name_the_field_and_the_limit(fields, named, problem):
    """One case for each way to be wrong."""
    with pytest.raises(InvalidArgument, match=problem) as error:
        read_config(fields)
    assert error.value.field == named


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tls_ca": "/nowhere.pem"}, "tls_ca: /nowhere.pem cannot be read: No such file"),
        ({"tls_cert": __file__}, "tls_cert: needs tls_key"),
    ],
)
def test_tls_files_that_cannot_be_used(fields, problem):
    """The error names the field; without any of them there is no TLS."""
    assert read_config({"draftwire": DRAFTS}).credentials() is None
    with pytest.raises(InvalidArgument, match=problem):
        read_config({"draftwire": DRAFTS | fields}).credentials()


@pytest.mark.parametrize(
    ("schedule", "draft_window", "window"), [("auto", None, 9), ("lockstep", None, 4), ("lockstep", 12, 12)]
)
def test_window(schedule, draft_window, window):
    """2K + 1, or K where nothing is drafted ahead, or what is set; K = 4."""
    fields = DRAFTS | {"schedule": schedule, "draft_window": draft_window}
    assert read_config({"draftwire": fields}).window(4) == window
