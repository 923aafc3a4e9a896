# Everything there is to do here; `make` alone lists it.

VENV  ?= .venv
BIN   := $(VENV)/bin

# The Python that .venv is made with, and that `make test-python` runs the quick tests on: a name or a path.
PYTHON ?=
STAMP := $(VENV)/.made

# The suites that `make test` runs, all of them if empty; the processes that `make check` runs tests in.
SUITES ?=
JOBS   ?= auto

# The distributions beside the server's, each with a pyproject.toml of its own.
OTHERS := $(patsubst %/pyproject.toml,%,$(wildcard client/pyproject.toml nova/pyproject.toml))

# Distributions that are tested and not installed: what others write.
EXAMPLES := $(patsubst %/pyproject.toml,%,$(wildcard examples/*/pyproject.toml))

# Each distribution has its own run of mypy.
TYPES := $(addprefix types-of-,. $(OTHERS) $(EXAMPLES))

INSTALLED := -e '.[postgresql,mariadb,openstack,test,bench]' $(foreach other,$(OTHERS),-e './$(other)[test]')
QUICK     := not (postgresql or mariadb or slow or long or races or crash or cloud)

# The environment of `make test-python`, and the tests that it runs, all if empty.
OTHER := $(HOME)/.cache/tenure/environment-of-$(notdir $(PYTHON))
TESTS ?=

# Each process would compile all sources anew, which takes longer than what most of them do.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo run lint style types check test test-long test-python mutants
.PHONY: cloud cloud-test cloud-down bench samples designs constraints clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r target what; do \
		printf '  make %-12s %s\n' "$$target" "$$what"; done

setup: $(STAMP) ## Make .venv with everything that development needs

$(STAMP): pyproject.toml $(OTHERS:%=%/pyproject.toml) constraints.txt
	@set -e; \
	if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
		python=; \
		for candidate in $(or $(PYTHON),python3.11 python3); do \
			if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
			then python=$$candidate; break; fi; \
		done; \
		if [ -z "$$python" ]; then \
			echo "Tenure needs Python 3.11 or newer: $(if $(PYTHON),,there is no python3.11 here, and )$$candidate is" \
			     "$$($$candidate -c 'import platform; print(platform.python_version())' 2>/dev/null || echo missing)." >&2; \
			exit 1; \
		fi; \
		if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
			echo "$$python cannot make virtual environments. On Debian and Ubuntu that is a package of its" \
			     "own: apt-get install $$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; \
			exit 1; \
		fi; \
		rm -rf $(VENV); \
		$$python -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python -c constraints.txt $(INSTALLED)
	@touch $@

demo: $(STAMP) ## Show what Tenure does, in a minute or two, in this terminal
	$(BIN)/python tools/demo.py

run: $(STAMP) ## Serve the API on a simulated cloud; what it knows is kept in .run
	$(BIN)/tenure-standalone --data-dir .run

# How the parts of `make lint` keep two processors busy, unless the caller has said how many jobs run.
BESIDE_EACH_OTHER = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j2 --output-sync=target)

lint: $(STAMP) ## Style and types
	@$(MAKE) --no-print-directory $(BESIDE_EACH_OTHER) style types

style: $(STAMP) ## Style alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TYPES) ## Types alone

$(TYPES): types-of-%: $(STAMP)
	cd $* && $(abspath $(BIN))/mypy

check: lint ## The quick loop: style, types, and the tests that need no service
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m '$(QUICK)'
	@set -e; for other in $(OTHERS); do \
		echo "##### $$other"; \
		(cd $$other && $(abspath $(BIN))/python -m pytest -q -n $(JOBS) -m 'not install'); \
	done
	@set -e; for example in $(EXAMPLES); do \
		echo "##### $$example"; \
		(cd $$example && $(abspath $(BIN))/python -m pytest -q -n $(JOBS)); \
	done

test: $(STAMP) ## What CI runs: every behaviour once, on three databases and a real cloud (SUITES="store api" for some)
	$(BIN)/python -m tests.support.suites $(SUITES)

test-long: $(STAMP) ## Everything there is, in about two hours
	TENURE_TEST_LONG=1 $(BIN)/python -m tests.support.suites $(SUITES)

test-python: ## After `make setup`: the quick tests on another Python, in ~/.cache/tenure (PYTHON=python3.13)
	@test -n '$(PYTHON)' || { echo 'Which? make test-python PYTHON=python3.13' >&2; exit 2; }
	$(BIN)/uv venv -q --clear --no-python-downloads --python '$(PYTHON)' '$(OTHER)'
	$(BIN)/uv pip install -q --compile-bytecode --python '$(OTHER)/bin/python' -c constraints.txt $(INSTALLED)
	$(OTHER)/bin/python -VV
	$(OTHER)/bin/python -m pytest -q -n $(JOBS) -p no:cacheprovider -m '$(QUICK)' $(TESTS)

cloud: ## A real OpenStack control plane on this machine, on loopback, in .cloud (root, Debian 12)
	testbed/cloud up

cloud-test: $(STAMP) ## The tests that need a real cloud, on the one that `make cloud` made
	$(BIN)/python -m tests.support.suites cloud

cloud-down: ## Stop that cloud; `testbed/cloud down --purge` forgets what it knew as well
	testbed/cloud down

mutants: $(STAMP) ## Break the code in known ways, and expect a quick test to fail each time (ONLY="name name")
	$(BIN)/python -m tools.mutants $(ONLY:%=--only %)

bench: $(STAMP) ## How fast it is, and how we know
	$(BIN)/python -m bench

samples: $(STAMP) ## Write etc/tenure.conf.sample, as the options are now
	$(BIN)/oslo-config-generator --config-file etc/config-generator.conf

designs: $(STAMP) ## Write the pages of what the designs say, as tools/designs.toml has it
	$(BIN)/python -m tools.designs

constraints: $(STAMP) ## Choose the newest version of everything that is used, and write constraints.txt
	$(BIN)/python -m venv --clear $(VENV)/newest
	$(VENV)/newest/bin/python -m pip install -q --disable-pip-version-check $(INSTALLED)
	{ sed -n '/^#/p' constraints.txt; \
	  $(VENV)/newest/bin/python -m pip freeze --exclude-editable; } > constraints.txt.new
	mv constraints.txt.new constraints.txt
	rm -rf $(VENV)/newest

clean: ## Remove what building, running and testing left behind
	if [ -d .cloud ]; then TENURE_CLOUD_ROOT= testbed/cloud down; fi
	rm -rf $(VENV) .cloud .run .reports .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
