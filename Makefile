# Every verb prepares what it needs: a fresh machine wants Python 3.11 or newer, and make.

VENV := .venv
BIN := $(VENV)/bin
#: what a server needs is installed; and all that tests, benches and pipelines also need
RUNNABLE := $(VENV)/.runnable
READY := $(VENV)/.ready
#: An environment with the lowest versions that pyproject.toml allows.
LOWEST := .venv-lowest
#: pip, quiet; the files in requirements/ name every package with its version and hashes.
PIP_FLAGS := --quiet --disable-pip-version-check
INSTALL_SELF := --no-deps --no-build-isolation --editable .
#: How requirements/ is made. The files hold for Python 3.11 to 3.14 and name no index.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --custom-compile-command 'make lock'
LOCKED := pyproject.toml requirements/build.in

#: The folders with code, as far as they exist.
CODE = $(foreach folder,onibus pyspark_onibus bench examples tests tools,$(if $(wildcard $(folder)/*.py),$(folder)))

#: The first Python that is new enough; asked for only when the environment is made.
PYTHON ?= $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$candidate && break; done)

#: make simulate COMMANDS=20000000 SEED=7 EACH=100000 PROCESSES=2
COMMANDS ?= 1000000
EACH ?= 100000
SEED ?= 1
#: make against REVISION=main~20 ROUNDS=9
REVISION ?= HEAD
ROUNDS ?= 9
#: make kill KILLS=2000 SEED=7; make forget KILLS=2000 SEED=7
KILLS ?= 200
#: make kill-lake KILLS=200 SEED=7
#: make kill-spark KILLS=100 SEED=7 ON=standalone: local, standalone or connect
ON ?= local
#: make sequences SEQUENCES=300 SEED=7
SEQUENCES ?= 300
#: make soak MINUTES=120 SEED=7
MINUTES ?= 10
#: make cut CUTS=200000 SEED=7
CUTS ?= 20000
#: make fuzz TARGET=arrow INPUTS=2000000 SEED=7: amqp, http, sqs, atom or arrow; all by default
TARGET ?=
INPUTS ?= 200000
#: make corpus TARGET=http SECONDS=3600
SECONDS ?= 600
#: make test PROCESSES=8 ARGS="-k sessions"
PROCESSES ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run demo demonstrate test test-all test-link test-lowest coverage lint bench against \
	simulate kill kill-spark kill-lake sequences forget soak cut fuzz corpus walk docs promises site lock \
	release clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv and install everything (again when pyproject.toml or the lock changes)

run: $(RUNNABLE) ## Run a server and its pipeline, data in data/, lake in lake/ (Ctrl-C stops it)
	@$(BIN)/onibus up --config examples/onibus.toml --data data $(ARGS)

demo: $(READY) ## Show bus and pipeline at work: 200,000 messages, kills, and the proof
	$(BIN)/python examples/demo.py $(ARGS)

demonstrate: $(RUNNABLE) ## Run the short demonstration of the library
	$(BIN)/python examples/demonstration.py

test: $(READY) ## Run the quick tests of every layer (PROCESSES=2, ARGS="-k sessions")
	$(BIN)/python -m pytest -n $(PROCESSES) -m "not slow" $(ARGS)

test-all: $(READY) ## Run all tests (PROCESSES=2, ARGS="-k sessions")
	$(BIN)/python -m pytest -n $(PROCESSES) $(ARGS)

test-link: $(READY) ## Run the suites of the official clients over a link (LINK=coded or late)
	ONIBUS_LINK=$(or $(LINK),coded) $(BIN)/python -m pytest -n $(PROCESSES) tests/amqp tests/sqs $(ARGS)

test-lowest: $(LOWEST)/.ready ## Run the quick tests with the lowest versions that are allowed
	$(LOWEST)/bin/python -m pytest -n $(PROCESSES) -m "not slow" $(ARGS)

coverage: $(READY) ## Run all tests, and print the covered lines and branches (ARGS="-k sessions")
	rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest -n $(PROCESSES) $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m tools.coverage

lint: $(READY) ## Check style, format and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)

bench: $(READY) ## Measure, and print one table
	$(BIN)/python -m bench $(ARGS)

against: $(READY) ## Compare the speed with an earlier commit (REVISION=HEAD, ROUNDS=9)
	$(BIN)/python -m bench.against $(REVISION) --rounds $(ROUNDS)

simulate: $(READY) ## Run the simulator (COMMANDS=1000000, EACH=100000 per seed, SEED=1)
	$(BIN)/python -m tests.simulator.simulate --commands $(COMMANDS) --each $(EACH) \
		--seed $(SEED) --processes $(PROCESSES) $(ARGS)

kill: $(READY) ## Kill a server under three protocols, and check what clients saw (KILLS=200, SEED=1)
	$(BIN)/python -m tests.crash.kill_server --kills $(KILLS) --seed $(SEED)

kill-spark: $(READY) ## Kill drivers, executors, workers and the broker under Spark (KILLS=200, SEED=1, ON=local)
	$(BIN)/python -m tests.spark.kill_spark --kills $(KILLS) --seed $(SEED) --on $(ON)

kill-lake: $(READY) ## Kill captures at each step, while programs read Delta and Iceberg (KILLS=200, SEED=1)
	$(BIN)/python -m tests.spark.kill_lake --kills $(KILLS) --seed $(SEED)

sequences: $(READY) ## Run random sequences of captures and queries through Spark (SEQUENCES=300, SEED=1)
	$(BIN)/python -m tests.spark.spark_sequences --sequences $(SEQUENCES) --seed $(SEED)

forget: $(READY) ## Kill a server whose disk forgets unsynced writes; needs root (KILLS=200, SEED=1)
	$(BIN)/python -m tests.crash.kill_server --forget --kills $(KILLS) --seed $(SEED)

soak: $(READY) ## Soak a server at 30 % load in faults, and compare memory, files and disk (MINUTES=10, SEED=1)
	$(BIN)/python -m tests.crash.soak --minutes $(MINUTES) --seed $(SEED)

cut: $(READY) ## Cut the power of a simulated disk, and check what is left (CUTS=20000, SEED=1)
	$(BIN)/python -m tests.crash.cut_power --cuts $(CUTS) --seed $(SEED) --processes $(PROCESSES)

fuzz: $(READY) ## Feed malformed input to each protocol (TARGET=arrow, INPUTS=200000, SEED=1)
	$(BIN)/python -m tests.fuzz.many $(TARGET) --inputs $(INPUTS) --seed $(SEED) $(ARGS)

corpus: $(READY) ## Look for inputs that reach new code, and keep them (TARGET=arrow, SECONDS=600)
	$(BIN)/python -m tests.fuzz.grow $(TARGET) --seconds $(SECONDS) $(ARGS)

walk: $(READY) ## Trace requests through a server: the files entered, the moves (ARGS="AMQP send")
	$(BIN)/python -m tools.walk $(ARGS)

docs: promises ## Regenerate the generated pages of docs/ and the included code
	$(BIN)/python -m tools.lifecycle
	$(BIN)/python -m tools.http_calls
	$(BIN)/python -m tools.rights
	$(BIN)/python -m tools.includes

promises: $(READY) ## Regenerate docs/promises.md from the tests
	$(BIN)/python -m tools.promises

site: $(READY) ## Build the documentation site into site/; it loads nothing from other hosts
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Serve it: $(BIN)/python -m http.server --directory site 8000"

lock: $(READY) ## Choose versions again and write them to requirements/, with hashes
	@$(BIN)/uv --version >/dev/null 2>&1 || \
		$(BIN)/python -m pip install $(PIP_FLAGS) 'uv>=0.13,<0.14'
	$(COMPILE) --upgrade --all-extras $(LOCKED) -o requirements/development.txt
	$(COMPILE) -c requirements/development.txt --extra all $(LOCKED) -o requirements/all.txt
	$(COMPILE) -c requirements/development.txt --extra server --extra arrow --extra uvloop \
		$(LOCKED) -o requirements/server.txt
	$(COMPILE) --resolution lowest-direct --all-extras $(LOCKED) -o requirements/lowest.txt

release: $(READY) ## Build and try the release, then tag it (ARGS=--dry-run: no tag)
	$(BIN)/python -m tools.release $(ARGS)

clean: ## Remove the environments and everything tools left behind
	rm -rf $(VENV) $(LOWEST) build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNNABLE): pyproject.toml requirements/all.txt
	@test -n "$(PYTHON)" || { \
		echo "Onibus needs Python 3.11 or newer, and none was found." >&2; \
		echo "Install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: it lacks venv or ensurepip." >&2; \
		echo "Debian, Ubuntu: apt install python3-venv (or python3.X-venv, same X)." >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || rm -rf $(VENV)
	@echo "Installing Onibus into $(VENV): this takes a minute or two, once."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes -r requirements/all.txt
	@$(BIN)/python -m pip install $(PIP_FLAGS) $(INSTALL_SELF)
	@touch $@

$(READY): $(RUNNABLE) requirements/development.txt
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes -r requirements/development.txt
	@touch $@

$(LOWEST)/.ready: pyproject.toml requirements/lowest.txt
	@$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes -r requirements/lowest.txt
	@$(LOWEST)/bin/python -m pip install $(PIP_FLAGS) $(INSTALL_SELF)
	@touch $@
