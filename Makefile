# The commands of a contributor. `make` alone lists the targets. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
BEGAN := $(shell date +%s)
# Tests start hundreds of Python processes. Without bytecode files, each would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help prerequisites doctor setup quickstart cdc test smoke nightly unit lint types imports check soak bench reference docs dist lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prerequisites: ## check that Python and Java are installed and new enough
	@PYTHON="$(PYTHON)" tools/prerequisites.sh run

doctor: ## check for the programs that `make nightly` needs
	@PYTHON="$(PYTHON)" tools/prerequisites.sh nightly && echo "Nothing is missing."

# uv needs half of pip's processor time and downloads in parallel. If uv fails, pip installs: pip.conf may name a mirror that uv doesn't know.
# dist.cfg turns off the compression of wheels, because Spark's wheel is built from source and unpacked at once.
install = DIST_EXTRA_CONFIG=$(CURDIR)/tools/dist.cfg; export DIST_EXTRA_CONFIG; \
  $(BIN)/uv pip install --quiet --python .venv $(1) || $(BIN)/pip install -q $(1)

setup: .venv/.done ## make the virtual environment from the lock file

.venv/.done: requirements.lock .venv/.runner
	@echo "Installing the tools for tests and documentation …"
	@$(call install,-r requirements.lock)
	@touch $@

# The packages that run mzplan and its examples: a subset of the above, in the same versions.
.venv/.runner: requirements-runner.lock pyproject.toml
	@$(MAKE) --no-print-directory prerequisites
	@echo "Making .venv and installing PySpark and other packages (700 MB to download, once) …"
	@$(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock | $(BIN)/pip install -q -r /dev/stdin || true
	@$(call install,-r requirements-runner.lock)
	@$(call install,--no-deps -e .)
	@touch $@

quickstart: .venv/.runner ## run a demonstration in three minutes: servers, plan, apply, a change
	@$(BIN)/python -m examples.quickstart --since $(BEGAN)

cdc: .venv/.runner ## demonstrate change capture: PostgreSQL → collection → PostgreSQL and Kafka
	@$(BIN)/python -m examples.capture --since $(BEGAN)

# Three workers on two cores, because a test spends a third of its time waiting for a server or a process. Each worker has
# its own servers and Spark session, and runs all tests of a file. tests/schedule.py orders the files.
WORKERS ?= 3
PYTEST := tools/run_tests.sh -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup .venv/.jars ## run the tests, on real Spark, Kafka and PostgreSQL (10 minutes)
	$(PYTEST) -m "not smoke and not nightly and not programs" tests

smoke: setup .venv/.jars .venv-lines/.done ## run one page, one git workflow, a dozen kills and one upgrade (5 minutes)
	@PYTHON="$(PYTHON)" tools/prerequisites.sh smoke
	$(PYTEST) -m smoke tests

nightly: doctor setup .venv/.jars .venv-lines/.done ## run all other tests: kills, moves, forms, programs (50 minutes)
	$(PYTEST) -m "(nightly or programs) and not smoke" tests

unit: setup ## run the tests that need no server
	$(PYTEST) tests/unit

.venv/.jars: .venv/.done
	@$(BIN)/python -m tools.fetch_jars
	@$(BIN)/python -m tools.spark_archive
	@touch $@

# The PySpark of another line, to which tests upgrade. It is next to .venv, so that a cache can contain both.
.venv-lines/.done: .venv/.jars mzplan/host/spark_lines.py tools/other_line.lock
	@$(BIN)/python -m tools.other_line
	@touch $@

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy -p mzplan -p examples -p benchmarks
	$(BIN)/mypy tests/conftest.py tests/servers

imports: setup ## import-linter: which package may import which
	$(BIN)/lint-imports

check: lint types imports ## run all checks that aren't tests

soak: setup ## a million rows while everything is killed at random (see docs/internals/reliability.md)
	$(BIN)/python -m tests.faults.soak

bench: setup ## measure; takes hours (see benchmarks/README.md)
	$(BIN)/python -m benchmarks

reference: setup ## write docs/reference and docs/errors.md from the schemas, the commands' help and the messages
	$(BIN)/python tools/docs_reference.py

docs: setup ## build the documentation site, into site/
	$(BIN)/mkdocs build --strict

DIST ?= dist

dist: setup ## build wheel and sdist, into dist/
	$(BIN)/python -m hatchling build --directory "$(DIST)"

# requirements.lock has all packages. requirements-runner.lock has those that a runner needs, in the same versions.
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --all-extras \
  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

lock: setup ## rewrite both lock files; LOCK_FLAGS=--upgrade also takes newer versions
	$(LOCK) $(LOCK_FLAGS) --group dev --output-file requirements.lock
	$(LOCK) --group quickstart --constraint requirements.lock --output-file requirements-runner.lock

clean: ## delete the virtual environment, caches and builds (never data or state)
	rm -rf .venv .venv-lines build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
