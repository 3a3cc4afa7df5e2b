"""The objects of the stand-in API server, as its administrator reads and writes them, without HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kubelet_standin.apiserver.kinds import Location, locate, selector
from kubelet_standin.apiserver.store import Store

Object = dict[str, Any]


class Objects:
    """Requests without HTTP, faults, tokens and rules; watches see their changes. For the server's event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, path: str) -> Object:
        """Return an object. This and the following methods raise StatusError as the API does."""
        return self._store.get(self._locate(path))

    def list(self, path: str, field_selector: str = "") -> Sequence[Object]:
        """Return the objects of a collection."""
        location = self._locate(path)
        return self._store.list(location.kind, selector(field_selector, location))

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """Create an object in a collection; ``kind`` and ``apiVersion`` may be missing."""
        location = self._locate(path)
        return self._store.create(location, _typed(location, body))

    def update(self, path: str, body: Mapping[str, Any]) -> Object:
        """Replace an object; ``.../status`` replaces its status only."""
        location = self._locate(path)
        return self._store.update(location, _typed(location, body))

    def delete(self, path: str) -> None:
        """Delete an object."""
        self._store.delete(self._locate(path), {})

    def delete_collection(self, path: str, field_selector: str = "") -> int:
        """Delete the objects of a collection, as a kubelet does with the ResourceSlices of its node when it starts.

        Returns their number.
        """
        location = self._locate(path)
        return len(self._store.delete_all(location.kind, selector(field_selector, location)))

    def _locate(self, path: str) -> Location:
        location = locate(path)
        if location is None:
            raise KeyError(f"{path} is not the path of a resource")
        return location


def _typed(location: Location, body: Mapping[str, Any]) -> Object:
    return {"kind": location.kind.name, "apiVersion": location.kind.api_version, **body}
