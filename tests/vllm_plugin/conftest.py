"""Tests that run vLLM are left out where it is not installed; `make test-vllm` installs it."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_vllm_*.py"]
