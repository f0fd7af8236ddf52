# From a fresh clone: `make ablation` runs the first experiment, `make test` checks everything.
#
#   make ablation ARGS="--seeds 3"       options for `andrea ablate norm-placement`
#   make ablation TORCH_ARGS="--index-url URL"   options for pip when it installs torch (which build, from where)
#   make test PYTHON=python3.12          another interpreter, 3.11 or newer
#   make test WORKERS=0                  the tests one after another, in one process

SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
TORCH_ARGS ?=
PYTHON ?=
WORKERS ?= auto
PYTEST_ARGS ?=
# A process per core, at most eight: each loads torch. Slow tests also wait for others, so they get twice as many
# (tests/conftest.py). Who has nothing left to do takes from another.
PYTEST := $(BIN)/pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal
# Tests start hundreds of interpreters: each would translate the program anew.
unexport PYTHONDONTWRITEBYTECODE
AXE := 4.14.1
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help ablation install install-dev test lint fast slow clean distclean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

ablation: install ## Install andrea into .venv and ask whether pre-norm beats post-norm
	$(BIN)/andrea ablate norm-placement $(ARGS)
	@echo ". $(VENV)/bin/activate gives you the andrea command"

test: lint fast slow ## Install what the tests need, check style and types, run every test

lint: install-dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fast: install-dev ## The tests that take seconds
	$(PYTEST) -m "not slow" --timeout 300 $(PYTEST_ARGS)

slow: install-dev ## The tests that train, start processes or open a browser
	$(PYTEST) -m slow $(PYTEST_ARGS)

clean: ## Remove caches and builds; .venv and andrea-runs stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find andrea tests benchmarks reports ablations sweeps -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## Remove .venv too
	rm -rf $(VENV)

# Stamps in .venv: a second call installs nothing unless the dependencies have changed.

install: $(VENV)/.installed ## Install andrea into .venv and run nothing
install-dev: $(VENV)/.installed-dev $(VENV)/.axe ## Install what the tests need as well

# PYTHON, else the first interpreter on the path that is new enough; one line when there is none.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "make: andrea needs Python 3.11 or newer; install it (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "make: $$found cannot make a virtual environment; install its venv package (Debian: apt-get install python3-venv)" >&2; exit 1; \
	fi; \
	echo "$$found -m venv $(VENV)"; "$$found" -m venv $(VENV)

# torch first and alone, without the other pins: TORCH_ARGS may name an index that has torch and little else.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(PIP) install $(TORCH_ARGS) "$$(grep '^torch==' constraints.txt)"
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(PIP) install -e . -c constraints.txt
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(PIP) install -e '.[dev]' -c constraints.txt
	@touch $@ $(VENV)/.installed

# axe-core finds what keeps people out of a page. Without npm its test says what is missing, and is skipped.
$(VENV)/.axe: Makefile | $(BIN)/python
	@if command -v npm >/dev/null; then \
	  echo "npm install axe-core@$(AXE)"; npm install --no-save --no-audit --no-fund --prefix $(VENV) axe-core@$(AXE) && touch $@; \
	else \
	  echo "make: npm is not installed, so pages are not checked for accessibility (Debian: apt-get install npm)" >&2; \
	fi
