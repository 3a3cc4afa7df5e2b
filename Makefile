# The entry point for developers and CI. Every target installs the Python packages that it needs, in the checkout.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_VENV ?= .venv-run
REQUIRE_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
  "requires Python 3.11 or newer: make PYTHON=...")'
PIP_INSTALL := python -m pip install --quiet --disable-pip-version-check
# uv takes 3 s where pip takes 35. It does not read pip.conf: with an index that only pip.conf names, pip installs.
UV_INSTALL = uv pip install --quiet --native-tls --python $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help demo test lint types layers tests test-unit test-integration test-tools simulate bench matrix generate version \
  release image lock audit clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-zA-Z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "SUITE: $(SUITES). KEEP=yes keeps the cluster of test-cluster to look at."
	@echo "ITEMS=core limits deploy, kubelet, kernel, apiserver and cluster to the items that CI runs. The suites require Debian, and"
	@echo "most of them root and Go. They install packages of the host only with INSTALL_PACKAGES=yes."

DISTRIBUTIONS := . kubelet_standin kubectl_phones
EDITABLE := $(addprefix --editable ./,$(DISTRIBUTIONS))

$(VENV)/.installed: $(addsuffix /pyproject.toml,$(DISTRIBUTIONS)) requirements-dev.txt
	@$(REQUIRE_PYTHON)
	$(PYTHON) -m venv $(VENV)
	-$(BIN)/$(PIP_INSTALL) uv==0.13.9
	$(BIN)/$(UV_INSTALL) --requirement requirements-dev.txt || $(BIN)/$(PIP_INSTALL) --requirement requirements-dev.txt
	$(BIN)/$(UV_INSTALL) --no-deps $(EDITABLE) || $(BIN)/$(PIP_INSTALL) --no-deps $(EDITABLE)
	@touch $@

# An environment with the plugin's own dependencies only.
$(RUN_VENV)/.installed: requirements.txt
	@$(REQUIRE_PYTHON)
	@echo "Installing the plugin's dependencies from PyPI in $(RUN_VENV), once: about 20 s"
	@$(PYTHON) -m venv $(RUN_VENV)
	@$(RUN_VENV)/bin/$(PIP_INSTALL) --requirement requirements.txt
	@touch $@

DEMO ?=
demo: $(RUN_VENV)/.installed ## Show the plugin without Kubernetes, binder or root: DEMO=--stay
	@$(RUN_VENV)/bin/python -m aosp_plugin demo $(DEMO)

# Two at a time: mypy and the unit tests each keep one processor busy. Coverage is added up, one after the other.
ifeq ($(MAKECMDGOALS)$(COVERAGE),test)
MAKEFLAGS += --jobs=2 --output-sync=target
endif
test: lint types layers tests ## Test a change: lint, types, import layers and the fast tests: COVERAGE=yes

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

layers: $(VENV)/.installed
	$(BIN)/lint-imports

tests: test-unit test-integration

# Otherwise each of several hundred processes compiles the plugin again.
test-unit test-integration test-tools test-faults: export PYTHONDONTWRITEBYTECODE :=

# One process: to collect the tests in several takes longer than to run them.
test-unit: $(VENV)/.installed
	$(BIN)/pytest --numprocesses 0 $(if $(COVERAGE),--cov --cov-report= --cov-fail-under=0) tests/unit

# Four processes also with two processors: many tests wait for other processes.
test-integration: $(VENV)/.installed
	$(BIN)/pytest --numprocesses 4 --dist worksteal $(if $(COVERAGE),--cov --cov-append --cov-report=term) tests/integration

test-tools: $(VENV)/.installed ## Test the stand-in kubelet, kubectl phones, and the tools in hack and tests
	$(BIN)/pytest --numprocesses 4 --dist worksteal tests/tools tests/api_contract kubelet_standin/tests kubectl_phones/tests

# The suites with real parts. Each has a page, or its package a docstring.
SUITES := faults browser bench deploy kubelet kernel apiserver cluster workflows
ITEMS ?= all
PYTEST ?=
KEEP ?=
test-SUITE: ## Test with real parts, such as test-kubelet: ITEMS=core, PYTEST="-k vanishes"

test-faults: $(VENV)/.installed
	@ldconfig -p | grep --quiet libfuse3 || $(BIN)/python -m tests.e2e.common.packages fuse3
	$(BIN)/pytest --numprocesses 4 --dist worksteal tests/faults

test-browser: $(VENV)/.installed
	$(BIN)/pytest tests/browser

test-bench: $(VENV)/.installed
	@GRPC_VERBOSITY=NONE $(BIN)/pytest --numprocesses 0 tests/bench

test-kernel test-kubelet test-apiserver test-cluster: test-%: $(VENV)/.installed
	$(BIN)/python -m tests.e2e.$* $(if $(filter core,$(ITEMS)),-m core) $(if $(KEEP),--keep) $(PYTEST)

