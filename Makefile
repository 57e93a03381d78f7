# make run   two rounds of the embedded default, from an empty machine
# make test  checks and tests (at most 15 minutes on 2 cores, set-up included)
# make prove the full figures that the documents quote, part by part, resumable
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKSPACE ?= workspace
ROUNDS ?= 2
export POSTLOOP_CACHE ?= $(CURDIR)/.cache
export HF_HUB_OFFLINE := 1
export DO_NOT_TRACK := 1
# Images of containers often forbid bytecode, and every process would compile its libraries again: 15 CPU-seconds a round.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check prove sandbox clean

run: sandbox $(VENV)/.installed .cache/datasets.matches
	@test -f $(WORKSPACE)/goal.yaml || $(BIN)/postloop init $(WORKSPACE)
	@$(BIN)/postloop run -w $(WORKSPACE) --rounds $(ROUNDS)

# The checks take one core for a minute; the tests begin on the other.
test: sandbox $(VENV)/.installed .cache/datasets.matches
	@$(MAKE) --no-print-directory check & checks=$$!; failed=0; \
	  $(BIN)/python -m pytest || failed=$$?; \
	  wait $$checks || { echo "make test: ruff, mypy or lint-imports failed, see above; make check runs them alone" >&2; failed=2; }; \
	  exit $$failed

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

prove: sandbox $(VENV)/.installed .cache/datasets.matches
	$(BIN)/python -m bench.prove

# The environment: exact versions from requirements.lock, so that two machines run the same libraries. The lock is complete for
# a CPU build of torch (pip check), so pip resolves nothing, and two of it share the work. Bytecode is made when a module is first imported: pip
# would take as long for that as for all the rest, and most modules never are.
$(VENV)/.installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "postloop: $(PYTHON) is older than 3.11; name another one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || tools/install-system python3-venv
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@xargs -P 2 -n 42 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
	  < requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pip check --disable-pip-version-check >/dev/null 2>&1 || { \
	  echo "this machine's torch is a build with more requirements than the lock has (a CUDA build: several GB); installing them"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock; }
	@$(BIN)/python -m pip check --disable-pip-version-check
	@mkdir -p $(@D) && touch $@

sandbox:
	@command -v bwrap >/dev/null || tools/install-system bubblewrap

# The seed data is rebuilt from its sources and must match the pin in datasets.dvc.
.cache/datasets.matches: $(VENV)/.installed datasets.dvc $(wildcard environments/sources/*.py environments/sources/library/*.py)
	@$(BIN)/python -m environments.sources.default datasets
	@$(BIN)/python -m stages.dvc datasets.dvc || \
	  { echo "datasets: what the sources make differs from its pin in datasets.dvc; if the change is meant: $(BIN)/dvc add datasets" >&2; exit 2; }
	@mkdir -p $(@D) && touch $@

clean:
	rm -rf $(VENV) .cache datasets build *.egg-info
