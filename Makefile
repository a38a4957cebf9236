# Two commands do everything: `make demo` and `make test`. Both set up .venv on the way.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
# The torch that is installed. `make TORCH='torch --index-url ...' setup` takes another build.
TORCH ?= torch==2.13.0
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: setup model demo test lint bench clean
.DEFAULT_GOAL := help
help:
	@echo "make demo   set up, pull the embedded model, run examples/review.py on it"
	@echo "make test   set up, lint, run the whole test suite"
	@echo "make setup | lint | bench | clean"

setup: $(STAMP)

# torch first and alone, so that pip does not choose a build of several GB for a dependency's sake. Without a C++ compiler
# on the machine, the one from PyPI is installed too: the fast kernels are compiled on first use.
$(STAMP): pyproject.toml Makefile
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -qq --upgrade pip
	$(RUN) -m pip install -qq $(TORCH)
	$(RUN) -m pip install -qq --editable '.[test]'
	if ! command -v c++ >/dev/null && ! command -v g++ >/dev/null && ! command -v clang++ >/dev/null; then \
		$(RUN) -m pip install -qq --editable '.[compiler]'; fi
	touch $(STAMP)

# Fetches the embedded model, and compiles the kernels for this CPU by using them once, so that no figure holds that time.
model: setup
	$(RUN) -m ramet.runtime.cli model pull smollm2-135m
	$(RUN) -m ramet.runtime.cli generate hi --regex '[a-z]+' --max-tokens 2 >/dev/null

demo: model
	$(RUN) examples/review.py

test: lint model
	$(RUN) -m pytest -m "not alone" -n auto --maxprocesses 4 --dist loadfile
	$(RUN) -m pytest -m alone

# mypy cannot follow an editable install whose folders have other names than its packages: it gets a tree of links.
lint: setup
	$(RUN) -m ruff check .
	mkdir -p build/types/ramet
	for room in frontend runtime radix_cache constrained kernels; do ln -sfn ../../../$$room build/types/ramet/$$room; done
	ln -sfn ../../../frontend/ramet/__init__.py build/types/ramet/__init__.py
	cd build/types && ../../$(RUN) -m mypy --config-file ../../pyproject.toml -p ramet

bench: setup
	$(RUN) benchmarks/decode.py
	$(RUN) benchmarks/programs.py

clean:
	rm -rf $(VENV) build dist *.egg-info
