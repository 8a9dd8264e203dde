# `make demo` and `make test` are all that a fresh machine needs: git, make and Python 3.10 or later.
# The virtual environment is made on first use and again when the pinned set changes.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# pytest-xdist takes one worker for each core; every worker then keeps to one thread.
PYTEST_OPTIONS ?= -n auto --dist worksteal
# What runs pytest: python, or coverage.
RUN ?= python
# Which tests; all but the slow ones where nothing is said.
TESTS ?=
# The marks of those that run beside them: -m "not sweep" is all but the sweeps.
MARKS ?=
# pip builds in a fresh environment of its own, which takes its pins from the second variable.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
  $(BIN)/python -m pip install --quiet --disable-pip-version-check

DOCS_OUT ?= build/docs

# Tests start hundreds of processes: with it, each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test test-all test-slow coverage coverage-plugin check bench compat compat-quick integrations install install-dev clean help

demo: $(VENV)/.installed
	@$(BIN)/gradcheck-suite demo

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/$(RUN) -m pytest $(PYTEST_OPTIONS) $(MARKS) $(TESTS)

test-all: MARKS := -m "not sweep"
test-all: test

test-slow: MARKS := -m "slow and not sweep"
test-slow: test

# By the quick tests: the slow ones start hundreds of processes, and each would be measured.
coverage: $(VENV)/.installed-dev
	rm -f .coverage .coverage.*
	$(MAKE) --no-print-directory test RUN="coverage run"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

# The plugin by its own tests alone. Data files of its own, by an absolute path: tests start
# processes elsewhere.
coverage-plugin: export COVERAGE_FILE := $(CURDIR)/.coverage.plugin
coverage-plugin: $(VENV)/.installed-dev
	rm -f .coverage.plugin .coverage.plugin.*
	$(MAKE) --no-print-directory test-all RUN="coverage run" TESTS=tests/plugin
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --include='*/pytest_gradcheck_suite/*' --fail-under=97

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/gradcheck-lint gradcheck_suite pytest_plugin lint_rules benchmarks docs

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

# Every supported torch, each in an environment of its own: hours, and 6 GB of disk at a time.
compat: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.compat

# The oldest and the newest, and a part of the tests.
compat-quick: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.compat --quick

# The frameworks themselves, which no other test needs. Where they can't be downloaded, that is said.
integrations: $(VENV)/.installed-dev
	@if $(PIP_INSTALL) --retries 1 --timeout 15 --requirement tests/integrations/requirements.txt; \
	then OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile tests/integrations; \
	else echo "tests/integrations: not run, as the frameworks cannot be installed here"; fi

# The site, warnings being errors; needs no network once installed.
docs: $(VENV)/.installed-docs
	$(BIN)/python docs/build_site.py $(DOCS_OUT)

install: $(VENV)/.installed

install-dev: $(VENV)/.installed-dev

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache

help:
	@echo "make demo      set up, then run gradcheck-suite on a training script with planted mistakes"
	@echo "make test      set up, then run the tests that end soon"
	@echo "make test-all  all of them"
	@echo "make check     lint, format, types, import contracts"
	@echo "make coverage  the tests with branch coverage and its gate"
	@echo "make coverage-plugin  the same for the pytest plugin, by its own tests"
	@echo "make compat    the tests on every supported torch; rewrites docs/compatibility.md"
	@echo "make compat-quick  a part of them on the oldest and the newest"
	@echo "make integrations  the tests with Lightning, Transformers, Accelerate and Ignite installed"
	@echo "make docs      the documentation as pages that open from disk, in build/docs"
	@echo "make bench     the benchmarks; rewrites docs/benchmarks.md"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "gradcheck-suite needs Python 3.10 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing torch and gradcheck-suite into $(VENV) (once; some minutes on a slow line)"
	$(PIP_INSTALL) --editable '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV) (once)"
	$(PIP_INSTALL) --editable '.[torch,dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP_INSTALL) --editable '.[torch,docs]'
	@touch $@