# The first run builds tools for longer than a test may take otherwise.
test-deploy: $(VENV)/.installed
	$(BIN)/pytest -p no:randomly -v --timeout 3600 $(if $(filter core,$(ITEMS)),-m core) $(PYTEST) tests/e2e/deploy

simulate: $(VENV)/.installed ## Simulate a node and its faults in simulated time: SIMULATE="--faults 1000000 --seed 17"
	@$(BIN)/python -m tests.simulation $(SIMULATE)

BENCH ?= run
bench: $(VENV)/.installed ## Measure the plugin beside others; requires Go: BENCH="run --quick"
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.bench $(BENCH)

MATRIX ?=
matrix: $(VENV)/.installed ## Run the compatibility matrix, and write docs/compatibility.md: MATRIX=list
	@$(BIN)/python -m tests.matrix $(MATRIX)

GENERATE ?= proto docs chart manifests
generate: $(VENV)/.installed ## Generate what has another source: tables, schemas, YAML for kubectl; requires Go: GENERATE="docs chart"
	$(foreach module,$(GENERATE),$(BIN)/python -m hack.$(module) &&) true

version: $(VENV)/.installed ## Set the version everywhere, or print it: VERSION=1.2.3
	@$(BIN)/python -m hack.version $(VERSION)

# A release has an environment of its own, of which every file has a locked hash. What builds the Python packages has the same
# versions as in the image.
PACKAGING := build/packaging
LOCKED := deploy/build-requirements.txt deploy/sbom-requirements.txt
$(PACKAGING)/.installed: $(LOCKED)
	@$(REQUIRE_PYTHON)
	$(PYTHON) -m venv --clear $(PACKAGING)
	$(PACKAGING)/bin/$(PIP_INSTALL) --require-hashes --only-binary=:all: $(addprefix --requirement ,$(LOCKED))
	@touch $@

IMAGE ?= localhost/aosp-device-plugin
ARCH ?=
image: $(VENV)/.installed ## Build the image and its SBOM in build/: ARCH="amd64 arm64", IMAGE=NAME, BASE=NAME
	@$(BIN)/python -m hack.image --image $(IMAGE) $(addprefix --arch ,$(ARCH)) --output build

OUTPUT ?= dist
SOURCE_URL ?=
TAG ?=
CHANGES ?=
IMAGES ?= yes
RELEASE = $(PACKAGING)/bin/python -m hack.release --image $(IMAGE) --source-url=$(SOURCE_URL) --tag=$(TAG) \
  $(if $(CHANGES),--allow-changes) $(if $(filter no,$(IMAGES)),--without-images)

release: $(PACKAGING)/.installed ## Build a release in dist: IMAGE=ghcr.io/ORG/aosp-device-plugin, IMAGES=no, TWICE=yes
	@$(RELEASE) --output $(OUTPUT)
ifdef TWICE
	@$(RELEASE) --output build/release-again >/dev/null
	@diff $(OUTPUT)/SHA256SUMS build/release-again/SHA256SUMS && echo "both builds have the same digests"
endif

lock: $(VENV)/.installed ## Update the locked dependencies
	$(BIN)/uv pip compile --quiet --universal --no-annotate --no-header --no-emit-index-url --python-version 3.11 \
	  --generate-hashes --output-file requirements.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --no-annotate --no-header --no-emit-index-url --python-version 3.11 \
	  --generate-hashes --no-strip-extras --extra dev --output-file requirements-dev.txt pyproject.toml

# Tools that inspect the lock file have an environment of their own, so that they do not change the lock file.
TOOLS := build/tools
$(TOOLS)/.installed: Makefile
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/$(PIP_INSTALL) pip-audit==2.10.1 zizmor==1.32.0
	@touch $@

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
$(TOOLS)/bin/actionlint: Makefile
	@command -v go >/dev/null || { echo "make test-workflows: requires Go" >&2; exit 1; }
	GOBIN=$(CURDIR)/$(TOOLS)/bin go install $(ACTIONLINT)
	@touch $@

test-workflows: $(TOOLS)/.installed $(TOOLS)/bin/actionlint
	$(TOOLS)/bin/actionlint
	$(TOOLS)/bin/zizmor --offline --no-progress .github

audit: $(TOOLS)/.installed ## Look up known vulnerabilities of the locked versions at pypi.org
	@$(TOOLS)/bin/pip-audit --requirement requirements.txt --require-hashes --disable-pip --progress-spinner off --strict \
	  || { echo "make audit: failed; without a table above, PyPI's list was unavailable and nothing was checked" >&2; exit 1; }

clean: ## Remove build and test artifacts
	rm -rf $(VENV) $(RUN_VENV) build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
