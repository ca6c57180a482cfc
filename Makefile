# PYTHON makes the virtual environment; everything else runs inside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test fuzz extend verify-all check format images models bench bench-full clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv and install raddle with its test and development tools

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test,dev]'
	@touch $@

demo: $(READY)  ## VGG-16 planned for 16 GPUs, AlexNet trained on two processes here, pages of both, a piece of the thesis
	@mkdir -p build/demo
	@# The first time, searches and partitioners are compiled: at the same time, on a core each.
	@{ $(BIN)/raddle partition vgg16 --batch 32 -k 2,4 --method layerwise,coarse --budget 1 > build/demo/partition.txt && \
	$(BIN)/raddle plan vgg16-tiny --cluster local:2 --batch 8 --method hypergraph-coarse --schedule threaded:4:greedy \
		--budget 1 -o build/demo/thesis.json > build/demo/thesis.txt; } & \
	partition=$$!; trap 'kill $$partition 2>/dev/null || true' EXIT; \
	echo "raddle report vgg16 --cluster p100:4x4 --batch 512 -o build/demo/vgg16.html"; \
	$(BIN)/raddle report vgg16 --cluster p100:4x4 --batch 512 --budget 1 --alternatives 1 \
		--methods data,owt,layerwise,spatial,optcnn,flexflow,auto -o build/demo/vgg16.html && \
	wait $$partition && echo && echo "raddle partition vgg16 --batch 32 -k 2,4" && cat build/demo/partition.txt
	$(BIN)/python examples/fastest.py alexnet 16 build/demo 1
	@echo "raddle plan vgg16-tiny --cluster local:2 --batch 8 --method hypergraph-coarse --schedule threaded:4:greedy -o build/demo/thesis.json"
	@cat build/demo/thesis.txt
	$(BIN)/raddle verify build/demo/thesis.json --steps 6 --threads

test: $(READY)  ## run the tests that are not marked slow
	$(BIN)/python -m pytest -n 2 --dist loadgroup

fuzz: $(READY)  ## 100,000 damaged files of every kind; the property tests, slow ones too, on many random examples
	$(BIN)/python tests/files/fuzz_files.py --files 100000
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n 2 -m hypothesis

extend: $(READY)  ## a toy of each kind of thing, added to a copy of the sources (tests/extending)
	$(BIN)/python -m pytest -m 'slow or not slow' tests/extending

verify-all: $(READY)  ## every tiny model x every baseline x 2, 3, 4 ranks with real processes
	$(BIN)/python tests/runtime/verify_all.py

check: $(READY)  ## format, lint and types, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)  ## format the code and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

images: $(READY)  ## the README's pictures of the page, with the chromium of this machine
	RADDLE_IMAGES=docs/images $(BIN)/python -m pytest -q tests/reports/page/test_images.py

models: $(READY)  ## capture one model of every architecture of the model libraries that are installed (bench/models)
	$(BIN)/python bench/models/run.py

bench: $(READY)  ## run every benchmark, bench/*/run.py, of bench/search what takes minutes
	@set -e; for script in $(sort $(wildcard bench/*/run.py)); do \
		echo "== $$script"; $(BIN)/python "$$script"; \
	done

bench-full: bench  ## the same, and all of bench/search, which takes an hour
	$(BIN)/python bench/search/run.py all

clean:  ## remove caches and build outputs; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
