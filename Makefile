# One command per thing a newcomer or a contributor does. Needs Python 3.11 or later and make, nothing else.
#
#   make quickstart   install into .venv and run the first plan-simulate-train-compare loop
#   make test         install with the development tools and run the tests   (PYTEST_ARGS="--slow -k verify")
#   make lint         ruff, import direction, strict types of the core rooms
#   make docs         the documentation into site/, strictly
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
.PHONY: help quickstart test lint format docs bench wheel clean distclean

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
QUICKSTART_ARGS ?=
STRICT_ROOMS := specs ir schedules stage lowering costs simulator

help:
	@sed -n '3,/^$$/s/^# \{0,3\}//p' Makefile

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "meshwright needs Python 3.11 or later with venv; none was found on PATH." \
	  "Install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made $(INSTALL_INPUTS)
	@echo "Installing meshwright and PyTorch into $(VENV) (once; a few minutes)" >&2
	$(PIP) install -c constraints.txt -e '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made $(INSTALL_INPUTS)
	@echo "Installing meshwright, PyTorch and the development tools into $(VENV) (once; a few minutes)" >&2
	$(PIP) install -c constraints.txt -e '.[torch,dev]'
	@touch $(VENV)/.installed $@

quickstart: $(VENV)/.installed
	$(VENV)/bin/meshwright quickstart $(QUICKSTART_ARGS)

# In one process: the tests that train share one pool of gloo workers, which already use every core.
test: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=$(HYPOTHESIS_PROFILE) $(PY) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy $(wildcard $(addprefix src/meshwright/,$(STRICT_ROOMS)))

format: $(VENV)/.installed-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

bench: $(VENV)/.installed-dev
	@for program in $(sort $(wildcard benchmarks/*.py)); do \
	  echo "== $$program" >&2; $(PY) $$program || exit 1; done

wheel: $(VENV)/.installed-dev
	$(PY) -m hatchling build -t wheel

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
