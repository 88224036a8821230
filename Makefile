# `make run` and `make test` set up all they need from nothing but Python 3.11+ and make.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PROVIDER := $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)

.PHONY: run test test-cuda check clean

run: .venv/.installed-run
	$(BIN)/crosshead run

test: .venv/.installed-test check
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not cuda"

# Needs an NVIDIA GPU: the tests that touch one, then a run whose record is kept beside the code.
test-cuda: .venv/.installed-test
	$(BIN)/python -m pytest -m cuda
	$(BIN)/crosshead run --backend torch-eager --backend ort-cpu --backend ort-cuda --out results/published

check: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/.installed-run: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) torch
	$(PIP) --editable '.[torch,$(PROVIDER)]'
	touch $@

.venv/.installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) torch
	$(PIP) --editable '.[all-$(PROVIDER),dev]'
	touch $@

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "crosshead needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
