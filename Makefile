.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FLOORS := .venv-floors
LINT := .venv-lint
LINT_INSTALLED := $(LINT)/.installed
DEMO_INSTALLED := $(VENV)/.demo-installed
PHOTOS ?=
TESTS ?=
MUTANTS ?=
# Without bytecode, each server and command of the tests would compile the package when it starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test long pythons floors lint dist mutants bench measure fuzz faults soak audit clean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

define CHECK_PYTHON
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' \
	    || { echo "Python 3.11 or 3.12 is needed, and $(PYTHON) is `$(PYTHON) --version`: make PYTHON=python3.11 ..."; exit 1; }
endef

# A stamp is newer than setup.cfg after an installation, so a second run installs nothing.
$(BIN)/python:
	$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)

# Without PyTorch, and without OpenVINO, which only makes some processors faster: of the extra local, the export needs
# ONNX Runtime alone. Of scikit-image only the photos are used, which need none of its dependencies. Bytecode is compiled
# when it is needed: most of it never is.
$(DEMO_INSTALLED): setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --no-compile --editable '.[cli,dedup,server]' 'onnxruntime>=1.19' 'psutil>=6'
	$(BIN)/python -m pip install --no-compile --no-deps 'scikit-image>=0.24'
	touch $@

$(INSTALLED): setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $(DEMO_INSTALLED) $@

install: $(INSTALLED)  ## make .venv with everything that development needs

demo: $(DEMO_INSTALLED)  ## find the duplicates among sample photos, or in PHOTOS=dir
	$(BIN)/python -m benchmarks demo $(if $(PHOTOS),--photos '$(PHOTOS)')

# Much of the time goes to waiting for servers, so three processes share the files, also on two cores. Each has a server
# of its own: no -n auto.
test: $(INSTALLED)  ## run all tests, or those in TESTS=path
	$(BIN)/python -m pytest $(or $(TESTS),--numprocesses 3 --dist loadfile --no-loadscope-reorder)

# Every experiment of benchmarks in small, what README and docs show, kills of servers and nodes, ViT-B-32 as a whole.
long: $(INSTALLED)  ## run the tests that take minutes, or those in TESTS=path
	CLIP_TEST_LONG=1 $(BIN)/python -m pytest -m long $(or $(TESTS),--numprocesses 3 --dist loadfile)

# A server holds back NumPy, and with it OpenCV; these have the newest of both.
pythons: $(INSTALLED)  ## install the wheel with Python 3.13 and 3.14, and run its tests there (root; ten minutes)
	CLIP_TEST_PYTHONS=1 $(BIN)/python -m pytest tests/live/packaging/test_pythons.py

# Without what needs PyTorch or another client's package.
floors: setup.cfg pyproject.toml $(INSTALLED)  ## run the tests of client, commands and gateway with setup.cfg's lowest versions
	$(PYTHON) -m venv --clear $(FLOORS)
	$(BIN)/uv pip install --quiet --python $(FLOORS) --resolution lowest-direct \
	    --editable '.[laptop,gateway,tracing]'
	$(BIN)/uv pip install --quiet --python $(FLOORS) cryptography httpx hypothesis imagehash jsonschema psutil pytest \
	    pytest-asyncio pytest-timeout pytest-xdist trustme
	$(BIN)/uv pip install --quiet --python $(FLOORS) --no-deps 'scikit-image>=0.24'
	$(FLOORS)/bin/python -m pytest --numprocesses 3 --ignore tests/unit/imaging/test_transform.py \
	    $(addprefix tests/unit/,cli client dedup imaging model_repository review search storage) \
	    $(foreach name,faults fuzz,tests/fake_server/gateway/test_$(name).py)

# Without PyTorch, of which stubs/ has what mypy needs.
$(LINT_INSTALLED): pyproject.toml
	$(CHECK_PYTHON)
	$(PYTHON) -m venv --clear $(LINT)
	$(LINT)/bin/python -m pip install --quiet 'uv>=0.9'
	$(LINT)/bin/uv pip install --quiet --no-cache --python $(LINT) --group lint
	touch $@

lint: $(LINT_INSTALLED)  ## check style and types
	$(LINT)/bin/ruff check .
	$(LINT)/bin/ruff format --check .
	$(LINT)/bin/mypy

dist: $(INSTALLED)  ## build the wheel and the source distribution into dist/, and check their package page
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

mutants: $(INSTALLED)  ## list changes to the code that no test notices (hours; resumes), or those of MUTANTS=pattern
	$(BIN)/mutmut run $(foreach name,$(MUTANTS),'$(name)')
	$(BIN)/mutmut results

bench: $(INSTALLED)  ## run the serving and imaging benchmarks and write the report (within an hour; resumes)
	$(BIN)/python -m benchmarks all

measure: $(INSTALLED)  ## measure images per second through the ensemble and its parts (five minutes), with MODEL=file.json
	$(BIN)/python -m benchmarks ensemble $(if $(MODEL),--model '$(MODEL)')

fuzz: $(INSTALLED)  ## try 100,000 damaged files, 10,000 through a server, 10,000 bodies for clip-gateway, 100,000 texts
	FUZZ_INPUTS=100000 FUZZ_LIVE=10000 FUZZ_GATEWAY=10000 FUZZ_TEXTS=100000 $(BIN)/python -m pytest \
	    tests/unit/imaging/test_fuzz.py tests/live/serving/test_fuzz.py tests/fake_server/gateway/test_fuzz.py \
	    tests/unit/text/test_tokenizer.py

faults: $(INSTALLED)  ## kill, freeze and starve a server under load, and print what was lost
	$(BIN)/python -m benchmarks faults

soak: $(INSTALLED)  ## send 200,000 requests, for an hour at most: memory, descriptors and shared memory must stay flat
	$(BIN)/python -m benchmarks soak

audit: $(INSTALLED)  ## look up known vulnerabilities of the container's pinned dependencies
	containers/scripts/audit.sh $(abspath $(BIN))/pip-audit

clean:  ## remove what the demo and the builds left; .venv and exported models stay
	rm -rf demo build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
