"""The tools: built from Go's module proxy at the versions that are pinned here, and kept for the next time.

Each is a function that returns where it is. MissingError means that this machine can't have it; a build that fails is
an AssertionError.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.e2e.common import cache, packages
from tests.e2e.common.report import say

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[2]
DEPLOY: Final = PROJECT / "deploy"
CHART: Final = DEPLOY / "chart"
KUBELET: Final = PROJECT / "tests" / "e2e" / "kubelet"
"""Its go.mod says which Kubernetes."""

# The newest that Go 1.24 builds, as the kubelet of tests/e2e/kubelet wants that as well.
HELM: Final = "v3.19.5"
KUSTOMIZE: Final = "v5.7.1"
PROMETHEUS: Final = "v0.307.3"
OPERATOR: Final = "v0.85.0"
"""The Prometheus operator, of which its CRDs are taken."""

_GO: Final = {"GOFLAGS": "-mod=mod -buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}


def run(*command: str, text: str | None = None, seconds: float = 120, cwd: Path | None = None) -> str:
    """Run a command and return what it prints. AssertionError with its own words if it fails."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        input=text,
        timeout=seconds,
        check=False,
        cwd=cwd,
        env=os.environ | _GO | {"LC_ALL": "C.UTF-8"},
    )
    said = (done.stderr or done.stdout).strip()[-2000:]
    assert done.returncode == 0, f"{Path(command[0]).name} {' '.join(command[1:3])}: {done.returncode}: {said}"
    return done.stdout


def kubernetes() -> str:
    """Return the version of Kubernetes that the manifests are held against."""
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (KUBELET / "go.mod").read_text())
    assert found is not None, "go.mod does not say which Kubernetes"
    return found[1]


def helm() -> str:
    """Return Helm, which takes itself for one of a cluster of that version."""
    _, minor, _ = kubernetes().split(".")
    rooms = ("pkg/chartutil", "pkg/lint/rules")
    flags = " ".join(
        f"-X helm.sh/helm/v3/{room}.k8sVersion{part}" for room in rooms for part in ("Major=1", f"Minor={minor}")
    )
    return _tool("helm", "helm.sh/helm/v3/cmd/helm", HELM, f"-s -w {flags}")


def kustomize() -> str:
    """Return kustomize."""
    return _tool("kustomize", "sigs.k8s.io/kustomize/kustomize/v5", KUSTOMIZE)


def promtool() -> str:
    """Return promtool."""
    return _tool("promtool", "github.com/prometheus/prometheus/cmd/promtool", PROMETHEUS)


def validator() -> str:
    """Return the program of ``validate.go``, with the code of the API server."""
    go = _go()
    sources = [KUBELET / "go.mod", KUBELET / "go.sum", HERE / "validate.go"]

    def build(directory: Path) -> None:
        say(f"# building the API server's validation, {kubernetes()}: minutes, once")
        module = directory / "module"
        module.mkdir()
        for source in sources:
            shutil.copy(source, module)
        run("go", "build", "-trimpath", "-o", str(directory / "validate"), ".", seconds=3600, cwd=module)
        shutil.rmtree(module)

    return str(cache.kept(f"validate-{cache.key([*sources, go])}", build) / "validate")


def operator_crds() -> Path:
    """Return the directory of the Prometheus operator's CRDs."""
    _go()
    module = f"github.com/prometheus-operator/prometheus-operator@{OPERATOR}"
    told = json.loads(run("go", "mod", "download", "-json", module, seconds=900, cwd=Path("/")))
    return Path(told["Dir"], "example", "prometheus-operator-crd")


def _tool(name: str, package: str, version: str, flags: str = "-s -w") -> str:
    """Return a Go program, built in a module of our own: ``go install`` takes none with replace directives."""
    go = _go()

    def build(directory: Path) -> None:
        say(f"# building {name} {version}: minutes, once")
        module = directory / "module"
        module.mkdir()
        run("go", "mod", "init", "tool", cwd=module)
        run("go", "get", f"{package}@{version}", seconds=1800, cwd=module)
        run(
            "go",
            "build",
            "-trimpath",
            "-ldflags",
            flags,
            "-o",
            str(directory / name),
            package,
            seconds=3600,
            cwd=module,
        )
        shutil.rmtree(module)

    return str(cache.kept(f"{name}-{cache.key([package, version, flags, go])}", build) / name)


def _go() -> str:
    """Return Go's version."""
    if not shutil.which("go"):
        raise packages.MissingError("no Go to build it with: install Go 1.24 or newer")
    return run("go", "version")
