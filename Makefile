# Everything from a bare checkout with Python >= 3.11 and a C++17 compiler: `make demo`, `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERNEL := $(wildcard src/spikeslab/_kernel/*.cpp src/spikeslab/_kernel/*.hpp)

.PHONY: demo test test-slow lint format bench clean

demo: $(VENV)/installed
	$(BIN)/spikeslab demo --force -o build/demo

test: $(VENV)/installed
	$(BIN)/pytest -m "not slow"

test-slow: $(VENV)/installed
	$(BIN)/pytest -m slow

lint: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/installed
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .mypy_cache .hypothesis

# Again when the compiled part or the dependencies change; Python files are picked up as they are.
$(VENV)/installed: pyproject.toml CMakeLists.txt $(KERNEL)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "spikeslab needs Python 3.11 or newer; $(PYTHON) is older. Use: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) cannot make virtual environments (Debian: apt-get install python3-venv)." >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[test,lint,app,picard]'
	@touch $@
