"""The tools that read deploy/: built from Go's module proxy at pinned versions, and cached.

Each function returns the path of its tool. It raises MissingError if this machine cannot have the tool, and
AssertionError if the build fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.common import golang

if TYPE_CHECKING:
    from collections.abc import Callable

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[2]
DEPLOY: Final = PROJECT / "deploy"
CHART: Final = DEPLOY / "chart"
KUBERNETES: Final = PROJECT / "tests" / "e2e" / "kubernetes"
"""The module of Kubernetes, Helm and kustomize: its go.mod pins the newest versions that Go 1.24 builds."""

PROMETHEUS: Final = "v0.307.3"
ALERTMANAGER: Final = "v0.28.1"
OPERATOR: Final = "v0.85.0"
"""The Prometheus operator, whose CRDs are used."""


def run(*command: str, text: str | None = None, seconds: float = 120, cwd: Path | None = None) -> str:
    """Run a command and return its output. Raises AssertionError with the command's messages if it fails."""
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        input=text,
        timeout=seconds,
        check=False,
        cwd=cwd,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    messages = (result.stderr or result.stdout).strip()[-2000:]
    assert result.returncode == 0, f"{Path(command[0]).name} {' '.join(command[1:3])}: {result.returncode}: {messages}"
    return result.stdout


def refuses(call: Callable[[], object], *texts: str) -> None:
    """Check that a call fails with a message that has these texts."""
    try:
        call()
    except AssertionError as error:
        missing = [text for text in texts if text not in str(error)]
        assert not missing, f"refused for another reason than {missing}: {error}"  # noqa: PT017 - no pytest here
        return
    raise AssertionError(f"accepted, but should be refused: {texts}")


def kubernetes() -> str:
    """Return the version of Kubernetes that the manifests are checked against."""
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (KUBERNETES / "go.mod").read_text())
    assert found is not None, "go.mod does not name k8s.io/kubernetes"
    return found[1]


def helm() -> str:
    """Return Helm, which assumes a cluster of that version of Kubernetes."""
    _, minor, _ = kubernetes().split(".")
    packages = ("pkg/chartutil", "pkg/lint/rules")
    link = " ".join(
        f"-X helm.sh/helm/v3/{package}.k8sVersion{part}"
        for package in packages
        for part in ("Major=1", f"Minor={minor}")
    )
    return str(golang.build("helm", KUBERNETES, "helm.sh/helm/v3/cmd/helm", link=link) / "helm")


def kustomize() -> str:
    """Return kustomize."""
    return str(golang.build("kustomize", KUBERNETES, "sigs.k8s.io/kustomize/kustomize/v5") / "kustomize")


def validator() -> str:
    """Return the program that validates manifests with the code of the API server."""
    return str(golang.build("validate", KUBERNETES, "./validate", sources=[KUBERNETES / "validate"]) / "validate")


def promtool() -> str:
    """Return promtool."""
    return _of_prometheus("prometheus", PROMETHEUS, "promtool")


def prometheus() -> str:
    """Return Prometheus."""
    return _of_prometheus("prometheus", PROMETHEUS, "prometheus")


def alertmanager() -> str:
    """Return Alertmanager."""
    return _of_prometheus("alertmanager", ALERTMANAGER, "alertmanager")


def _of_prometheus(repository: str, version: str, program: str) -> str:
    """Return a program, built in a module of its own because it requires other versions than Kubernetes does."""
    path = f"github.com/prometheus/{repository}"
    with tempfile.TemporaryDirectory() as directory:
        module = Path(directory)
        (module / "go.mod").write_text(f"module tool\n\ngo 1.24.0\n\nrequire {path} {version}\n")
        (module / "go.sum").touch()
        return str(golang.build(program, module, f"{path}/cmd/{program}") / program)


def dashboard_checker() -> str:
    """Return the program that checks dashboards with Grafana's types."""
    module = HERE / "dashboard"
    return str(golang.build("dashboard", module, ".", sources=[module / "main.go"]) / "dashboard")


def cdi_reader() -> str:
    """Return the program that reads CDI specs with the library of container runtimes."""
    module = HERE / "cdi"
    return str(golang.build("cdi", module, ".", sources=[module / "main.go"]) / "cdi")


def operator_crds() -> Path:
    """Return the directory of the Prometheus operator's CRDs."""
    module = f"github.com/prometheus-operator/prometheus-operator@{OPERATOR}"
    downloaded = json.loads(golang.go("mod", "download", "-json", module, cwd=Path("/"), seconds=900))
    return Path(downloaded["Dir"], "example", "prometheus-operator-crd")
