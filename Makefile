# Everything a developer or CI calls. Each target sets up what it needs; a machine with Python 3.11 is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROTO := $(addprefix aosp_plugin/framework/api/,deviceplugin.proto podresources.proto)

.DEFAULT_GOAL := help
.PHONY: help demo test test-browser test-deploy test-kernel test-kubelet chaos fuzz bench sbom audit lint types layers tests chart proto lock clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name it with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(VENV)/.installed ## The whole plugin on this machine: no Kubernetes, no binder, no root
	$(BIN)/aosp-plugin demo

test: lint types layers tests ## Lint, types, import layers and tests with coverage

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

layers: $(VENV)/.installed
	$(BIN)/lint-imports

tests: export PYTHONDONTWRITEBYTECODE :=  # or each of some hundred processes would compile the plugin again
tests: $(VENV)/.installed
	$(BIN)/coverage erase
	$(BIN)/pytest --numprocesses logical --maxprocesses 4 --dist worksteal --cov --cov-report=term

test-browser: $(VENV)/.installed ## The page in Chromium, which is installed if you are root on Debian; skipped where it is not
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/pytest tests/browser

test-deploy: $(VENV)/.installed ## Chart, manifests, alerts and systemd unit by the tools that read them: with Go; builds for minutes once
	$(BIN)/python -m tests.e2e.deploy

test-kernel: $(VENV)/.installed ## The plugin on real binder kernels in QEMU: as root, on Debian, with Go; builds for minutes once
	$(BIN)/python -m tests.e2e.kernel

test-kubelet: $(VENV)/.installed ## The plugin against a real kubelet: as root, on Debian, with Go; builds for minutes once
	$(BIN)/python -m tests.e2e.kubelet

chaos: $(VENV)/.installed ## The plugin among faults, chosen by a seed: CHAOS="--seed 17 --steps 9", CHAOS="--list"
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.chaos $(CHAOS)

FUZZ ?= 60
fuzz: $(VENV)/.installed ## Bytes at a running plugin and at the configuration, guided by coverage, for FUZZ seconds each
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	$(BIN)/python -m tests.fuzz $(FUZZ)

BENCH ?= run
bench: $(VENV)/.installed ## Measure the plugin, and others with it: docs/benchmark.md; BENCH="growth", BENCH="fleet", BENCH="run --help"
	@GRPC_VERBOSITY=NONE $(BIN)/python -m tests.bench $(BENCH)

chart: $(VENV)/.installed ## Make what the Helm chart has of the configuration, the alert rules and the dashboard again
	$(BIN)/python -m hack.chart

proto: $(VENV)/.installed ## Compile the kubelet's .proto files again
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. \
	  --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc $(PROTO)

lock: $(VENV)/.installed ## Resolve the dependencies again, with hashes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --no-annotate --no-header --no-emit-index-url --python-version 3.11 \
	  --generate-hashes --output-file requirements.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --no-annotate --no-header --no-emit-index-url --python-version 3.11 \
	  --generate-hashes --extra dev --output-file requirements-dev.txt pyproject.toml

# What looks at the lock is neither in it nor beside it: an environment of its own, pinned by version, ships nothing.
TOOLS := build/tools
$(TOOLS)/.installed: Makefile
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-audit==2.10.1
	@touch $@

sbom: $(TOOLS)/.installed ## List what the image has beside its base, with hashes: build/sbom.json, in CycloneDX
	PYTHONWARNINGS=ignore $(TOOLS)/bin/cyclonedx-py requirements requirements.txt --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --output-format JSON --output-file build/sbom.json

audit: $(TOOLS)/.installed ## Ask PyPI which of the locked versions have known vulnerabilities; needs pypi.org
	@$(TOOLS)/bin/pip-audit --requirement requirements.txt --require-hashes --disable-pip --progress-spinner off --strict \
	  || { echo "make audit: failed; without a table above nothing was audited, as PyPI's list could not be had" >&2; exit 1; }

clean: ## Remove what was built or measured
	rm -rf $(VENV) build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
