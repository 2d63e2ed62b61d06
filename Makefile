# make demo | make test | make bench | make gpu: each sets up .venv by itself, then runs. PYTHON=python3.12 chooses another Python.
PYTHON ?= python3
BIN := .venv/bin
# kernels compiled by tests and benchmarks are compiled anew: a cache does not see changes in another file
FRESH = rm -rf .venv/compiled && NUMBA_CACHE_DIR=$(CURDIR)/.venv/compiled

.PHONY: demo test lint bench gpu clean
.DELETE_ON_ERROR:

demo: .venv/ready-plots
	$(BIN)/numbanet demo

test: .venv/ready-test
	$(FRESH) NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest tests/test_cuda_net.py
	$(FRESH) $(BIN)/python -m pytest

lint: .venv/ready-test
	$(BIN)/ruff check .

bench: .venv/ready-bench
	$(FRESH) $(BIN)/python -m bench mlp --against torch

# on a machine with a card the Python that is there may have all it needs, and no way to install more
gpu:
	@if $(PYTHON) -c 'import numba.cuda, pytest, rich, sklearn' 2>/dev/null; then python=$(PYTHON); \
	else $(MAKE) .venv/ready-test && python=$(BIN)/python; fi && $(FRESH) $$python -m bench gpu

# Debian ships Python without ensurepip: there, `virtualenv` from pip or Debian makes the same environment.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "numbanet needs Python 3.10 or newer; \
	this is $$($(PYTHON) --version). Choose one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv .venv 2>/dev/null || $(PYTHON) -m virtualenv -q .venv 2>/dev/null \
	|| { rm -rf .venv; test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install -qq -y python3-venv >/dev/null \
	     && $(PYTHON) -m venv .venv; } \
	|| { rm -rf .venv; echo "This Python cannot make virtual environments. On Debian: apt install python3-venv"; exit 1; }

.venv/ready-%: setup.py pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info
