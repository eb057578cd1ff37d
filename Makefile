# All that a new checkout needs: `make demo`, `make test`. Each target sets up what it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The same file everywhere: a CPU build. Plain `torch` would be a CUDA build of several GB.
TORCH := torch==2.13.0+cpu
TORCH_INDEX := https://download.pytorch.org/whl/cpu
STAMP := $(VENV)/.installed
# Tests start hundreds of processes of ours: each would compile every module again where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo venv engines check unit live test clean

help:
	@echo "make demo     the incident, and its remedy, on the built-in engine (no server, no GPU)"
	@echo "make venv     the development environment in $(VENV)"
	@echo "make engines  real vLLM, llama.cpp and models into ~/.cache/kvrelease (25 min once)"
	@echo "make check    ruff, mypy"
	@echo "make unit     tests without real engines"
	@echo "make live     tests on real engines"
	@echo "make test     all of it; what CI runs"

demo: $(STAMP)
	$(BIN)/kvrelease demo
	@echo; echo "To type these commands: . $(BIN)/activate"

venv: $(STAMP)

$(STAMP): pyproject.toml requirements-dev.txt Makefile
	$(PYTHON) scripts/preflight.py --venv $(VENV)
	@echo "making $(VENV): PyTorch (CPU), transformers and the tools of development, a minute or two"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet "$(TORCH)" -c requirements-dev.txt 2>/dev/null \
	  || $(BIN)/pip install --quiet "$(TORCH)" -c requirements-dev.txt --extra-index-url $(TORCH_INDEX)
	$(BIN)/pip install --quiet --editable ".[local,dev]" -c requirements-dev.txt
	touch $(STAMP)

engines:
	$(PYTHON) scripts/engines.py install

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/pytest -m "not live" -n auto

live: $(STAMP) engines
	$(BIN)/pytest -m live tests/live -p no:randomly

test: check unit live

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist
