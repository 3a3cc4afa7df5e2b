"""The plugins of one run of the kubelet: dialling them, listening to them, losing them.

pkg/kubelet/cm/devicemanager/manager.go (addEndpoint, runEndpoint) in 1.20, plugin/v1beta1/handler.go
(connectClient, runClient) in newer ones.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aosp_plugin.testing.directory import endpoint_path
from aosp_plugin.testing.endpoint import Endpoint, PluginError
from aosp_plugin.testing.tracking import Tracker, tracker_for

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aosp_plugin.framework.api import deviceplugin_pb2 as pb
    from aosp_plugin.testing.behaviour import Behaviour
    from aosp_plugin.testing.faults import Faults
    from aosp_plugin.testing.registration import Registration
    from aosp_plugin.testing.resources import Books

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What stays the same for all plugins; times are in seconds, ``max_message`` in bytes."""

    directory: str
    behaviour: Behaviour
    grace_period: float
    dial_timeout: float
    max_message: int
    clock: Callable[[], float]


class Plugins:
    """All plugins that registered since the kubelet's start. Writes into the books what they tell."""

    def __init__(
        self,
        settings: Settings,
        books: Books,
        faults: Faults,
        *,
        save: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._books = books
        self._faults = faults
        self._write_checkpoint = save
        self._notify = notify
        self._tracker: Tracker[Endpoint] = tracker_for(settings.behaviour)
        self._endpoints: list[Endpoint] = []
        self._tasks: dict[asyncio.Task[None], Endpoint | None] = {}
        for resource in books.listed():
            # Known from the checkpoint: a stopped endpoint (manager.go:604-610). Its channel is never used.
            endpoint = self._endpoint(resource, "")
            endpoint.stopped_at = settings.clock()
            self._tracker.current[resource] = endpoint

    @property
    def current(self) -> dict[str, Endpoint]:
        """The plugin that counts, by resource; stopped ones too."""
        return self._tracker.current

    def streams(self, resource: str) -> int:
        """How many streams are open for a resource."""
        return sum(endpoint.streams for endpoint in self._of(resource))

    def _of(self, resource: str | None) -> list[Endpoint]:
        return [endpoint for endpoint in self._endpoints if resource in {None, endpoint.resource}]

    def _endpoint(self, resource: str, name: str) -> Endpoint:
        path = endpoint_path(self._settings.directory, name)
        authority = self._settings.behaviour.authority(path)
        endpoint = Endpoint(resource, path, authority=authority, max_message=self._settings.max_message)
        self._endpoints.append(endpoint)
        return endpoint

    async def accept(self, registration: Registration) -> str | None:
        """Take a valid registration; return the error to answer it with, or None."""
        if self._settings.behaviour.synchronous:
            return await self._connect(registration)
        self._spawn(self._connect_later(registration))
        return None

    async def _connect_later(self, registration: Registration) -> None:
        registration.dial_error = await self._connect(registration)
        if registration.dial_error is not None:
            _log.error("Failed to dial device plugin with request %s: %s", registration, registration.dial_error)
        self._notify()

    async def _connect(self, registration: Registration) -> str | None:
        """Dial a plugin and open its stream; return why that failed, or None."""
        endpoint = self._endpoint(registration.resource_name, registration.endpoint)
        self._tracker.dialling(endpoint)
        connected = False
        try:
            await endpoint.dial(self._settings.dial_timeout)
            objection = self._tracker.objection(endpoint)
            if objection is not None:
                return objection
            endpoint.options = await self._options(endpoint, registration)
            connected = True
        except PluginError as error:
            return str(error)
        finally:
            if not connected:
                self._tracker.failed(endpoint)
                await self._close(endpoint)
        self._tracker.connected(endpoint)
        if not self._faults.never_open_stream:
            self._spawn(self._listen(endpoint), endpoint)
        self._notify()
        return None

    async def _options(self, endpoint: Endpoint, registration: Registration) -> pb.DevicePluginOptions:
        if self._settings.behaviour.synchronous:
            return await endpoint.fetch_options()
        return registration.options

    def _spawn(self, work: Coroutine[Any, Any, None], listens_to: Endpoint | None = None) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = listens_to
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Forget a task that went well; one that broke is kept, and ``close`` raises what broke it."""
        if task.cancelled() or task.exception() is None:
            del self._tasks[task]

    async def _listen(self, endpoint: Endpoint) -> None:
        """Follow one stream to its end; with its last stream a plugin is gone, and never asked again."""
        listing = self._books.listing(endpoint.resource)

        def opened() -> None:
            listing.streams_opened += 1
            self._notify()

        def on_message(message: pb.ListAndWatchResponse, size: int) -> None:
            listing.replace(message, size, self._settings.clock())
            self._save()
            self._notify()

        listing.last_stream_end = await endpoint.listen(opened, on_message)
        if endpoint.streams == 0:
            await self._ended(endpoint)
        self._notify()

    def _save(self) -> None:
        """Write the checkpoint; a failure is logged (manager.go genericDeviceUpdateCallback, GetCapacity)."""
        try:
            self._write_checkpoint()
        except OSError as error:
            _log.error("Writing checkpoint encountered %s", error)

    async def _ended(self, endpoint: Endpoint) -> None:
        end = self._tracker.ended(endpoint)
        if end.lost:
            self._books.listing(endpoint.resource).lose()
            self.current[endpoint.resource].stopped_at = self._settings.clock()
        if end.close is not None:
            await self._close(end.close)

    async def _close(self, endpoint: Endpoint) -> None:
        if endpoint in self._endpoints:
            self._endpoints.remove(endpoint)
        await endpoint.close()

    def expire(self) -> None:
        """Forget resources whose plugin has been gone for too long, as GetCapacity does."""
        now = self._settings.clock()
        expired = False
        for resource in list(self._books.listed()):
            endpoint = self.current.get(resource)
            stopped_at = endpoint.stopped_at if endpoint is not None else float("-inf")
            if stopped_at is not None and now - stopped_at > self._settings.grace_period:
                self.current.pop(resource, None)
                self._books.listing(resource).forget()
                expired = True
        if expired:
            self._save()

    async def drop_streams(self, resource: str | None) -> None:
        """Cancel the open streams of a resource, or of all, and return when they have ended."""
        endpoints = [endpoint for endpoint in self._of(resource) if endpoint.streams]
        tasks = [task for task, endpoint in self._tasks.items() if endpoint in endpoints]
        for endpoint in endpoints:
            endpoint.drop_streams()
        if tasks:
            await asyncio.wait(tasks)

    def open_second_stream(self, resource: str) -> None:
        """Call ListAndWatch once more on the connection of the plugin that counts."""
        endpoint = self.current[resource]
        self._spawn(self._listen(endpoint), endpoint)

    async def close(self) -> None:
        """Break everything at once, as the kubelet's death does; nothing of it gets into the books."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for endpoint in list(self._endpoints):
            await self._close(endpoint)
        for result in results:
            if isinstance(result, Exception):
                raise result
