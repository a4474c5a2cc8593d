# Needs Python 3.11 or newer, a C++ compiler and the Python package index; everything else goes into .venv.
#
#   make demo          embed Python's own reference with a real model, in eager and with onepass, and compare
#   make test          every test that needs no GPU
#   make test-gpu      the tests that need a CUDA GPU
#   make test-browser  those that need a Chromium; make test skips them, and says so, where there is none
#   make bench         measure on this machine; rows are added to benchmarks/results/
#   make check         ruff and mypy
#   make clean         remove what the commands above made
#
# Where nothing can be installed, name an interpreter that already has the packages: make test INTERPRETER=python3

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv

# The tests run side by side, so each gets its share of the cores; more OpenMP threads than cores make them crawl.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo $(WORKERS))
THREADS := $(shell n=$$(( $(CORES) / $(WORKERS) )); [ $$n -ge 1 ] && echo $$n || echo 1)

ifdef INTERPRETER
  RUN := PYTHONPATH=src $(INTERPRETER)
  TO_RUN :=
  TO_TEST :=
else
  RUN := $(VENV)/bin/python
  TO_RUN := $(VENV)/ready-demo
  TO_TEST := $(VENV)/ready-test
endif

# One pip call per environment: a second one could pull a torch other than the pinned one.
INSTALL = $(VENV)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e

.PHONY: demo test test-gpu test-browser bench check clean

demo: $(TO_RUN)
	$(RUN) -m onepass demo

test: $(TO_TEST)
	OMP_NUM_THREADS=$(THREADS) $(RUN) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-gpu: $(TO_TEST)
	$(RUN) -m pytest tests/gpu $(ARGS)

test-browser: $(TO_TEST)
	BROWSER_REQUIRED=1 $(RUN) -m pytest tests/browser $(ARGS)

bench: $(TO_TEST)
	$(RUN) benchmarks/run.py $(ARGS)

check: $(TO_TEST)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "onepass needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready-demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing onepass and the demo's packages into $(VENV) (once; some minutes)"
	$(INSTALL) '.[demo]'
	@touch $@

# Contains the demo's packages, so the demo need not be installed again after it.
$(VENV)/ready-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing onepass and the test packages into $(VENV) (once; some minutes)"
	$(INSTALL) '.[demo,test,dev]'
	@touch $@ $(VENV)/ready-demo
