"""Tests that run vLLM are left out where it is not installed; `make test-vllm` installs it."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("vllm") else ["test_vllm_*.py"]


@pytest.fixture(scope="session")
def plain():
    """Plain vLLM's answers, to compare with."""
    from support.vllm_engine import plain_answers  # noqa: PLC0415  imports vLLM

    return plain_answers()
