"""Paths of the API."""

import pytest

from aosp_plugin.framework.apiserver import protocol


def test_a_path_names_a_resource() -> None:
    for path, found in (
        ("/api/v1/nodes/a", ("", "", "nodes")),
        ("/api/v1/namespaces/a", ("", "", "namespaces")),
        ("/api/v1/namespaces/a/pods/b/status", ("", "a", "pods")),
        (protocol.RESOURCE_SLICES, ("resource.k8s.io", "", "resourceslices")),
        (protocol.object_path(protocol.resource_claims("a"), "b"), ("resource.k8s.io", "a", "resourceclaims")),
        ("/readyz", ("", "", "")),
    ):
        assert protocol.resource_of(path) == found


def test_a_name_that_would_change_the_path_is_refused() -> None:
    """Others are quoted."""
    assert protocol.object_path(protocol.NODES, "a?b#c d") == "/api/v1/nodes/a%3Fb%23c%20d"
    for name in ("", ".", "..", "a/b", "a%2fb", "../secrets"):
        with pytest.raises(ValueError, match="is not a valid name"):
            protocol.object_path(protocol.NODES, name)
        with pytest.raises(ValueError, match="is not a valid name"):
            protocol.resource_claims(name)
