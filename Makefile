# Everything is run from here; `make help` lists the targets. Needed: Python 3.11+ with venv, make, git. The real servers
# (make servers, make test-servers) need Java 17, Maven, Go, g++ and Node 20 besides.

.DEFAULT_GOAL := help
# The first of these that is new enough; `make PYTHON=...` names another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# Two processes; a file's tests stay together, so that what a file shares is made once.
PYTEST_WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile
NODE_MODULES := infra/asyncapi/node_modules/.package-lock.json

.PHONY: help setup demo test test-servers lint format types layers fresh unit bench eval results schemas docs lock servers servers-down up down clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

setup: $(STAMP)  ## make .venv with everything at its locked version
	@echo "$(VENV) is ready"

# The lock's hashes cover every download; the project itself is linked in, built by the setuptools of the lock.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(or $(PYTHON),false) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Python 3.11 or newer with venv is needed (Debian: python3-venv); make PYTHON=... names one" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the locked requirements"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)  ## run the whole system in this one process on a dozen real jobs
	@$(BIN)/schedmate demo

test: lint types layers fresh unit  ## everything but the real servers: the gates, then the tests

test-servers: $(STAMP) $(NODE_MODULES)  ## start the real servers and run the tests that need them
	@infra/servers/servers up
	@set -a; . ./.servers/env; set +a; $(BIN)/python -m pytest -m servers --durations=10

lint: $(STAMP)  ## ruff: every rule, and the format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

format: $(STAMP)  ## let ruff format and mend what it can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

types: $(STAMP)  ## mypy: strict on the product, loose on what the tests share
	@$(BIN)/mypy
	@$(BIN)/mypy $(patsubst tests/%.py,-m tests.%,$(wildcard tests/*.py))

layers: $(STAMP)  ## import-linter: imports point inward
	@$(BIN)/lint-imports

fresh: $(STAMP)  ## are the generated files those that the code gives?
	@$(BIN)/python -m schedmate.schemas.generate --check
	@$(BIN)/python -m schedmate.reference --check

unit: $(STAMP)  ## every test that needs no server, and the domain's coverage
	@$(PYTEST) -m "not servers" --durations=10 --cov --cov-report=term-missing:skip-covered

bench: $(STAMP)  ## print the performance figures (starts a Kafka and a Mongo of its own)
	@$(BIN)/python benchmarks/run.py

eval: $(STAMP)  ## print the scores on the labelled corpora
	@$(BIN)/python benchmarks/eval_failures.py
	@$(BIN)/python benchmarks/eval_sources.py
	@$(BIN)/python benchmarks/eval_progress.py --formats

results: $(STAMP)  ## run what docs/results.md still needs (minutes to an hour of CPU), and write it; needs SCHEDMATE_TRACES
	@$(BIN)/python benchmarks/results.py

schemas: $(STAMP)  ## write schemas/generated and docs/events.md, docs/states.md from the models
	@$(BIN)/python -m schedmate.schemas.generate

docs: schemas  ## write every generated page and table of docs/
	@$(BIN)/python -m schedmate.reference

lock: $(STAMP)  ## write requirements/*.txt anew from pyproject.toml (UPGRADE=1: newest allowed versions)
	@requirements/lock $(if $(UPGRADE),--upgrade)

servers: $(STAMP)  ## start Kafka, a MongoDB-wire server, Ollama and tracing without Docker
	@infra/servers/servers up

servers-down:  ## stop them
	@infra/servers/servers down

up:  ## start the servers with Docker
	@docker compose --file infra/compose/compose.yaml up --detach --wait

down:  ## stop them
	@docker compose --file infra/compose/compose.yaml down

clean:  ## remove what was made here but .venv and the servers' data
	@rm -rf build dist *.egg-info .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -not -path './.servers/*' -prune -exec rm -rf {} +

$(NODE_MODULES): infra/asyncapi/package-lock.json
	@npm ci --prefix infra/asyncapi --no-audit --no-fund
