"""A simulated API server: nodes, ResourceClaims and ResourceSlices, their versions and watches, and its failures."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from aosp_plugin.framework.apiserver.protocol import (
    NODES,
    RESOURCE_SLICES,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    NotFoundError,
    ObjectList,
    Request,
    WatchEvent,
)
from tests.simulation.processes import current

if TYPE_CHECKING:
    from tests.simulation.host import Host

NODE = "node-1"
BOOKMARK = 60.0
"""Seconds without an event after which a watch has a bookmark."""


class ApiServer:
    """The objects by path."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self.objects: dict[str, dict[str, Any]] = {}
        self.is_away = False
        self.is_slow = 0.0
        self.throttles = False
        self.loses_events = False
        self._version = 0
        self._uids = 0
        self._watches: list[asyncio.Queue[WatchEvent | None]] = []
        self.create(NODES, {"kind": "Node", "metadata": {"name": NODE}, "spec": {}, "status": {}})

    def create(self, collection: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Store an object. Raises KeyError if it exists."""
        path = f"{collection}/{body['metadata']['name']}"
        if path in self.objects:
            raise KeyError(path)
        self._uids += 1
        found = copy.deepcopy(dict(body))
        found["metadata"] = {"uid": f"uid-{self._uids}", **found["metadata"]}
        return self._stored(path, found, "ADDED")

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object."""
        return self._stored(path, copy.deepcopy(dict(body)), "MODIFIED")

    def delete(self, path: str) -> None:
        """Delete an object, if it exists."""
        if (found := self.objects.pop(path, None)) is not None:
            self._report("DELETED", found)

    def slices(self) -> list[dict[str, Any]]:
        """Return the ResourceSlices."""
        return [each for path, each in sorted(self.objects.items()) if path.startswith(RESOURCE_SLICES)]

    def end_watches(self) -> None:
        """End all watches, as a server that restarts."""
        for watch in self._watches:
            watch.put_nowait(None)

    def _stored(self, path: str, body: dict[str, Any], event: str) -> dict[str, Any]:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = body
        self._report(event, body)
        return copy.deepcopy(body)

    def _report(self, event: str, body: dict[str, Any]) -> None:
        if body.get("kind") == "ResourceSlice" and not self.loses_events:
            for watch in self._watches:
                watch.put_nowait(WatchEvent(event, copy.deepcopy(body), body["metadata"]["resourceVersion"]))  # type: ignore[arg-type]


class SimulatedApiClient:
    """The client of the plugin: ``ApiClient`` without HTTP."""

    def __init__(self, server: ApiServer, observer: Callable[[str, str, str], None]) -> None:
        self._server, self._observer = server, observer
        self._process = current()

    async def close(self) -> None:
        """See ``ApiClient``."""

    async def get(self, path: str, type: type[Any] = dict) -> Any:  # noqa: A002 - as in ApiClient
        """See ``ApiClient``."""
        request = Request("get", path)
        await self._sent(request)
        if path not in self._server.objects:
            raise NotFoundError(request, "not found", status=404, reason="NotFound")
        found = self._server.objects[path]
        return copy.deepcopy(found) if type is dict else msgspec.json.decode(msgspec.json.encode(found), type=type)

    async def list(self, path: str, *, field_selector: str = "") -> ObjectList:  # noqa: ARG002 - one node, one driver
        """See ``ApiClient``."""
        await self._sent(Request("list", path))
        return ObjectList(copy.deepcopy(self._server.slices()), str(self._server._version))

    async def watch(
        self, path: str, *, field_selector: str = "", resource_version: str, opened: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[WatchEvent, None]:
        """See ``ApiClient``."""
        del field_selector, resource_version
        request = Request("watch", path)
        await self._sent(request)
        events: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        self._server._watches.append(events)
        try:
            opened()
            while True:
                try:
                    async with asyncio.timeout(BOOKMARK):
                        event = await events.get()
                except TimeoutError:
                    event = WatchEvent("BOOKMARK", {"metadata": {}}, str(self._server._version))
                if event is None:
                    break
                yield event
                if self._server.is_away:
                    raise ApiUnavailableError(request, "connection lost")
        finally:
            self._server._watches.remove(events)
        if self._server.host.rng.random() < 0.5:
            raise ApiError(request, "too old resource version", status=410, reason="Expired")

    async def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """See ``ApiClient``."""
        request = Request("create", path)
        await self._sent(request)
        if dry_run:
            return copy.deepcopy(dict(body))
        try:
            return self._server.create(path, body)
        except KeyError:
            raise ConflictError(request, "exists", status=409, reason="AlreadyExists") from None

    async def update(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """See ``ApiClient``."""
        request = Request("update", path)
        await self._sent(request)
        found = self._server.objects.get(path)
        if found is None:
            raise NotFoundError(request, "not found", status=404, reason="NotFound")
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ConflictError(request, "modified", status=409, reason="Conflict")
        return self._server.replace(path, body)

    async def delete(self, path: str, *, uid: str = "", resource_version: str = "") -> None:
        """See ``ApiClient``."""
        request = Request("delete", path)
        await self._sent(request)
        found = self._server.objects.get(path)
        if found is None:
            raise NotFoundError(request, "not found", status=404, reason="NotFound")
        metadata = found["metadata"]
        if uid not in {"", metadata["uid"]} or resource_version not in {"", metadata["resourceVersion"]}:
            raise ConflictError(request, "precondition", status=409, reason="Conflict")
        self._server.delete(path)

    async def _sent(self, request: Request) -> None:
        """Let a request take its time, and fail if a fault says so. Its effect may come without an answer."""
        rng = self._server.host.rng
        await asyncio.sleep(rng.uniform(0.001, 0.01) + self._server.is_slow)
        if not self._process.alive or self._server.is_away or self._server.is_slow > 15.0:
            self._observer(request.verb, "", "error")
            raise ApiUnavailableError(request, "cannot connect")
        if self._server.throttles and rng.random() < 0.5:
            raise ApiError(request, "too many requests", status=429, retry_after=1.0)
