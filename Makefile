# Two commands matter: `make demo` and `make test`. Both set everything up by themselves.
PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
# Tests and tools run side by side, so each process gets one thread.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
WORKERS ?= 2
DATA ?= data

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format types layers unit perceptron generator bench fuzz faults lowest package audit docs clean

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

lowest:  ## test with the lowest versions that pyproject allows, in a .venv-lowest of its own
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; o = p["optional-dependencies"]; skip = ("all", "dev", "docs", "bench"); print(*sorted({d.replace(">=", "==") for d in sum([p["dependencies"], *(o[k] for k in o if k not in skip)], [])}), sep="\n")' > .venv-lowest/pins.txt
	echo 'pyparsing<3.3' >> .venv-lowest/pins.txt  # newer ones warn of how matplotlib 3.8 calls them
	.venv-lowest/bin/python -m pip --quiet install -c .venv-lowest/pins.txt -e '.[all]' pytest pytest-xdist hypothesis psutil
	$(ONE_THREAD) .venv-lowest/bin/python -m pytest -n $(WORKERS) --dist worksteal

package: setup  ## build wheel and sdist into dist/
	$(BIN)/python -m pip --quiet install hatchling
	$(BIN)/python -m hatchling build -d dist

audit: setup  ## known vulnerabilities of the pins; fails where the data cannot be reached
	$(BIN)/python -m pip --quiet install pip-audit
	$(BIN)/pip-audit --strict -r constraints.txt --no-deps --disable-pip

bench: .venv/ready-bench  ## speed and memory, side by side with other libraries
	$(BIN)/python -m benchmarks

docs: .venv/ready-docs  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove what the targets above created
	rm -rf .venv .venv-lowest dist site demo-output puma-runs perceptron-output generator-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
