# Troupe: `make serve` to talk to an NPC, `make test` before every change.
#
#   ARGS="..."        passed on: make serve ARGS="--port 9000", make test ARGS="-k readyz"
#   PYTHON=python3.12 which Python builds .venv (3.11 or newer)
#   LLAMA_SERVER=FILE VLLM_PYTHON=FILE  rivals for make bench-cpu (see benchmarks/rivals/README.md)
#   TORCH_INDEX=URL   a package index that holds CPU builds of PyTorch (see README, "Installing")

PYTHON ?= python3
ARGS ?=
TORCH_INDEX ?=
LLAMA_SERVER ?=
VLLM_PYTHON ?=
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# The tests look for the model here too, so that it is fetched once per checkout.
DATA := .cache/troupe
TORCH := $(shell grep '^torch==' requirements.lock)

.PHONY: help install serve test lint format clean soak load bench-cpu bench-gpu screenshots
.DEFAULT_GOAL := help

help:
	@echo "make serve     set up, then start Troupe and print the playground's address (ARGS=\"--help\")"
	@echo "make install   the set-up alone: a virtual environment in $(VENV)"
	@echo "make test      format, lint, types, import directions, tests"
	@echo "make soak      100,000 requests in a row, and 100,000 registered NPCs: nothing may grow"
	@echo "make load      10,000 idle sessions, 2,000 listeners, storms, a million hostile frames: into benchmarks/results/load.md;"
	@echo "               about 20 minutes, or ARGS=\"--parts idle,fuzz\", or ARGS=--small"
	@echo "make bench-cpu speed and accuracy on this CPU, into benchmarks/results/cpu.md; about 20 minutes"
	@echo "make bench-gpu speed on an NVIDIA GPU, into benchmarks/results/h200.md; half an hour, or ARGS=\"--parts decode\""
	@echo "make screenshots  pictures of the console, into docs/img"
	@echo "make format    let ruff lay out the code"
	@echo "make clean     remove $(VENV)"

install: $(VENV)/.installed

serve: install
	@$(VENV)/bin/troupe serve --models $(DATA) $(ARGS)

test: lint
	$(VENV)/bin/pytest -rs $(ARGS)

lint: $(VENV)/.installed-test
	@sh .ci/system-packages
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

soak: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks.soak $(ARGS)
	$(VENV)/bin/python -m benchmarks.soak --policy fair $(ARGS)
	$(VENV)/bin/python -m benchmarks.crowd

load: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks.load --models $(DATA) $(ARGS)

bench-cpu: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks.cpu --data $(DATA) $(if $(LLAMA_SERVER),--llama-server $(LLAMA_SERVER)) \
	  $(if $(VLLM_PYTHON),--vllm-python $(VLLM_PYTHON)) $(ARGS)
	$(VENV)/bin/python -m benchmarks.accuracy --data $(DATA)

bench-gpu: $(VENV)/.installed-test
	$(VENV)/bin/python -m pip install --quiet triton
	$(VENV)/bin/python -m benchmarks.gpu --commit $$(git describe --always) \
	  --parts bursts,decode,stream,quests,full,host,lag --out benchmarks/results/h200.jsonl $(ARGS)
	$(VENV)/bin/python -m benchmarks.gpu_report benchmarks/results/h200.jsonl

screenshots: $(VENV)/.installed-test
	$(VENV)/bin/python -m benchmarks.screenshots --data $(DATA)

format: $(VENV)/.installed-test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Troupe needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Torch first and by itself: TORCH_INDEX must decide for torch alone, and for nothing else.
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml requirements.lock
	@echo "Setting up $(VENV); the first time takes a few minutes."
ifeq ($(TORCH_INDEX),)
	@echo "PyTorch: on Linux the wheel of the public index may be a CUDA build of several gigabytes."
	@echo "         For a CPU build: make install TORCH_INDEX=<address of an index of CPU wheels>"
else
	$(PIP) install --quiet --no-deps --index-url $(TORCH_INDEX) $(TORCH)
endif
	$(PIP) install --quiet --constraint requirements.lock --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install --quiet --constraint requirements.lock --editable '.[test]'
	@touch $@
