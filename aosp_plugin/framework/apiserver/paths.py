"""Paths of the API: those of the objects that the plugin uses, and what a path names. All functions are pure."""

from __future__ import annotations

import urllib.parse
from typing import Final, NamedTuple

NODES: Final = "/api/v1/nodes"
RESOURCE_API: Final = "/apis/resource.k8s.io/v1"
RESOURCE_SLICES: Final = f"{RESOURCE_API}/resourceslices"


class Target(NamedTuple):
    """What a path names."""

    group: str
    """API group; empty for the core group."""
    version: str
    namespace: str
    resource: str
    """Plural name, such as nodes; with the subresource, such as resourceclaims/status; empty if it is no resource."""
    name: str


def resource_claims(namespace: str) -> str:
    """Return the path of the ResourceClaims of a namespace. Raises ValueError if the namespace is no valid name."""
    return f"{RESOURCE_API}/namespaces/{_segment(namespace)}/resourceclaims"


def events(namespace: str) -> str:
    """Return the path of the Events of a namespace. Raises ValueError if the namespace is no valid name."""
    return f"/api/v1/namespaces/{_segment(namespace)}/events"


def object_path(collection: str, name: str) -> str:
    """Return the path of an object of a collection. Raises ValueError if the name is no valid name of an object."""
    return f"{collection}/{_segment(name)}"


def parse(path: str) -> Target:
    """Return what a path names, as the API server reads it (apiserver/pkg/endpoints/request/requestinfo.go)."""
    parts = [urllib.parse.unquote(part) for part in path.removeprefix("/").split("/")]
    group, version, rest = "", "", []
    if parts[0] == "api" and len(parts) > 1:
        version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 2:  # noqa: PLR2004 - apis, group, version
        group, version, rest = parts[1], parts[2], parts[3:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - two names and what is in the namespace
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "", "")[:3]
    return Target(group, version, namespace, f"{resource}/{subresource}" if subresource else resource, name)


def _segment(name: str) -> str:
    # As IsValidPathSegmentName does (apimachinery/pkg/api/validation/path).
    if name in {"", ".", ".."} or "/" in name or "%" in name:
        raise ValueError(f"{name!r} is not a valid name of an object")
    return urllib.parse.quote(name, safe="")
