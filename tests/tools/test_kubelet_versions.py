"""The kubelets of the compatibility matrix: their modules, and what differs between versions."""

from __future__ import annotations

import pytest

from tests.e2e.kubelet import versions

GO_MOD = """\
module k8s.io/kubernetes

go 1.19

require (
	github.com/spf13/cobra v1.4.0
	k8s.io/api v0.0.0
)

replace (
	github.com/spf13/cobra => github.com/spf13/cobra v1.4.0
	k8s.io/api => ./staging/src/k8s.io/api
)
"""


def test_directories_of_the_release_become_published_modules() -> None:
    text = versions.module_file(GO_MOD, "v1.25.16")
    assert "k8s.io/api => k8s.io/api v0.25.16\n" in text
    assert "github.com/spf13/cobra => github.com/spf13/cobra v1.4.0\n" in text
    assert text.endswith("\nrequire k8s.io/kubernetes v1.25.16\n")
    assert "module k8s.io/kubernetes" not in text


@pytest.mark.parametrize("release", versions.VERSIONS.values())
def test_each_release_and_its_modules_are_pinned(release: str) -> None:
    lines = versions.SUMS.read_text(encoding="ascii").splitlines()
    published = release.replace("v1.", "v0.", 1)
    assert [line for line in lines if line.startswith(f"k8s.io/kubernetes {release} h1:")]
    assert [line for line in lines if line.startswith(f"k8s.io/kubelet {published} h1:")]
