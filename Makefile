# Two commands on a fresh machine: `make run` (the main job), `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# a file's tests stay together: they share the jobs that they look at
SIDE_BY_SIDE := -n 2 --dist loadfile

.PHONY: setup run test test-all lint bench matrix faults planted clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

run: setup
	$(BIN)/paceline

test: setup
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow and not faults and not slurm and not browser and not gpu"

test-all: setup
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not gpu and not alone"
	$(BIN)/python -m pytest -m "alone and not gpu"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/loop_overhead.py
	$(BIN)/python benchmarks/job_overhead.py

matrix: setup
	$(BIN)/python benchmarks/matrix.py

faults: setup
	$(BIN)/python -m benchmarks.crashes

planted: setup
	$(BIN)/python -m tests.planted
	$(BIN)/python -m tests.planted.advised

clean:
	rm -rf .venv
