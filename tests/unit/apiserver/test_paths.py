"""Paths of the API."""

from __future__ import annotations

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.protocol import Target


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/api/v1/nodes/a", Target("", "v1", "", "nodes", "a")),
        ("/api/v1/namespaces/a", Target("", "v1", "", "namespaces", "a")),
        ("/api/v1/namespaces/a/pods/b/status", Target("", "v1", "a", "pods/status", "b")),
        (protocol.RESOURCE_SLICES, Target("resource.k8s.io", "v1", "", "resourceslices", "")),
        (
            protocol.object_path(protocol.resource_claims("a"), "b"),
            Target("resource.k8s.io", "v1", "a", "resourceclaims", "b"),
        ),
        ("/apis/apps", Target("", "", "", "", "")),
        ("/api", Target("", "", "", "", "")),
        ("/", Target("", "", "", "", "")),
        ("", Target("", "", "", "", "")),
        ("/readyz", Target("", "", "", "", "")),
    ],
)
def test_a_path_names_a_resource(path: str, target: Target) -> None:
    assert protocol.parse(path) == target


def test_a_name_is_quoted() -> None:
    assert protocol.object_path(protocol.NODES, "a?b#c d") == "/api/v1/nodes/a%3Fb%23c%20d"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb", "../secrets"])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name"):
        protocol.object_path(protocol.NODES, name)
    with pytest.raises(ValueError, match="is not a valid name"):
        protocol.resource_claims(name)
