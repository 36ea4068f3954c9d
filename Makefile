# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` are all a newcomer types; both set up .venv by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := $(VENV)/peers
LIBS := ghtools/_lib/libghtools_shim.so ghtools/_lib/libghtools_native.so
C_FILES := $(shell find csrc -name '*.[ch]' -o -name build.py)
# The newest torch that the hooks were tried on; another version works or says "not hooked".
TORCH := 2.13.0
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-again test-fast check bench bench-detect man shim clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready $(LIBS) ## make .venv with ghtools, its tools and a CPU torch (a GPU one where there is a GPU)

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "ghtools needs Python 3.10 or newer; try make PYTHON=python3.11"; exit 2; }
	@command -v $${CC:-cc} >/dev/null || { echo "ghtools needs a C compiler; try apt-get install gcc"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment; try apt-get install python3-venv"; exit 2; }
	$(BIN)/python -m pip install -q --upgrade pip
	@if $(BIN)/python -c 'import torch' 2>/dev/null; then echo "torch is there already"; \
	elif nvidia-smi >/dev/null 2>&1; then $(BIN)/pip install -q torch; \
	else $(BIN)/pip install -q 'torch==$(TORCH)+cpu' 2>/dev/null || $(BIN)/pip install -q 'torch==$(TORCH)+cpu' --extra-index-url $(TORCH_CPU_INDEX); fi
	$(BIN)/pip install -q -e '.[dev]'
	@touch $@

$(LIBS) &: $(C_FILES)
	$(PYTHON) csrc/build.py

shim: $(LIBS) ## build the preload shim and the native library

demo: setup ## a real 4-rank job, slowed for real, watched live; leaves out/demo.png and out/demo.ght
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/demo/demo.py --out out

test: setup ## all tests (a skip says why): those without real jobs on all CPUs, then the others one by one
	@$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal -m 'not system and not long'; plain=$$?; \
	$(BIN)/python -m pytest -q -m 'system and not long' --durations=20; exit $$((plain | $$?))

test-long: setup ## real jobs of half a minute and more, and builds under further sanitizers (CI runs them, too)
	$(BIN)/python -m pytest -q -m long --durations=20

test-again: setup ## the tests that failed the last time
	$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

test-fast: setup ## the tests that take no real job or service
	$(BIN)/python -m pytest -q -m 'not slow and not system'

check: setup ## format, lint, types, man pages and README true to the code
	$(BIN)/ruff format --check -q ghtools csrc tests
	$(BIN)/ruff check --output-format concise ghtools csrc tests
	$(BIN)/mypy
	$(BIN)/python -m ghtools.commands._man --check man README.md

man: setup ## write the pages in man/ and the README's table of commands
	$(BIN)/python -m ghtools.commands._man man README.md

bench: setup ## measure; prints name, value, unit and a peer's or the paper's figure
	$(BIN)/pip install -q -e '.[bench]'
	$(BIN)/python tests/bench/run.py

bench-detect: setup $(PEERS)/.ready ## the detector's studies, 10 to 15 minutes; writes tests/bench/results (STUDY='--series 300' is quicker)
	GHT_PEERS=$${GHT_PEERS:-$(CURDIR)/$(PEERS)/bin/python} $(BIN)/python -m tests.bench.detect_study $(STUDY)

# The other detectors have an interpreter of their own; where they cannot be installed the table of peers says so.
$(PEERS)/.ready: tests/bench/peers.txt | setup
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install -q msgpack -r tests/bench/peers.txt && touch $@ || echo "not all peers could be installed"

clean: ## remove what was built (.venv too)
	rm -rf $(VENV) ghtools/_lib build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
