# Two commands matter: `make demo` and `make test`. Both start from a bare Python 3.10+ and build everything they need.
# The model mirror (src/forerun/models/mirror.json) is on here, because these targets must work where no hub is reachable.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.forerun-installed
NATIVE := $(VENV)/.forerun-native
SOURCES := CMakeLists.txt $(shell find csrc)  # directories too: a file that went away changes the build
# A warning of the C++ compiler is an error in CI, never for somebody with a newer compiler.
FLAGS := $(if $(CI),-C cmake.define.FORERUN_WERROR=ON)
export FORERUN_MIRROR ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

TARGET ?= qwen2.5-coder-1.5b
DRAFT ?= qwen2.5-coder-0.5b
K ?= auto

# Test files go to JOBS processes in their order; JOBS=0 runs them in one, where a debugger can look in.
JOBS ?= 2
IN_PARALLEL := --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: demo test fast ladder fuzz lint types check docs bench clean

demo: $(NATIVE)
	$(BIN)/forerun pull $(TARGET)
	$(BIN)/forerun pull $(DRAFT)
	$(BIN)/forerun generate --target $(TARGET) --draft $(DRAFT) --draft-vocabulary 32768 --draft-requantise --k $(K) \
	  --temperature 0 --max-tokens 128 --ignore-eos --show-drafts --compare "$$(cat docs/demo-prompt.txt)"

# Cases that take long where shorter ones show the same are listed as not run; FORERUN_THOROUGH=1 runs them, as CI does.
test: $(NATIVE)
	$(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

fast: $(NATIVE)
	$(BIN)/python -m pytest -m "not slow and not gpu" $(IN_PARALLEL) $(ARGS)

# Five levels of proof, hours on real weights; ARGS="--levels 1,2,5" for minutes, ARGS=--help for the rest.
ladder: $(NATIVE)
	$(BIN)/python -m tests.ladder --log docs/log.md $(ARGS)

# What files say, fuzzed under sanitizers (fuzz/run.sh): FUZZ_SECONDS each of gguf, tokenizer and safetensors.
fuzz: $(NATIVE)
	FUZZ_SECONDS=$(or $(FUZZ_SECONDS),300) PYTHON=$(BIN)/python bash fuzz/run.sh $(ARGS)

lint: $(NATIVE)
	$(BIN)/ruff check src tests docs fuzz
	$(BIN)/ruff format --check src tests docs fuzz

types: $(NATIVE)
	$(BIN)/mypy

docs: $(NATIVE)
	$(BIN)/python docs/generate.py

check: lint types test

bench: $(NATIVE)
	$(BIN)/forerun bench humaneval edit --target $(TARGET) --draft $(DRAFT) --peers transformers,assisted

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else f"forerun needs Python 3.10 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt cmake nanobind ninja scikit-build-core
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation $(FLAGS) -e ".[dev]"
	touch $(STAMP) $(NATIVE)

# Compiles only what changed: the build tools are the environment's own, so the build directory (build/) stays valid.
# Where the environment was made just now, it was compiled there; make looked at the file's time before that.
$(NATIVE): $(STAMP) $(SOURCES)
	if [ -n "$$(find $? -newer $(NATIVE) 2>&1)" ]; then \
	  $(BIN)/python -m pip install -q --no-build-isolation $(FLAGS) --no-deps -e .; fi
	touch $(NATIVE)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
