# Needs make and, once, the network; everything else is set up by the targets. `make help` lists them.

PYTHON ?= python3
VENV := .venv/bin
SERVICES := $(PYTHON) compose/services.py
# pytest's own options, for example: make test TESTS="tests/unit -k cron"
TESTS ?=
# so many tests at a time: most of them wait for servers and clocks
WORKERS ?= 4
# of the model, for example: make model CASES="code-2"
CASES ?=
# of the mutations, by name; all of them by default
MUTANTS ?=
# the name of a measurement in bench/, else all of them, and its options
BENCH ?=
BENCH_NAME := $(if $(wildcard bench/$(firstword $(BENCH)).py),$(firstword $(BENCH)),all)

# What is started a thousand times is compiled once, also where the environment keeps no bytecode, as containers do.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help python setup up down demo chaos test test-rabbitmq4 model mutants bench lint view format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

python:
	@command -v $(PYTHON) >/dev/null \
	  || { test -z "$$ROTA_NO_INSTALL" && apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null; } \
	  || { echo "Python is missing: install python3 3.11 or newer with its venv module" >&2; exit 3; }

setup: python ## the virtual environment in .venv, PostgreSQL and RabbitMQ installed
	@$(SERVICES) setup

up: setup ## start the stack in the background (two schedulers, two workers), print its URLs
	@$(VENV)/python compose/stack.py up

down: python ## stop the stack
	@$(PYTHON) compose/stack.py down

demo: setup ## the main job for half a minute through real servers, then a summary
	@$(SERVICES) run -- $(VENV)/python compose/demo.py

chaos: setup ## everything fails, nothing may be lost (SECONDS=120 JOBS= SEED= FAULTS=kill_worker,cut,...)
	@$(VENV)/python tests/chaos/run.py $(if $(SECONDS),--seconds $(SECONDS)) $(if $(JOBS),--jobs $(JOBS)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

test: setup ## the whole test suite against real servers (TESTS="..." for pytest's options)
	@$(SERVICES) run -- $(VENV)/pytest -n $(WORKERS) --dist loadgroup $(TESTS)

test-rabbitmq4: setup ## the tests that touch the broker, against RabbitMQ 4.x
	@$(SERVICES) run --rabbitmq4 -- $(VENV)/pytest -n $(WORKERS) --dist loadgroup tests/broker tests/integration tests/field $(TESTS)

model: python ## walk all orders of the protocol's steps (CASES="..." for other cases, see docs/model)
	@$(PYTHON) -B docs/model/cases.py $(CASES)

mutants: setup ## break the code in known ways, one after the other: the tests must notice each (MUTANTS="names")
	@$(SERVICES) run -- $(VENV)/python tests/mutants/run.py $(MUTANTS)

bench: setup ## the measurements of docs/performance.md, as tables and JSON lines (BENCH="pipeline --rounds 3" for bench/pipeline.py)
	@$(SERVICES) run -- $(VENV)/python bench/$(BENCH_NAME).py $(filter-out $(BENCH_NAME),$(BENCH))

lint: setup view ## ruff, mypy and the import contracts
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@MYPYPATH=.rota/lint:compose $(VENV)/mypy -p rota
	@MYPYPATH=.rota/lint:compose $(VENV)/mypy compose
	@MYPYPATH=.rota/lint:compose $(VENV)/mypy tests/chaos/run.py
	@MYPYPATH=.rota/lint:compose:bench $(VENV)/mypy bench/*.py
	@PYTHONPATH=.rota/lint $(VENV)/lint-imports

# What the package looks like when it is installed: type checkers do not follow the editable install.
view: python
	@$(PYTHON) .ci/package_view.py .rota/lint

format: setup ## format the code and apply ruff's safe fixes
	@$(VENV)/ruff format .
	@$(VENV)/ruff check --fix .

clean: python ## stop everything, remove .venv, .rota and what was built
	@$(PYTHON) compose/stack.py clean
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
