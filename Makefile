# Two commands matter: `make demo` and `make test`. Both build .venv first, from requirements.lock.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs

.PHONY: demo test verify quick soak servers coverage record check docs clean lock

# With the page: make demo HTTP=127.0.0.1:8080
demo: $(VENV)/ready
	$(BIN)/upriver demo $(if $(HTTP),--http $(HTTP))

# Eight minutes on two quiet cores: lint, types, layers, units, recorded cases, replays, short simulations, one app on Spark.
test: $(VENV)/ready check
	PYTHON=$(BIN)/python scripts/test

# A quarter of an hour more: all that needs Spark, clusters, kills, random campaigns, and the oldest Spark.
verify: $(VENV)/ready
	PYTHON=$(BIN)/python scripts/test --verify

# Below 90 seconds: lint, types, and the tests that meet what has changed, since the last commit or SINCE=COMMIT.
quick: $(VENV)/ready check
	PYTHON=$(BIN)/python scripts/test --quick $(SINCE)

# Hours: everything with many more seeds and random queries, every supported Spark, real servers.
soak: $(VENV)/ready servers
	PYTHON=$(BIN)/python scripts/test --soak
	PYTHON=$(BIN)/python scripts/test --spark 4.2 --soak
	PYTHON=$(BIN)/python scripts/test --spark 4.1 --soak

# The tests with a real Kafka broker, and with the connectors for Kafka, Delta and Iceberg, which Maven fetches.
servers: $(VENV)/ready
	PYTHON=$(BIN)/python scripts/test --servers
	PYTHON=$(BIN)/python scripts/test --spark 4.2 --servers
	PYTHON=$(BIN)/python scripts/test --spark 4.1 --servers
	PYTHON=$(BIN)/python scripts/test --spark 4.0 --servers

# Records which tests meet which functions, by which `make quick` and scripts/mutants choose tests.
coverage: $(VENV)/ready
	PYTHON=$(BIN)/python scripts/test --coverage

# Asks Spark for the answers that tests/conformance holds; of some files alone: make record CASES="groups lists".
record: $(VENV)/ready
	PYTHONPATH=.:tests/support:tests/support/programs $(BIN)/python tests/support/programs/record.py $(CASES)

check: $(VENV)/ready
	$(BIN)/ruff check src simulator benchmarks examples tests scripts/mutants
	$(BIN)/ruff format --check src simulator benchmarks examples tests scripts/mutants
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(VENV)/ready: requirements.lock pyproject.toml
	@PYTHON=$(PYTHON) VENV=$(VENV) bash scripts/prepare
	@touch $@

# The site of the documents and the reference, in site/, with its links checked.
docs: $(DOCS)/ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

$(DOCS)/ready: requirements-docs.lock
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

# Needs `uv`; writes hashes of every wheel for every supported Python, and no registry's name. The next three
# are for `scripts/test --spark`: the oldest of everything, and the newest beside Spark 4.1 and 4.2. The last is for `make docs`,
# which reads the package's source and does not import it.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --no-annotate
lock:
	$(LOCK) --extra spark --extra demo --extra bench --extra dev --extra test -o requirements.lock
	echo 'pyspark==4.0.*' | $(LOCK) --extra spark --extra demo --extra test --resolution lowest-direct \
	  --constraint - -o requirements-spark-4.0.lock
	echo 'pyspark==4.1.*' | $(LOCK) --extra spark --extra demo --extra test \
	  --constraint - -o requirements-spark-4.1.lock
	echo 'pyspark==4.2.*' | $(LOCK) --extra spark --extra demo --extra test \
	  --constraint - -o requirements-spark-4.2.lock
	$(LOCK) --extra docs $(addprefix --no-emit-package ,duckdb msgspec numpy pyarrow sqlglot xxhash) -o requirements-docs.lock

clean:
	rm -rf $(VENV) $(DOCS) site .mypy_cache .ruff_cache .hypothesis
