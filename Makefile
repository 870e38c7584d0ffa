# Set-up, checks and builds. Needs python3 (>= 3.11) and make; `make help` lists the targets.
#
#   make PYTHON=python3.12    another interpreter
#   make UV=                  venv and pip although uv is on PATH
#   make test ARGS='-k hull'  more arguments for pytest; '-n 0' for one process

PYTHON ?= python3
UV ?= $(shell command -v uv 2>/dev/null)
PINS := pyproject.toml constraints.txt
BIN := .venv/bin

.PHONY: help region test lint types layers bench wheel wheel-check test-floors constraints clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do printf '%-12s %s\n' "$$name" "$$what"; done

# --- the two commands of the README ---------------------------------------------------------------------------------

region: .venv/.runtime  ## set up and draw the stability region of the default model into region.svg
	$(BIN)/qt-llm region -o region.svg

test: .venv/.dev  ## set up and run the tests, on every core
	$(BIN)/python -m pytest -n auto $(ARGS)

# --- checks and builds ----------------------------------------------------------------------------------------------

lint: .venv/.dev  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev  ## mypy --strict
	$(BIN)/mypy

layers: .venv/.dev  ## import-linter: imports go down only
	$(BIN)/lint-imports

# The simulators of others that ours runs beside are no part of the development environment. Without network their
# benchmarks are skipped; without isolation the package itself is installed again without network.
bench: .venv/.dev  ## the benchmarks, which the suite skips, beside simulators of others where these can be installed
	@$(BIN)/python -c 'import ciw, pyserq, simpy' 2>/dev/null || { echo 'installing ciw, pyserq, simpy into .venv' >&2 && \
	PIP_RETRIES=0 $(call install,.venv,constraints.txt) --no-build-isolation -e '.[bench]'; } || \
	echo 'ciw, pyserq, simpy cannot be installed: benchmarks beside them are skipped' >&2
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only $(ARGS)

# Without isolation the build backend is the pinned one of the environment: no network, the same wheel.
wheel: .venv/.dev  ## build the wheel into dist/
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation

wheel-check: wheel  ## install the wheel into an empty environment outside the checkout and run it there
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(call create,"$$dir/venv") && $(call install,"$$dir/venv",constraints.txt) dist/*.whl && \
	mkdir "$$dir/empty" && cd "$$dir/empty" && set -x && \
	../venv/bin/qt-llm region && ../venv/bin/qt-llm region -o x.svg && test -s x.svg

# --- dependencies ---------------------------------------------------------------------------------------------------

test-floors:  ## run the tests on the oldest allowed release of every dependency
	@$(call create,.venv-floors)
	@.venv-floors/bin/python .ci/floors.py > .venv-floors/floors.txt
	@$(call install,.venv-floors,.venv-floors/floors.txt) -e '.[dev]'
	.venv-floors/bin/python -m pytest -n auto $(ARGS)

constraints:  ## resolve every package anew and rewrite constraints.txt
	@rm -rf .venv-new
	@$(call create,.venv-new)
	@$(call install,.venv-new,/dev/null) -e '.[dev]'
	@{ sed -n '/^#/p' constraints.txt; $(if $(UV),$(UV) pip freeze --python .venv-new/bin/python,.venv-new/bin/python -m pip freeze) \
	--exclude-editable; } > .venv-new/constraints.txt
	@cp .venv-new/constraints.txt constraints.txt && rm -rf .venv-new

clean:  ## remove everything that make made
	rm -rf .venv .venv-floors .venv-new dist build region.svg .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find queuetheory_llm tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- environments ---------------------------------------------------------------------------------------------------

# A stamp holds the text that its environment was installed from. A file that is newer but says the same (another branch
# and back) installs nothing: an environment once made goes on working without network.
unchanged = test "$$(cat $(PINS))" = "$$(cat $@ 2>/dev/null)"

.venv/.runtime: $(PINS)
	@$(unchanged) || { $(call create,.venv) && echo 'installing the runtime packages into .venv' >&2 && $(call install,.venv,constraints.txt) -e .; }
	@cat $(PINS) > $@

.venv/.dev: .venv/.runtime
	@$(unchanged) || { echo 'installing the development packages into .venv' >&2 && $(call install,.venv,constraints.txt) -e '.[dev]'; }
	@cat $(PINS) > $@

# $(call create,FOLDER): an environment there, unless a usable one is (without uv, usable means with pip).
create = { $(if $(UV),$(1)/bin/python -c '',$(1)/bin/python -m pip --version) >/dev/null 2>&1 || { $(can_create) && \
	$(if $(UV),$(UV) venv --quiet --clear --python $(PYTHON),$(PYTHON) -m venv --clear) $(1); }; }

can_create = { $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo 'error: $(PYTHON) is missing or older than 3.11: install Python 3.11 or newer, or name one: make PYTHON=python3.12' >&2; \
	exit 1; }; } $(if $(UV),,&& { $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	echo 'error: $(PYTHON) has no venv or no ensurepip: install the package python3-venv, or uv' >&2; exit 1; }; })

# $(call install,FOLDER,CONSTRAINTS) PACKAGES... The constraints hold for the build backend too: pip before 25.3 reads
# the first variable there, later ones the second.
install = $(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python --constraint $(2) --build-constraint $(2),\
	PIP_CONSTRAINT=$(2) PIP_BUILD_CONSTRAINT=$(2) PIP_DISABLE_PIP_VERSION_CHECK=1 $(1)/bin/python -m pip install --quiet)
