# Everything a contributor runs. `make` alone lists the targets; all work happens in .venv.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help prerequisites setup quickstart cdc test unit lint types imports check soak bench docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prerequisites: ## see whether Python and Java are there and new enough
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "mzplan needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo 'not there')." >&2; \
	  echo "Install one and name it: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' can't make virtual environments (Debian, Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	[ "$${version:-0}" -ge 17 ] || { \
	  echo "Spark and Kafka need Java 17 or 21, and '$$java' is $${version:+Java }$${version:-not there}." >&2; \
	  echo "Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17)" >&2; \
	  echo "or set JAVA_HOME to one." >&2; exit 1; }

setup: .venv/.done ## make the virtual environment from the lock file

.venv/.done: requirements.lock pyproject.toml
	@$(MAKE) --no-print-directory prerequisites
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -r requirements.lock
	$(BIN)/pip install -q --no-deps -e .
	@touch $@

quickstart: setup ## show the whole thing: servers, plan, apply, a change
	$(BIN)/python -m examples.quickstart

cdc: setup ## show change capture: PostgreSQL → collection → PostgreSQL and Kafka
	$(BIN)/python -m examples.capture

test: setup ## run all tests, against real Spark, Kafka and PostgreSQL
	$(BIN)/python -m pytest tests

unit: setup ## run the tests that need no server, in seconds
	$(BIN)/python -m pytest tests/unit

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy -p mzplan -p examples -p benchmarks
	$(BIN)/mypy tests/conftest.py tests/servers

imports: setup ## import-linter: which package may import which
	$(BIN)/lint-imports

check: lint types imports ## all that needs no test run

soak: setup ## a million rows while everything is killed at random (see docs/reliability.md)
	$(BIN)/python -m tests.faults.soak

bench: setup ## measure; takes hours (see benchmarks/README.md)
	$(BIN)/python -m benchmarks

docs: setup ## build the documentation site, into site/
	$(BIN)/mkdocs build --strict

# requirements.lock: everything. requirements-runner.lock: what runs, and no tools; a part of it, in the same versions.
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --all-extras \
  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

lock: setup ## write both lock files anew; LOCK_FLAGS=--upgrade also takes newer versions
	$(LOCK) $(LOCK_FLAGS) --group dev --output-file requirements.lock
	$(LOCK) --group quickstart --constraint requirements.lock --output-file requirements-runner.lock

clean: ## delete the virtual environment, caches and builds (never data or state)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
