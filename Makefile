# The entry point for developers and CI. Every target installs what it needs; a machine with Python 3.11 is enough.
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
.PHONY: help seccomp demo test lint types layers tests test-unit test-integration test-pythons test-tools test-faults test-browser test-deploy test-kubelet test-kernel \
  test-bench test-apiserver test-cluster simulate chaos bench bench-storm \
  matrix docs chart manifests version release release-twice test-workflows proto lock image audit clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  ITEMS=core limits test-deploy, test-kubelet, test-kernel, test-apiserver and test-cluster to the items that CI runs."

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
	$(PYTHON) -m venv $(RUN_VENV)
	$(RUN_VENV)/bin/$(PIP_INSTALL) --requirement requirements.txt
	@touch $@

DEMO ?=
demo: $(RUN_VENV)/.installed ## Run the plugin with a stand-in kubelet, without Kubernetes, binder or root: DEMO=--stay
	$(RUN_VENV)/bin/python -m aosp_plugin demo $(DEMO)

# Two at a time: mypy and the unit tests each keep one processor busy. Coverage is added up, one after the other.
ifeq ($(MAKECMDGOALS)$(COVERAGE),test)
MAKEFLAGS += --jobs=2
endif
test: lint types layers tests ## Run linters, type checks, import layers and the fast tests: COVERAGE=yes

lint: $(VENV)/.installed ## Run ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed ## Check types with mypy
	$(BIN)/mypy

layers: $(VENV)/.installed ## Check the import layers
	$(BIN)/lint-imports

tests: test-unit test-integration ## Run the fast tests: COVERAGE=yes

# Otherwise each of several hundred processes compiles the plugin again.
test-unit test-integration test-tools test-faults: export PYTHONDONTWRITEBYTECODE :=

# One process: to collect the tests in several takes longer than to run them.
test-unit: $(VENV)/.installed ## Run the unit tests
	$(BIN)/pytest --numprocesses 0 $(if $(COVERAGE),--cov --cov-report= --cov-fail-under=0) tests/unit

# Four processes also with two processors: many tests wait for other processes.
test-integration: $(VENV)/.installed ## Run the plugin with a stand-in kubelet, over real sockets and files
	$(BIN)/pytest --numprocesses 4 --dist worksteal $(if $(COVERAGE),--cov --cov-append --cov-report=term) tests/integration

test-tools: $(VENV)/.installed ## Test the stand-in kubelet, kubectl phones, and the tools in hack and tests
	$(BIN)/pytest --numprocesses 4 --dist worksteal tests/tools kubelet_standin/tests kubectl_phones/tests

PYTHONS ?=
test-pythons: $(VENV)/.installed ## Run make test with each supported Python that is installed: PYTHONS="3.12 3.13"
	$(BIN)/python -m hack.pythons $(PYTHONS)

test-faults: $(VENV)/.installed ## Test real processes on file systems that hang, full disks and other faults; requires root on Debian
	@ldconfig -p | grep --quiet libfuse3 || $(BIN)/python -c 'from tests.e2e.common import packages; packages.install(["fuse3"])'
	$(BIN)/pytest --numprocesses 4 --dist worksteal tests/faults

test-browser: $(VENV)/.installed ## Test the status page in Chromium, which is installed on Debian as root
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/pytest tests/browser

ITEMS ?= all
test-deploy: $(VENV)/.installed ## Check chart, manifests, alerts and systemd unit with the tools that read them; requires Go
	$(BIN)/python -m tests.e2e.deploy --items $(ITEMS)

test-kubelet: $(VENV)/.installed ## Run the plugin with a real kubelet and containerd; requires root, Debian and Go
	$(BIN)/python -m tests.e2e.kubelet --items $(ITEMS)

test-kernel: $(VENV)/.installed ## Run the plugin on a real binder kernel in QEMU; requires root, Debian and Go
	$(BIN)/python -m tests.e2e.kernel --items $(ITEMS)

test-apiserver: $(VENV)/.installed ## Run the API server's client with two versions of kube-apiserver; requires root, Debian and Go
	$(BIN)/python -m tests.e2e.apiserver --items $(ITEMS)

test-cluster: $(VENV)/.installed ## Install and use the plugin in a whole Kubernetes cluster; requires root, Debian and Go
	$(BIN)/python -m tests.e2e.cluster --items $(ITEMS)

simulate: $(VENV)/.installed ## Run the plugin on a simulated node in simulated time: SIMULATE="--faults 1000000 --seed 17"
	@$(BIN)/python -m tests.simulation $(SIMULATE)

chaos: $(VENV)/.installed ## Inject random faults into a running plugin: CHAOS="--seed 17 --steps 9", CHAOS="--list"
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.chaos $(CHAOS)

BENCH ?= run
bench: $(VENV)/.installed ## Run benchmarks (docs/testing.md): BENCH="run --quick"; requires Go
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.bench $(BENCH)

test-bench: $(VENV)/.installed ## Test the benchmark's caller and every measure, with few devices; requires Go
	@GRPC_VERBOSITY=NONE $(BIN)/pytest --numprocesses 0 tests/bench

BENCH_STORM ?=
bench-storm: $(VENV)/.installed ## Measure the start of 120 phones at once: BENCH_STORM="--phones 40"; requires root, Debian and Go
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.e2e.cluster.storm $(BENCH_STORM)

MATRIX ?=
matrix: $(VENV)/.installed ## Run the compatibility matrix and write docs/compatibility.md: MATRIX="--column pythons", MATRIX=list
	@$(BIN)/python -m tests.matrix $(MATRIX)

docs: $(VENV)/.installed ## Generate the tables in docs, the JSON schemas and the runbook's alerts and reasons from their sources
	$(BIN)/python -m hack.docs

chart: $(VENV)/.installed ## Write keys and alerts into the Helm chart's schema
	$(BIN)/python -m hack.chart

manifests: $(VENV)/.installed ## Render the YAML for kubectl and kustomize from the Helm chart; requires Go
	$(BIN)/python -m hack.manifests

seccomp: $(VENV)/.installed ## Write the seccomp profile for phones from containerd's default; requires root on Debian, Go
	$(BIN)/python -m hack.phone_seccomp

version: $(VENV)/.installed ## Print the version, or set it everywhere: VERSION=1.2.3
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

release: $(PACKAGING)/.installed ## Build a release in dist: IMAGE=ghcr.io/ORG/aosp-device-plugin, IMAGES=no
	@$(RELEASE) --output $(OUTPUT)

release-twice: release ## Build a release again in build/release-again, and compare it
	@$(RELEASE) --output build/release-again >/dev/null
	@diff $(OUTPUT)/SHA256SUMS build/release-again/SHA256SUMS && echo "both builds have the same digests"

proto: $(VENV)/.installed ## Regenerate the code for the kubelet's .proto files
	$(BIN)/python -m hack.proto

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

test-workflows: $(TOOLS)/.installed $(TOOLS)/bin/actionlint ## Check the GitHub workflows with actionlint and zizmor; requires Go
	$(TOOLS)/bin/actionlint
	$(TOOLS)/bin/zizmor --offline --no-progress .github

audit: $(TOOLS)/.installed ## Check the locked versions for known vulnerabilities; requires access to pypi.org
	@$(TOOLS)/bin/pip-audit --requirement requirements.txt --require-hashes --disable-pip --progress-spinner off --strict \
	  || { echo "make audit: failed; without a table above, PyPI's list was unavailable and nothing was checked" >&2; exit 1; }

clean: ## Remove build and test artifacts
	rm -rf $(VENV) $(RUN_VENV) build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
