# Everything a developer does here. Nothing below leaves a process running.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIENT := .venv-client
BENCH := .venv-bench
# Two test processes to a core, as tests wait for programs, disks and pauses; at most eight, for their memory.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, 2 * len(os.sched_getaffinity(0))))')
PYTEST_ARGS ?=
BENCH_ARGS ?=
# Programs that the tests start read our modules compiled, also where PYTHONDONTWRITEBYTECODE is set.
COMPILE := $(BIN)/python -m compileall -q -j 2 src tests/support

.DEFAULT_GOAL := help
.PHONY: help install demo test soak lint bench clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(VENV)/.installed ## Install Trainshed into .venv (a quick no-op when it is current)

demo: install ## Start a server, train a small model, verify what came back, stop everything
	$(BIN)/trainshed demo

test: $(VENV)/.tested-with $(CLIENT)/.installed lint ## Lint, then run every test
	@scripts/install-postgresql && scripts/install-bubblewrap && scripts/install-containers
	@scripts/install-ssh && scripts/install-torch && scripts/install-ray && scripts/install-inspector
	@$(COMPILE)
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

soak: $(VENV)/.tested-with ## Property tests with many examples, two million steps of the gang simulator; takes hours
	@scripts/install-postgresql
	@$(COMPILE)
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m hypothesis --timeout 7200 $(PYTEST_ARGS)
	$(BIN)/python -m trainshed.policy.gangs.simulator --seed $${SOAK_SEED:-$$(date +%s)} --steps $${SOAK_STEPS:-2000000}

lint: $(VENV)/.tested-with ## Style, formatting, types and import rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(BENCH)/.installed ## Measure against the speed budget, peers beside us; writes bench/results.json
	@$(BENCH)/bin/python -m compileall -q src # what is measured is the program, not its compilation
	$(BENCH)/bin/python -m bench $(BENCH_ARGS)

clean: ## Remove what the targets above made
	rm -rf $(VENV) $(CLIENT) $(BENCH) .venv-ray .venv-torch .venv-inspector .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/results.json

# A fresh virtual environment with a pip that knows dependency groups (25.1).
define new_environment
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Trainshed needs Python 3.11 or newer; set PYTHON=python3.12, say")'
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
endef

$(VENV)/.installed: pyproject.toml
	$(call new_environment,$(VENV))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@$(BIN)/python -m compileall -q src # pip compiles what it installs, and -e installs nothing of ours
	@touch $@

$(VENV)/.tested-with: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group test --group lint
	@touch $@

# The published client, alone: the tests drive our server with it, unchanged.
$(CLIENT)/.installed: Makefile
	$(call new_environment,$(CLIENT))
	$(CLIENT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps envloop-cli==1.7.0
	@touch $@

# A peer that does not install here is reported in the table, not fatal.
$(BENCH)/.installed: pyproject.toml
	$(call new_environment,$(BENCH))
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@for peer in hyperqueue submitit; do \
	  $(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --group bench-$$peer \
	    || echo "bench: the peer $$peer cannot be installed here"; \
	done
	@touch $@
