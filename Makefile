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
	$(BIN)/ruff check src simulator benchmarks tests
	$(BIN)/ruff format --check src simulator benchmarks tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(VENV)/ready: requirements.lock pyproject.toml
	@PYTHON=$(PYTHON) VENV=$(VENV) bash scripts/prepare
	@touch $@

# Needs `uv`; writes hashes of every wheel for every supported Python, and no registry's name. The second and the third
# are for `scripts/test --spark`: the oldest of everything, and the newest beside Spark 4.2.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate
lock:
	$(LOCK) --all-extras -o requirements.lock
	echo 'pyspark==4.1.*' | $(LOCK) --extra spark --extra demo --extra test --resolution lowest-direct \
	  --constraint - -o requirements-spark-4.1.lock
	echo 'pyspark==4.2.*' | $(LOCK) --extra spark --extra demo --extra test \
	  --constraint - -o requirements-spark-4.2.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
