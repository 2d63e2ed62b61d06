# make demo | make check | make test | make docs | make bench | make gpu: each sets up .venv by itself, then runs.
# PYTHON=python3.12 chooses another Python. make check is for daily work, make test for all that must hold; make test-all runs
# the long tests as well
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
# what tests and benchmarks of this checkout compile is kept here, by a digest of the sources (numbanet_kernels/runtime/files.py)
export NUMBA_CACHE_DIR ?= $(CURDIR)/.venv/caches
# the hundreds of processes that tests start read Python's compiled files, also where the environment forbids to write them
check test test-all: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo check test test-all mutants lint types docs release-check bench gpu clean
.DELETE_ON_ERROR:

demo: .venv/ready-plots
	$(BIN)/numbanet demo

# for daily work, in a minute or so: the lint, and one case of each test that takes less than a second
check: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --one-of-each -m "not alone and not long and not slow"

# two workers of one thread each; tests that measure time or send signals run after the others, with nothing beside them, and
# of their files alone, because to import all takes longer than many of them (tests/conftest.py refuses the mark in another form).
# make test runs a quarter of the cases of tests that have many, an eighth of slow ones, others after each commit; make test-all
# runs all, and long tests
test: LONG = and not long
test: ROTATE = --rotate 4
test test-all: .venv/ready-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ROTATE) -m "not alone $(LONG)"
	$(BIN)/python -m pytest $(ROTATE) -m "alone $(LONG)" $$(grep -rl --include='test_*.py' 'mark\.alone' tests | sort)

# do tests notice wrong lines? WORDS="conv lstm" chooses files
mutants: .venv/ready-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants $(WORDS)

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy numbanet

# what type checkers know of the operations of a device; a test says when it is out of date
types: .venv/ready-test
	$(BIN)/python -m numbanet_kernels.tables > numbanet/operations.pyi

# the documentation as a site, docs/_build/html; walkthroughs run again if they have changed: some minutes the first time, or
# none at all with DRAFT="-D plot_gallery=0"
docs: .venv/ready-docs
	$(BIN)/python -m sphinx -b html -W --keep-going -q $(DRAFT) docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# what a release is made of: wheel and sdist, installed in an empty environment and tried there; the README as a page shows it
release-check: .venv/ready-test
	rm -rf build dist .venv/release
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m venv --without-pip .venv/release
	$(BIN)/python -m pip --python .venv/release/bin/python install --quiet --disable-pip-version-check dist/*.whl
	cd dist && ../.venv/release/bin/python -c 'import numbanet; print(numbanet.__version__, numbanet.__file__)'
	cd dist && ../.venv/release/bin/numbanet devices
	cd dist && ../.venv/release/bin/numbanet demo
	@echo "Ready: git tag v$$(sed -n 's/^__version__ = "\(.*\)"$$/\1/p' numbanet/__init__.py)"

bench: .venv/ready-bench
	$(BIN)/python -m bench mlp --against torch

# on a machine with a card the Python that is there may have all it needs, and no way to install more
gpu:
	@if $(PYTHON) -c 'import numba.cuda, pytest, rich, sklearn' 2>/dev/null; then python=$(PYTHON); \
	else $(MAKE) .venv/ready-test && python=$(BIN)/python; fi && $$python -m bench gpu

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
	rm -rf .venv build dist *.egg-info docs/_build docs/reference docs/walkthroughs
