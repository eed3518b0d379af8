# Two commands do all their own set-up: make run, make test.

PYTHON ?= python3
BIN := .venv/bin
NATIVE := CMakeLists.txt $(shell find compressors -name '*.[ch]pp')

.PHONY: run test test-all test-release lint types docs fuzz clean

run: .venv/installed
	@echo "training a small federation: configs/quickstart.toml"
	$(BIN)/fedsz run --config configs/quickstart.toml

# Cases of the tests marked `sampled` and examples of hypothesis are drawn by a seed, a new one each
# time; make test SEED=... repeats one.
SEED ?= $(shell date +%s)
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# Tests build what they miss of it, one after the other.
NATIVE_BUILDS := library encoder encoder-float32

test: .venv/dev
	$(BIN)/python -m compressors.variants $(NATIVE_BUILDS)
	$(PYTEST) --sample $(SEED) --hypothesis-seed $(SEED)

# Every case of every matrix, as a release has it: several times as long.
test-all: .venv/dev
	$(PYTEST) --release

# Emulators, browsers, other compilers, Flower's own engines, NVFlare, and what skips where these or
# the dependency groups `examples` and `systems` are missing; .ci/run installs them.
RELEASE := $(addprefix tests/,compressors nvflare report/test_report.py project/test_snippets.py)

test-release: .venv/dev
	$(BIN)/python -m compressors.variants
	$(PYTEST) --sample $(SEED) --hypothesis-seed $(SEED) --release -m release
	$(PYTEST) --sample $(SEED) --hypothesis-seed $(SEED) $(RELEASE)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python docs/lint_prose.py

types: .venv/dev
	$(BIN)/mypy

# The site, in build/site. A warning, such as a link that leads nowhere, is an error.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

.venv/docs: .venv/dev
	$(BIN)/python -m pip install --quiet -c constraints.txt --group docs
	touch $@

# Needs Clang and CMake. Every codec with a compressors/<codec>/fuzz.cpp has its run.
FUZZERS := $(patsubst compressors/%/fuzz.cpp,%,$(wildcard compressors/*/fuzz.cpp))
FUZZ_SECONDS ?= 600
CLANGXX ?= clang++

fuzz: .venv/dev
	cmake -S . -B build/fuzz -DFEDSZ_FUZZ=ON -DCMAKE_CXX_COMPILER=$(CLANGXX)
	cmake --build build/fuzz
	$(BIN)/python compressors/seeds.py build/fuzz $(FUZZERS)
	for codec in $(FUZZERS); do \
	    build/fuzz/fuzz_$$codec -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 \
	        -entropic_scale_per_exec_time=1 \
	        -artifact_prefix=build/fuzz/$$codec- build/fuzz/corpus_$$codec || exit 1; \
	done
	for target in header stream frame message; do \
	    $(BIN)/python -m tests.fuzz $$target --seconds $(FUZZ_SECONDS) --keep build/fuzz || exit 1; \
	done
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -q tests/transport/test_session.py

# What fedsz run needs. Editable, so that a checkout runs its own code; --group, below, needs pip 25.1.
.venv/installed: pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "fedsz needs Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@echo "once: making .venv, and updating pip in it"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@echo "once: installing PyTorch, Flower and scikit-learn, and compiling fedsz; this takes minutes"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[train]"
	touch $@

# What tests and checks need beside it: the extras of the fedsz that is installed, and no new build.
.venv/dev: .venv/installed
	@echo "once: installing all extras of fedsz, pytest, hypothesis, ruff and mypy; this takes minutes"
	$(BIN)/python -m pip install --quiet -c constraints.txt "fedsz[all]" --group dev
	touch $@

clean:
	rm -rf .venv build dist
