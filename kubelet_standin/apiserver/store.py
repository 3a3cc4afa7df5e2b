"""The objects of the stand-in API server, with the history that watches read."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeVar, cast

from kubelet_standin.apiserver import statuses, validation
from kubelet_standin.apiserver.kinds import Kind, Location

Object = dict[str, Any]
_Json = TypeVar("_Json")
Key = tuple[str, str, str, str]  # API group, plural, namespace, name

_SERVER_FIELDS = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
"""Metadata that only the server sets."""


class Change(NamedTuple):
    """An entry of the history."""

    revision: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    kind: Kind
    object: Object
    """After the change; before a deletion, with the revision of the deletion."""
    previous: Object | None
    """Before the change; None if it did not exist."""


class Store:
    """Objects by kind, namespace and name. Methods raise StatusError; objects are copied on the way in and out."""

    def __init__(
        self,
        *,
        drop_fields: Collection[str],
        minor: int,
        changed: Callable[[], None],
        now: Callable[[], float] = time.time,
        uid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """``drop_fields`` and ``minor`` are those of ApiServer; ``changed`` is called after each change.

        ``now`` returns the seconds since the epoch, and ``uid`` the UID of the next object.
        """
        self.drop_fields = frozenset(drop_fields)
        self.revision = 1
        self.history: list[Change] = []
        self.compacted = 0
        """Changes up to this revision are no longer in the history."""
        self._limits = validation.limits(minor)
        self._changed = changed
        self._clock = now
        self._uid = uid
        self._objects: dict[Key, Object] = {}

    def get(self, location: Location) -> Object:
        """Return an object; 404 if it does not exist."""
        return _copied(self._find(location))

    def list(self, kind: Kind, matches: Callable[[Object], bool]) -> list[Object]:
        """Return the objects of a kind that match, ordered by namespace and name."""
        keys = sorted(key for key in self._objects if key[:2] == (kind.group, kind.plural))
        return [_copied(self._objects[key]) for key in keys if matches(self._objects[key])]

    def create(self, location: Location, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Store a new object, unless it is a dry run; 409 if it exists, 422 if it is invalid."""
        kind = location.kind
        new = _checked(location, body)
        metadata = new["metadata"]
        if metadata.pop("resourceVersion", ""):
            message = "resourceVersion should not be set on objects to be created"
            raise statuses.StatusError(500, "InternalError", message)
        for name in _SERVER_FIELDS:
            metadata.pop(name, None)
        metadata |= {"uid": self._uid(), "creationTimestamp": self._now()}
        if kind.namespaced:
            metadata["namespace"] = location.namespace
        if kind.plural == "resourceslices" or "spec" in new:
            metadata["generation"] = 1
        self._admit(kind, new, None)
        if self._key(location, metadata["name"]) in self._objects:
            raise statuses.already_exists(kind, metadata["name"])
        if not dry_run:
            self._record("ADDED", kind, new, None)
        return _copied(new)

    def update(self, location: Location, body: Mapping[str, Any]) -> Object:
        """Replace an object; 404 if it does not exist, 409 if it has changed, 422 if it is invalid."""
        old = self._find(location)
        new = _checked(location, body)
        metadata, before = new["metadata"], old["metadata"]
        if metadata.get("uid") not in {None, "", before["uid"]}:
            raise statuses.conflict(location.kind, location.name, _precondition("UID", metadata["uid"], before["uid"]))
        if metadata.pop("resourceVersion", "") not in {"", before["resourceVersion"]}:
            problem = "the object has been modified; please apply your changes to the latest version and try again"
            raise statuses.conflict(location.kind, location.name, problem)
        new = _merged(location, new, old)
        if new.get("spec") != old.get("spec") and "generation" in before:
            new["metadata"]["generation"] = before["generation"] + 1
        self._admit(location.kind, new, old)
        new["metadata"]["resourceVersion"] = before["resourceVersion"]
        if new != old:
            self._record("MODIFIED", location.kind, new, old)
        return _copied(new)

    def delete(self, location: Location, preconditions: Mapping[str, Any]) -> Object:
        """Delete an object, and return it; 404 if it does not exist, 409 if it is another one."""
        old = self._find(location)
        metadata = old["metadata"]
        for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            wanted = preconditions.get(field)
            if wanted is not None and wanted != metadata[field]:
                raise statuses.conflict(location.kind, location.name, _precondition(label, wanted, metadata[field]))
        new = _copied(old)
        self._record("DELETED", location.kind, new, old)
        return _copied(new)

    def delete_all(self, kind: Kind, matches: Callable[[Object], bool]) -> Sequence[Object]:
        """Delete the objects of a kind that match, as a kubelet does when it starts, and return them."""
        items = self.list(kind, matches)
        for item in items:
            self.delete(Location(kind, item["metadata"].get("namespace", ""), item["metadata"]["name"]), {})
        return items

    def compact(self) -> None:
        """Forget the history: a watch from an older revision gets 410."""
        self.compacted = self.revision
        self.history.clear()

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _find(self, location: Location) -> Object:
        found = self._objects.get(self._key(location, location.name))
        if found is None:
            raise statuses.not_found(location.kind, location.name)
        return found

    @staticmethod
    def _key(location: Location, name: str) -> Key:
        return location.kind.group, location.kind.plural, location.namespace, name

    def _admit(self, kind: Kind, new: Object, old: Object | None) -> None:
        """Set defaults, drop fields and validate, in the order of kube-apiserver."""
        name = new["metadata"].get("name", "")
        causes = [*validation.name_causes("metadata.name", name, validation.MAX_SUBDOMAIN, validation.SUBDOMAIN)]
        if kind.plural == "resourceslices":
            for device in new.setdefault("spec", {}).get("devices") or []:
                for taint in device.get("taints") or []:
                    taint.setdefault("timeAdded", self._now())
            self._drop(new["spec"])
            causes += validation.slice_causes(new, old, self._limits)
        if causes:
            raise statuses.invalid(kind, name, causes)

    def _drop(self, spec: Object) -> None:
        for holder in (spec, *(spec.get("devices") or [])):
            for field in self.drop_fields & holder.keys():
                del holder[field]

    def _record(
        self, change: Literal["ADDED", "MODIFIED", "DELETED"], kind: Kind, new: Object, old: Object | None
    ) -> None:
        self.revision += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        metadata = new["metadata"]
        key = (kind.group, kind.plural, metadata.get("namespace", ""), metadata["name"])
        if change == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = _copied(new)
        self.history.append(Change(self.revision, change, kind, _copied(new), old))
        self._changed()


