"""The tables of docs/compatibility.md that no cell of the matrix covers: what they call tested is what the tests run.

``tests/tools/matrix`` checks the tables of the matrix.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "tests/matrix/page.template").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and line.count(" | ") == 2
]
STATES = [row for row in ROWS if row[1] != "state"]
TESTED = [row for row in STATES if row[1] == "tested"]


def module_version(directory: str, module: str) -> str:
    """Return the version of a module in the go.mod of a directory in tests/e2e."""
    text = (ROOT / "tests/e2e" / directory / "go.mod").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^\s*{re.escape(module)} v(\S+)", text, re.MULTILINE)
    return str(version)


def test_each_row_has_a_state_that_the_page_defines() -> None:
    assert len(STATES) > 20
    assert {state for _, state, _ in STATES} == {"tested", "expected", "unknown", "refused by design"}


def test_each_tested_row_names_a_target_of_the_makefile() -> None:
    targets = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)}
    named = {what: {*re.findall(r"make ([a-z-]+)", source)} for what, _, source in TESTED if what != "x86-64"}
    assert {what: names for what, names in named.items() if not names or names - targets} == {}


def test_each_group_and_boot_that_a_row_names_exists() -> None:
    def words(kind: str) -> set[str]:
        phrases = " ".join(re.findall(rf"{kind}s? ((?:`[\w*-]+`(?:,| and)? ?)+)", " ".join(row[2] for row in STATES)))
        return {word.rstrip("*-") for word in re.findall(r"`([\w*-]+)`", phrases)}

    suites = {
        "group": ROOT / "tests/e2e/cluster/suite.py",
        "boot": ROOT / "tests/e2e/kernel/suite.py",
        "chapter": ROOT / "tests/e2e/kubelet/suite.py",
    }
    for kind, path in suites.items():
        assert words(kind), kind
        assert {word for word in words(kind) if f'"{word}"' not in path.read_text(encoding="utf-8")} == set()


@pytest.mark.parametrize(
    ("what", "directory", "module", "digits"),
    [
        ("1.34.4: control plane", "kubernetes", "k8s.io/kubernetes", 3),
        ("1.37.1: the same", "kubernetes-newest", "k8s.io/kubernetes", 3),
        ("containerd 2.1.9 with runc", "kubelet/containerd", "github.com/containerd/containerd/v2", 3),
        ("Helm 3.19", "kubernetes", "helm.sh/helm/v3", 2),
        ("kustomize 5.7", "kubernetes", "sigs.k8s.io/kustomize/kustomize/v5", 2),
    ],
)
def test_tested_versions_are_those_of_the_tests(what: str, directory: str, module: str, digits: int) -> None:
    version = ".".join(module_version(directory, module).split(".")[:digits])
    (row,) = [row for row in TESTED if row[0].startswith(what)]
    assert re.search(r"\d+(\.\d+)+", row[0])[0] == version  # type: ignore[index]
