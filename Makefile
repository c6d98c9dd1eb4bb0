# Two commands matter: `make demo` and `make test`. Both set everything up by themselves.
PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# Tests and tools run side by side, so each process gets one thread.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
WORKERS ?= 2
DATA ?= data

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types layers unit perceptron generator bench fuzz faults docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "PUMA needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1); set PYTHON=..."; exit 2; }
	@echo "setting up .venv (the first time takes a few minutes)"
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[dev,all]'
	@touch $@

.venv/ready-bench: .venv/ready
	$(PIP) -e '.[bench]'
	$(PIP) --no-deps torchattacks adv-lib
	@touch $@

.venv/ready-docs: .venv/ready
	$(PIP) -e '.[docs]'
	@touch $@

setup: .venv/ready  ## create .venv and install, once

demo: setup  ## see the method work on bundled images, and a report of it
	$(BIN)/puma demo --out demo-output

test: setup lint types layers unit  ## lint, types, layers, tests: all that must be green

lint: setup  ## ruff: lint and format check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## ruff: format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup  ## mypy, strict
	$(BIN)/mypy

layers: setup  ## import-linter: the layout is the architecture
	$(BIN)/lint-imports

unit: setup  ## pytest
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

perceptron: setup  ## the perceptron study at full size; fails unless its nine checks hold
	$(ONE_THREAD) $(BIN)/puma perceptron --out perceptron-output --check

fuzz: setup  ## 10,500 damaged files, each read by the reader it is meant for; about ten minutes
	$(ONE_THREAD) $(BIN)/python -m faults.fuzz

faults: setup  ## kills, full disks, damaged files, two at once, two hosts, for every verb; about an hour
	$(ONE_THREAD) $(BIN)/python -m faults

generator: setup  ## the generator's checks at full size (DATA=folder with fashion-mnist-14px); fails unless they hold
	$(ONE_THREAD) $(BIN)/python -m benchmarks.generator_checks --data $(DATA) --out generator-output

bench: .venv/ready-bench  ## speed and memory, side by side with other libraries
	$(BIN)/python -m benchmarks

docs: .venv/ready-docs  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove what the targets above created
	rm -rf .venv site demo-output puma-runs perceptron-output generator-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
