.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PHOTOS ?=
MUTANTS ?=

.PHONY: help install demo test lint mutants bench measure fuzz faults soak audit clean

help:  ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp is newer than setup.cfg once all is installed, so a second run installs nothing.
$(INSTALLED): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
	    || { echo "Python 3.10 to 3.12 is needed, and $(PYTHON) is `$(PYTHON) --version`: make PYTHON=python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --editable '.[dev]'
	$(BIN)/python -m preprocess_ensemble.serving.launcher install $(BIN)
	touch $@

install: $(INSTALLED)  ## make .venv with all that development needs

demo: $(INSTALLED)  ## find the duplicates in sample photos, or in PHOTOS=dir
	$(BIN)/python -m benchmarks demo $(if $(PHOTOS),--photos '$(PHOTOS)')

test: $(INSTALLED)  ## run all tests
	$(BIN)/python -m pytest

lint: $(INSTALLED)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: $(INSTALLED)  ## change the code in thousands of places, and list what no test notices; goes on where it was stopped
	$(BIN)/mutmut run $(foreach name,$(MUTANTS),'$(name)')
	$(BIN)/mutmut results

bench: $(INSTALLED)  ## the whole study and its report, within an hour; goes on where it was stopped
	$(BIN)/python -m benchmarks all

measure: $(INSTALLED)  ## images per second through the ensemble, beside its parts; five minutes
	$(BIN)/python -m benchmarks end_to_end

fuzz: $(INSTALLED)  ## feed 100,000 damaged files to the preprocessing
	$(BIN)/python -m benchmarks fuzz --count 100000 --live 10000

faults: $(INSTALLED)  ## kill, freeze and starve a server under load; print what was lost
	$(BIN)/python -m benchmarks faults

soak: $(INSTALLED)  ## 200,000 requests or an hour; memory, descriptors and shared memory must stay flat
	$(BIN)/python -m benchmarks soak

audit: $(INSTALLED)  ## look the pinned dependencies of the container up for known vulnerabilities
	containers/scripts/audit.sh $(abspath $(BIN))/pip-audit

clean:  ## remove what the demo and the builds left; the environment and exported models stay
	rm -rf demo build .mypy_cache .pytest_cache .ruff_cache .hypothesis
