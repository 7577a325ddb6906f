# One command per thing a newcomer or a contributor does. Needs Python 3.11 or later and make, nothing else.
#
#   make quickstart   install into .venv and run the first plan-simulate-train-compare loop
#   make test         install with the development tools and run the tests   (PYTEST_ARGS="-k verify")
#   make test-all     the same with the slow tests: everything; before an issue is closed
#   make lint         ruff, import direction, strict types
#   make docs         the documentation into site/, strictly
#   make docs-figures what the pages of Start and Understand show, run again: outputs and figures
#   make docs-version the documentation of this version beside that of others, in the branch gh-pages (nothing is pushed)
#   make gpu          what wants a CUDA device, on the one of this machine, with its own PyTorch (PYTHON=/path/to/python3)
#   make gpu-wheels   the few small packages that `make gpu` needs, for a machine without network
#   make web          the pages' script and style, from web/ into the package (needs node and npm; their output is committed)
#   make looks        the pictures that pages are compared with, drawn anew (needs Chromium; look at them before you commit)
#   make bench        every program in benchmarks/, one after the other
#   make wheel        the wheel into dist/
#   make clean        remove what the commands above made, except .venv   (make distclean: .venv too)
#
# Where packages come from is pip's own configuration. To choose an interpreter: make PYTHON=python3.12 test

SHELL := /bin/sh
# An empty environment (env -i) has no PATH, and make then finds no programs.
ifeq ($(strip $(PATH)),)
export PATH := /usr/local/bin:/usr/bin:/bin
endif
.DEFAULT_GOAL := help
.PHONY: help quickstart test test-all lint format docs docs-figures docs-version web looks bench gpu gpu-wheels wheel clean distclean

# The first interpreter that starts and is new enough: a pyenv shim may exist and not start.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
INSTALL_INPUTS := pyproject.toml constraints.txt

# Searching tests are reproducible here; HYPOTHESIS_PROFILE=explore looks for new examples.
HYPOTHESIS_PROFILE ?= ci
PYTEST_ARGS ?=
# Two processes test beside each other, a file each at a time: what a file's fixtures make is made once. Files whose tests
# ask for the pool of four gloo workers (tests/gloo_pool.py) are for one of them, as long as the other has others to try
# (tests/spread.py). PYTEST_ARGS="-n 0" tests in one process, for a debugger.
TEST_PROCESSES ?= 2
# What is compiled of the tests is kept, also where the environment says not to: collecting takes a quarter less.
PYTEST := HYPOTHESIS_PROFILE=$(HYPOTHESIS_PROFILE) PYTHONDONTWRITEBYTECODE= \
  $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile
# Seconds that one test may take; the others have the limit in pyproject.toml.
SLOW_TIMEOUT_S := 1800
QUICKSTART_ARGS ?=

help:
	@sed -n '3,/^$$/s/^# \{0,3\}//p' Makefile

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "meshwright needs Python 3.11 or later with venv; none was found on PATH." \
	  "Install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made $(INSTALL_INPUTS)
	@echo "Installing meshwright and PyTorch into $(VENV) (once; a few minutes)" >&2
	$(PIP) install -c constraints.txt -e '.[torch,serve,view]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made $(INSTALL_INPUTS)
	@echo "Installing meshwright, PyTorch and the development tools into $(VENV) (once; a few minutes)" >&2
	$(PIP) install -c constraints.txt -e '.[torch,serve,serve-cpu,view,dev]'
	@touch $(VENV)/.installed $@

quickstart: $(VENV)/.installed
	$(VENV)/bin/meshwright quickstart $(QUICKSTART_ARGS)

test: $(VENV)/.installed-dev
	$(PYTEST) $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev
	$(PYTEST) --slow --timeout $(SLOW_TIMEOUT_S) $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy src/meshwright

format: $(VENV)/.installed-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

docs-figures: $(VENV)/.installed-dev
	PYTHONPATH=$(CURDIR) $(PY) -m benchmarks.pages

docs-version: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/mike deploy --update-aliases \
	  $$($(PY) -c 'import meshwright; print(meshwright.__version__)') latest
	$(VENV)/bin/mike set-default latest

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	cd web && npm ci --no-audit --no-fund

web: web/node_modules/.package-lock.json
	cd web && npm run --silent build

looks: $(VENV)/.installed-dev
	$(PY) -m pytest -q -n 0 --slow --redraw-looks tests/workbench/test_looks.py

bench: $(VENV)/.installed-dev
	@for program in $(sort $(wildcard benchmarks/*.py)); do \
	  echo "== $$program" >&2; $(PY) $$program || exit 1; done

# Unattended and without network. PyTorch is the machine's own; what else is missing comes from the collected wheels.
GPU_PYTHON := $(if $(filter command line,$(origin PYTHON)),$(PYTHON),$(firstword $(wildcard $(PY)) $(PYTHON)))
GPU_PYTHON_VERSION ?= 3.12
GPU_ARGS ?=

gpu:
	@$(GPU_PYTHON) benchmarks/gpu/wheels.py install; found=$$?; \
	  if [ $$found = 2 ]; then exit 0; elif [ $$found != 0 ]; then exit 1; fi; \
	  PYTHONPATH=$(CURDIR)/src:$(CURDIR):$(CURDIR)/benchmarks:$(CURDIR)/build/gpu/site $(GPU_PYTHON) -m benchmarks.gpu $(GPU_ARGS)

gpu-wheels:
	$(PYTHON) benchmarks/gpu/wheels.py collect --python-version $(GPU_PYTHON_VERSION)

wheel: $(VENV)/.installed-dev
	$(PY) -m hatchling build -t wheel

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