def _copied(value: _Json) -> _Json:
    """Return a copy of a value of JSON. ``copy.deepcopy`` takes several times as long."""
    copied: Any = value
    if isinstance(value, dict):
        copied = {name: _copied(each) for name, each in value.items()}
    elif isinstance(value, list):
        copied = [*map(_copied, value)]
    return cast("_Json", copied)


def _checked(location: Location, body: Mapping[str, Any]) -> Object:
    """Return a copy of the known fields of a body whose kind and names are those of the path; 400 otherwise."""
    kind = location.kind
    if (body.get("kind"), body.get("apiVersion")) != (kind.name, kind.api_version):
        given = f"{body.get('apiVersion', '')}, Kind={body.get('kind', '')}"
        raise statuses.bad_request(f"the object provided is {given}, not {kind.api_version}, Kind={kind.name}")
    new: Object = _copied(dict(body))
    metadata = new.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise statuses.bad_request("metadata is not an object")
    if location.name and metadata.get("name", "") != location.name:
        text = (
            f"the name of the object ({metadata.get('name', '')}) does not match the name on the URL ({location.name})"
        )
        raise statuses.bad_request(text)
    if location.namespace and metadata.get("namespace", location.namespace) != location.namespace:
        raise statuses.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return new


def _merged(location: Location, new: Object, old: Object) -> Object:
    """Return an update with what it cannot change taken from the old object."""
    if location.subresource == "status":
        new = {**_copied(old), "status": new.get("status", {})}
    elif location.kind.status:
        new = {**new, "status": _copied(old.get("status", {}))}
        if "status" not in old:
            del new["status"]
    metadata, before = new["metadata"], old["metadata"]
    for field in (*_SERVER_FIELDS, "name", "namespace"):
        metadata.pop(field, None)
        if field in before:
            metadata[field] = before[field]
    metadata.pop("resourceVersion", None)
    return new


def _precondition(label: str, wanted: object, actual: object) -> str:
    return f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {actual}"
