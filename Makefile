# Every target sets up what it needs in .venv: nothing but Python 3.11+, a C/C++ toolchain and
# make has to be installed. `make PYTHON=/path/to/python3 test` chooses the interpreter.
# Test files run beside each other, one process a core; `make TEST_JOBS=0 test` runs all in one.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?=
TEST_JOBS ?= auto
SOAK_ARGS ?=
BENCH_ARGS ?=
export PYTHON

.PHONY: help setup demo test lint format types gen gen-check soak bench clean

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
	    printf '  %-16s %s\n' "$$target" "$$text"; done

setup: $(READY)  ## Create .venv and install everything.

$(READY): pyproject.toml tools/setup.sh
	@tools/setup.sh $(VENV)
	@touch $@

demo: $(READY)  ## Train through restarts and a kill -9, compare with an undisturbed run.
	$(BIN)/python examples/resume_training/demo.py

test: $(READY)  ## Run every test that needs no GPU (the soak has its own target).
	$(BIN)/python -m pytest -n $(TEST_JOBS) --maxprocesses 4 --dist loadfile $(PYTEST_ARGS)

lint: $(READY)  ## Check style and formatting.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)  ## Apply formatting and the safe fixes.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)  ## Check types (mypy --strict).
	$(BIN)/mypy
	$(BIN)/mypy --strict tools

gen: $(READY)  ## Write all generated files anew.
	@for script in tools/gen_*.py; do $(BIN)/python $$script; done

gen-check: $(READY)  ## Fail when a generated file is out of date.
	@for script in tools/gen_*.py; do echo "$$script --check"; $(BIN)/python $$script --check; done

soak: $(READY)  ## Kill servers at many random points (long; SOAK_ARGS, e.g. --seed N, go to each run).
	$(BIN)/python tests/resilience/soak.py --points 200 $(SOAK_ARGS)
	$(BIN)/python tests/resilience/soak.py --points 20 --relay $(SOAK_ARGS)
	$(BIN)/python tests/resilience/soak.py --points 20 --database postgresql $(SOAK_ARGS)
	$(BIN)/python -m pytest --soak -m soak

bench: $(READY)  ## Print benchmark results as JSON lines (BENCH_ARGS go to each script).
	@for script in benchmarks/bench_*.py; do $(BIN)/python $$script $(BENCH_ARGS); done

clean:  ## Remove the environment, caches and everything the demo wrote.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo.png examples/*/demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
