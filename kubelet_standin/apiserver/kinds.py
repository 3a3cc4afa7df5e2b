"""The kinds of objects that the stand-in API server stores, and what a path and a field selector select."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

from kubelet_standin.apiserver import statuses

Object = dict[str, Any]

_METADATA_FIELDS = ("metadata.name",)


class Kind(NamedTuple):
    """A kind of object."""

    group: str
    """API group; empty for the core group."""
    version: str
    plural: str
    name: str
    namespaced: bool = False
    fields: tuple[str, ...] = ()
    """The fields that a field selector may name, in addition to those of the metadata."""
    status: bool = False
    """Whether it has the subresource status."""

    @property
    def qualified(self) -> str:
        """The plural name with the group, as in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The value of apiVersion."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def selectable(self) -> tuple[str, ...]:
        """All fields that a field selector may name."""
        return (*_METADATA_FIELDS, *(("metadata.namespace",) if self.namespaced else ()), *self.fields)


_DRA = ("resource.k8s.io", "v1")

KINDS: tuple[Kind, ...] = (
    Kind("", "v1", "nodes", "Node", fields=("spec.unschedulable",), status=True),
    Kind("", "v1", "pods", "Pod", namespaced=True, fields=("spec.nodeName", "status.phase"), status=True),
    Kind(
        "",
        "v1",
        "events",
        "Event",
        namespaced=True,
        fields=("involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type"),
    ),
    Kind(*_DRA, "resourceslices", "ResourceSlice", fields=("spec.nodeName", "spec.driver")),
    Kind(*_DRA, "resourceclaims", "ResourceClaim", namespaced=True, status=True),
    Kind(*_DRA, "deviceclasses", "DeviceClass"),
)
"""The kinds that every server has."""


class Location(NamedTuple):
    """What a path names: a collection, or an object if it has a name."""

    kind: Kind
    namespace: str = ""
    """Empty for kinds without namespaces, and for the objects of all namespaces."""
    name: str = ""
    subresource: str = ""


def locate(path: str) -> Location | None:
    """Return what a path names, without query; None if the server has no such resource."""
    parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    for kind in KINDS:
        root = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
        if parts[: len(root)] != root:
            continue
        rest = parts[len(root) :]
        namespace = ""
        if kind.namespaced and len(rest) > 2 and rest[0] == "namespaces":  # noqa: PLR2004 - and its name, and a plural
            namespace, rest = rest[1], rest[2:]
        if not rest or rest[0] != kind.plural or len(rest) > 3:  # noqa: PLR2004 - plural, name, subresource
            continue
        name, subresource = (*rest[1:], "", "")[:2]
        known = not subresource or (kind.status and subresource == "status")
        if not known or (name and kind.namespaced and not namespace):
            continue
        return Location(kind, namespace, name, subresource)
    return None


def selector(text: str, location: Location) -> Callable[[Object], bool]:
    """Return whether an object is in the collection and matches a field selector such as ``spec.nodeName=a``.

    Raises StatusError with 400 for a field that cannot be selected.
    """
    terms = [_term(part, location.kind) for part in text.split(",") if part]
    namespace, name = location.namespace, location.name

    def matches(candidate: Object) -> bool:
        metadata = candidate["metadata"]
        if (namespace and metadata.get("namespace", "") != namespace) or (name and metadata["name"] != name):
            return False
        return all(_field(candidate, path) == value for path, value in terms)

    return matches


def _term(text: str, kind: Kind) -> tuple[tuple[str, ...], str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise statuses.bad_request(f"invalid selector: '{text}'; can't understand '{text}'")
    if name not in kind.selectable:
        raise statuses.bad_request(f"field label not supported: {name}")
    return tuple(name.split(".")), value


def _field(candidate: Object, path: tuple[str, ...]) -> str:
    value: Any = candidate
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
