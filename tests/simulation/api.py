"""A simulated API server: the store of the stand-in API server without HTTP, and its failures.

The stand-in is held to two versions of kube-apiserver by ``tests/api_contract``, and so is this one.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from kubelet_standin.apiserver.access import Received
from kubelet_standin.apiserver.handler import process
from kubelet_standin.apiserver.kinds import Location, locate, selector
from kubelet_standin.apiserver.objects import Objects
from kubelet_standin.apiserver.server import NEWEST
from kubelet_standin.apiserver.statuses import StatusError
from kubelet_standin.apiserver.store import Store
from kubelet_standin.apiserver.watches import Watch, WatchOptions
from tests.simulation.processes import Process, System, current
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.framework.apiserver.protocol import (
        RESOURCE_SLICES,
        ApiError,
        ApiUnavailableError,
        Request,
        WatchEvent,
        decode_event,
        from_answer,
    )
    from aosp_plugin.framework.timing import background_task

if TYPE_CHECKING:
    from tests.simulation.host import Host

NODE = "node-1"
BOOKMARK = 60.0
"""Seconds between two bookmarks of a watch."""
LONGEST_WATCH = 1800.0
"""Seconds after which a watch ends."""


class ApiServer:
    """The objects, and what makes requests fail."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self.is_away = False
        self.is_slow = 0.0
        self.is_fast_again = asyncio.Event()
        self.refuses = 0
        """The status of requests that it refuses."""
        self.loses_events = False
        self.answered: Callable[[Process, Received, dict[str, Any]], object] = lambda *_: None
        """Called with each request of a process that succeeds, and with its answer."""
        self.last_trouble = float("-inf")
        """When a request failed last that no client is to blame for, in simulated seconds."""
        self.open_watches = 0
        self._uids = 0
        self._slices: list[dict[str, Any]] = []
        self._slices_at = -1
        """The revision of ``_slices``."""
        self._next_change = asyncio.Event()
        self._watches: list[Watch] = []
        self.store = Store(drop_fields=(), minor=NEWEST, changed=self._changed, now=host.wall_time, uid=self._next_uid)
        self.objects = Objects(self.store)
        """The requests of an administrator."""

    @property
    def running(self) -> bool:
        """Whether it answers the kubelet."""
        return not self.is_away

    def slices(self) -> list[dict[str, Any]]:
        """Return the ResourceSlices, which nobody changes."""
        if self._slices_at != self.store.revision:
            self._slices_at = self.store.revision
            self._slices = self.store.list(located(RESOURCE_SLICES).kind, lambda _: True)
        return self._slices

    def watch(self, location: Location, field_selector: str) -> Watch:
        """Return a new watch, which begins with what exists."""
        options = WatchOptions(
            location.kind, selector(field_selector, location), None, bookmarks=True, seconds=LONGEST_WATCH
        )
        watch = Watch(
            options,
            self.store,
            changed=lambda: self._next_change,
            silent=lambda: self.loses_events,
            bookmark_interval=BOOKMARK,
        )
        self._watches.append(watch)
        return watch

    def slow_down(self, seconds: float) -> None:
        """Let requests take longer; with 0, answer all of them at once."""
        self.is_slow = seconds
        if seconds:
            self.is_fast_again.clear()
        else:
            self.is_fast_again.set()

    def end_watches(self) -> None:
        """End all watches, as a server that restarts."""
        for watch in self._watches:
            watch.ended = True
        self._watches.clear()
        self._changed()

    def _changed(self) -> None:
        changed, self._next_change = self._next_change, asyncio.Event()
        changed.set()

    def _next_uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"


def located(path: str) -> Location:
    """Return what a path names."""
    location = locate(path)
    assert location is not None, path
    return location


class SimulatedRequests(System):
    """How the client of the plugin sends requests, without HTTP."""

    limits: Any

    def __init__(
        self,
        _credentials: object,
        *,
        observer: Callable[[str, str, str, float], None] = lambda _verb, _resource, _code, _seconds: None,
        **_options: object,
    ) -> None:
        self._observer = observer
        self._server: ApiServer = self.host.api
        self._process = current()

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""

    async def send(
        self, request: Request, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | Any = None
    ) -> bytes:
        """Send a request, and return the body of an answer with status 2xx."""
        try:
            await self._sent(request)
        except ApiUnavailableError:
            if self._process.alive and not self._server.is_away and self._server.host.rng.random() < 0.5:
                with contextlib.suppress(StatusError):  # it comes too late
                    self._answer(request, query or {}, body)
            raise
        try:
            return json.dumps(self._answer(request, query or {}, body)).encode()
        except StatusError as error:
            raise from_answer(request, error.code, json.dumps(error.body()).encode()) from None

    async def watch(
        self, path: str, *, field_selector: str = "", resource_version: str, opened: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[WatchEvent, None]:
        """See ``ApiClient``. It begins with what exists, as for the version "0" of the plugin."""
        assert resource_version == "0"
        request = Request("watch", path)
        await self._sent(request)
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        async with background_task(self._server.watch(located(path), field_selector).run(lines.put)) as running:
            running.add_done_callback(lambda _: lines.put_nowait(b""))
            opened()
            self._server.open_watches += 1
            try:
                while line := await lines.get():
                    yield decode_event(request, line)
                    if self._server.is_away:
                        raise ApiUnavailableError(request, "connection lost")
            finally:
                self._server.open_watches -= 1
        if self._server.host.rng.random() < 0.5:
            raise ApiError(request, "too old resource version", status=410, reason="Expired")

    def _answer(self, request: Request, query: Mapping[str, str], body: Any) -> dict[str, Any]:
        """Return the body of the answer. Raises StatusError."""
        received = Received(request.verb, located(request.path))
        data = b"" if body is None else json.dumps(body).encode()
        content_type = "application/json-patch+json" if request.verb == "patch" else "application/json"
        answer = process(self._server.store, received, query, content_type, data)[1]
        self._server.answered(self._process, received, answer)
        return answer

    async def _sent(self, request: Request) -> None:
        """Let a request take its time, and fail if a fault says so. Its effect may come without an answer."""
        rng, server = self._server.host.rng, self._server
        await asyncio.sleep(rng.uniform(0.001, 0.01))
        is_late, was_slow = False, bool(server.is_slow)
        if was_slow:
            is_late = server.is_slow > self.limits.request
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(server.is_slow, self.limits.request)):
                    await server.is_fast_again.wait()
                    is_late = False
        refused = server.refuses and rng.random() < 0.5
        if was_slow or server.is_away or refused:
            server.last_trouble = server.host.monotonic()
        if not self._process.alive or server.is_away or is_late:
            self._observer(request.verb, "", "error", 0.0)
            raise ApiUnavailableError(request, "cannot connect")
        if refused:
            raise ApiError(request, "refused", status=server.refuses, retry_after=1.0)
