# Two commands do all their own set-up: make run, make test.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint types clean

run: .venv/installed
	$(BIN)/fedsz run --config configs/quickstart.toml

test: .venv/installed
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

# Editable, so that a checkout runs its own code; --group needs pip 25.1.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "fedsz needs Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[all]" --group dev
	touch $@

clean:
	rm -rf .venv build dist
