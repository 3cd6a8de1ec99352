# Two commands matter: `make demo` and `make test`. Both build .venv first, from requirements.lock.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test soak check clean lock

demo: $(VENV)/ready
	$(BIN)/upriver demo

test: $(VENV)/ready check
	PYTHON=$(BIN)/python scripts/test

# Everything: the simulations with many more seeds, and the long tests.
soak: $(VENV)/ready
	PYTHON=$(BIN)/python scripts/test --soak

check: $(VENV)/ready
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(VENV)/ready: requirements.lock pyproject.toml
	@PYTHON=$(PYTHON) VENV=$(VENV) bash scripts/prepare
	@touch $@

# Needs `uv`; writes hashes of every wheel for every supported Python, and no registry's name.
lock:
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate -o requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
