"""The tools that read deploy/: built from Go's module proxy at pinned versions, and cached.

Each function returns the path of its tool. It raises MissingError if this machine cannot have the tool, and
AssertionError if the build fails.
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.common import golang
from tests.e2e.common.packages import command

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[2]
DEPLOY: Final = PROJECT / "deploy"
CHART: Final = DEPLOY / "chart"
KUBERNETES: Final = PROJECT / "tests" / "e2e" / "kubernetes"
"""The module of Kubernetes, Helm and kustomize: its go.mod pins the newest versions that Go 1.24 builds."""

SYSTEMD: Final = DEPLOY / "systemd"
UNIT: Final = "aosp-device-plugin.service"
PHONES: Final = "aosp-phones.service"
PROGRAM: Final = "/usr/local/bin/aosp-plugin"
"""The program of both units."""

PROMETHEUS: Final = "v0.307.3"
ALERTMANAGER: Final = "v0.28.1"
OPERATOR: Final = "v0.85.0"
"""The Prometheus operator, whose CRDs are used."""


run: Final = partial(command, error=AssertionError)
"""Runs a command and returns its output. Raises AssertionError with the command's messages if it fails."""


def helm() -> str:
    """Return Helm, which assumes a cluster of that version of Kubernetes."""
    _, minor, _ = golang.pinned(KUBERNETES, "k8s.io/kubernetes").split(".")
    packages = ("pkg/chartutil", "pkg/lint/rules")
    link = " ".join(
        f"-X helm.sh/helm/v3/{package}.k8sVersion{part}"
        for package in packages
        for part in ("Major=1", f"Minor={minor}")
    )
    return str(golang.build("helm", KUBERNETES, "helm.sh/helm/v3/cmd/helm", link=link) / "helm")


def kustomize(target: str = "") -> str:
    """Return kustomize; ``target`` is the architecture, by default this machine's."""
    program = "sigs.k8s.io/kustomize/kustomize/v5"
    return str(golang.build("kustomize", KUBERNETES, program, target=target) / "kustomize")


def validator() -> str:
    """Return the program that validates manifests with the code of the API server."""
    return str(golang.build("validate", KUBERNETES, "./validate", sources=[KUBERNETES / "validate"]) / "validate")


def of_prometheus(program: str) -> str:
    """Return promtool, prometheus or alertmanager, built in a module of its own: Kubernetes has other versions."""
    alertmanager = program == "alertmanager"
    path = f"github.com/prometheus/{'alertmanager' if alertmanager else 'prometheus'}"
    version = ALERTMANAGER if alertmanager else PROMETHEUS
    with tempfile.TemporaryDirectory() as directory:
        module = Path(directory)
        (module / "go.mod").write_text(f"module tool\n\ngo 1.24.0\n\nrequire {path} {version}\n")
        (module / "go.sum").touch()
        return str(golang.build(program, module, f"{path}/cmd/{program}") / program)


def checker(name: str) -> str:
    """Return the Go program of a directory here: ``dashboard`` or ``cdi``."""
    return str(golang.build(name, HERE / name, ".", sources=[HERE / name / "main.go"]) / name)


def operator_crds() -> Path:
    """Return the directory of the Prometheus operator's CRDs."""
    module = f"github.com/prometheus-operator/prometheus-operator@{OPERATOR}"
    downloaded = json.loads(golang.go("mod", "download", "-json", module, cwd=Path("/"), seconds=900))
    return Path(downloaded["Dir"], "example", "prometheus-operator-crd")
