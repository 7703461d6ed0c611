# The front door: `make help`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOADER := benchmarks/load/mqttload
OFFLINE := benchmarks/load/mqttoffline
PURE := build/pure
DATA ?= data
SEEDS ?= 200
FUZZ_SECONDS ?= 3600
INPUTS ?= 10000000
FIRST ?= 1
NAB ?= ../shared/data/nab
# Three tests run at the same time, since many of them wait for others. A file's tests run one after the other, the
# files in the order of tests/conftest.py.
PYTEST := -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 15
# What nothing compiled is in, or that takes whole programs: once is enough.
UNCOMPILED := $(addprefix --ignore=tests/,streaming examples demo benchmarks system sluice cloud_sdk)
WORK ?= ingest
SITE := build/docs-env
# The compiled kernel, and what it is built from: a change there builds it again.
KERNEL := build/.kernel
HOT := compiled.txt $(wildcard gateway/listen/*.pyx record/*.pyx record/*.pxd store/views/*.pyx $(shell sed '/^\#/d' compiled.txt))
# Programs of others that only tests start: MQTT.js, for Node.js and for a browser.
NPM := build/npm
export NODE_PATH := $(CURDIR)/$(NPM)/node_modules
compiled_files = find . -path ./$(VENV) -prune -o -path ./build -prune -o -name '*.so' -print0
PROTOS := $(wildcard cloud_sdk/proto/*.proto gateway/rocketmq/proto/*.proto)

.PHONY: help install demo serve test test-quick test-pure simulate fuzz nightly lint format bench bench-anomaly bench-offline bench-retained bench-split bench-matcher profile bench-store bench-cloud bench-stream conformance docs proto clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: $(KERNEL) ## create .venv, install Sluice with all extras, build the compiled kernel

$(STAMP): pyproject.toml setup.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): the first time takes a minute or two"
	@SLUICE_PURE=1 $(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[all]'
	@touch $@

# In place, with the compilers that the extras brought: what `pip install .` does in its own environment.
# Code compiled from older sources goes first, or it would shadow them where nothing can be compiled.
$(KERNEL): $(STAMP) $(HOT)
	@.ci/debian-package "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" python3-dev
	@$(call compiled_files) | xargs -0 rm -f
	@mkdir -p build
	@$(BIN)/python setup.py -q build_ext --inplace --parallel 2 >build/kernel.log || { cat build/kernel.log; exit 1; }
	@$(BIN)/sluice version
	@touch $@

demo: $(KERNEL) ## the whole path in one run: devices, cloud service, Spark, kill -9, summary
	@$(BIN)/sluice demo

serve: $(KERNEL) ## run a node with the default configuration until Ctrl-C (DATA=folder)
	@$(BIN)/sluice serve --data-dir $(DATA)

test: $(KERNEL) .clients ## run all tests but the longest ones, on the compiled kernel
	@$(BIN)/python $(PYTEST) $(ARGS)

test-quick: $(KERNEL) ## run the tests that take milliseconds (ARGS=… goes to pytest)
	@$(BIN)/python $(PYTEST) -m "not slow" $(ARGS)

test-pure: $(STAMP) .clients ## run the quick tests on a copy without compiled code
	@rm -rf $(PURE) && mkdir -p $(PURE)
	@git ls-files -z --cached --others --exclude-standard \
		| while IFS= read -r -d '' file; do test ! -f "$$file" || printf '%s\0' "$$file"; done \
		| tar --create --null --files-from=- | tar --extract --directory=$(PURE)
	@cd $(PURE) && SLUICE_PURE=1 PYTHONPATH="$$PWD" $(CURDIR)/$(BIN)/python $(PYTEST) -m "not slow" $(UNCOMPILED) $(ARGS)

simulate: $(KERNEL) ## crash a store in random histories and check what is left (SEEDS=200 FIRST=1)
	@$(BIN)/python -m tests.store.simulation --seeds $(SEEDS) --first $(FIRST)

fuzz: $(KERNEL) ## feed a node what no client should send (INPUTS=10000000 FUZZ_SECONDS=3600 ARGS=--help)
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seconds $(FUZZ_SECONDS) $(ARGS)

nightly: $(KERNEL) ## what takes too long for each change: 10,000 random histories, an hour of fuzzing, the longest tests, those without compiled code
	@$(MAKE) simulate SEEDS=10000
	@$(MAKE) test ARGS='-m nightly'
	@$(MAKE) fuzz
	@$(MAKE) test-pure

lint: $(STAMP) ## ruff check, ruff format --check, mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP) ## let ruff format and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(KERNEL) .mosquitto $(LOADER) ## Sluice and its peers under the same load, side by side (ARGS=--help)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-offline: $(KERNEL) .mosquitto $(OFFLINE) ## offline sessions: publishing to them, and their return (ARGS=--help)
	@$(BIN)/python -m benchmarks.offline $(ARGS)

bench-retained: $(KERNEL) .mosquitto ## a million retained values: set, and asked for at once and slowly (ARGS=--help)
	@$(BIN)/python -m benchmarks.retained $(ARGS)

bench-split: $(KERNEL) $(LOADER) ## one process against a store and two gateways: rate, latency, CPU by process (ARGS=--help)
	@$(BIN)/python -m benchmarks.split $(ARGS)

bench-matcher: $(KERNEL) ## the subscription trie alone: time of a match, memory of a filter (ARGS=--help)
	@$(BIN)/python -m benchmarks.matcher $(ARGS)

profile: $(KERNEL) $(LOADER) ## a flame graph of a node under one of those loads (WORK=ingest, WORK=fan-out …)
	@$(BIN)/python -m benchmarks.profile --work '$(WORK)' $(ARGS)

bench-cloud: $(KERNEL) ## the SDK against a node: producing, groups, reading by offset (ARGS=--help)
	@$(BIN)/python -m benchmarks.cloud $(ARGS)

bench-stream: $(KERNEL) $(LOADER) ## Spark's source against a node, beside local Parquet; lag; memory of a task (ARGS=--help)
	@$(BIN)/python -m benchmarks.stream $(ARGS)

bench-anomaly: $(STAMP) ## anomalies in labelled series: the detector beside a 3-sigma rule (NAB=folder)
	@$(BIN)/python -m benchmarks.anomaly $(NAB)

bench-store: $(KERNEL) ## the store alone, piece by piece, beside plain RocksDB (ARGS=--help)
	@$(BIN)/python -m benchmarks.store $(ARGS)

$(LOADER) $(OFFLINE): %: %.c benchmarks/load/wire.h
	@$(CC) -O2 -g -std=gnu11 -Wall -Wextra -Werror -o $@ $<

conformance: $(STAMP) ## write docs/conformance.md: every statement of the standards and its tests
	@$(BIN)/python -m tests.conformance

# The site has an environment of its own: its packages and nothing of Sluice.
docs: ## build the site of docs/ into build/site
	@test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	@test -x $(SITE)/bin/zensical || $(SITE)/bin/python -m pip install -qq --disable-pip-version-check \
		"$$($(SITE)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')"
	@$(SITE)/bin/python docs/site.py
	@$(SITE)/bin/zensical build --strict --clean --config-file build/zensical.toml

proto: $(STAMP) ## generate the gRPC stubs
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

# Broker and clients of Debian, for tests and benchmarks; where they cannot be had, those tests say so and skip.
.PHONY: .mosquitto
.mosquitto:
	@.ci/debian-package /usr/sbin/mosquitto mosquitto
	@.ci/debian-package /usr/bin/mosquitto_pub mosquitto-clients

# What else speaks MQTT to a node in the tests; likewise.
.PHONY: .clients
.clients: .mosquitto
	@.ci/debian-package /usr/bin/chromium chromium
	@.ci/debian-package /usr/bin/node nodejs
	@.ci/npm-packages tests/system/npm $(NPM)

clean: ## remove what was built; keeps .venv and data
	@$(call compiled_files) | xargs -0 rm -f
	@find . -path ./$(VENV) -prune -o -name __pycache__ -print0 | xargs -0 rm -rf
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis $(LOADER) $(OFFLINE)
