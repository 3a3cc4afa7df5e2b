"""The plugins during one run of the kubelet: connecting, following their streams, losing them.

pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go (connectClient, runClient).
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.deviceplugin.directory import PluginDirectory
from kubelet_standin.deviceplugin.endpoint import CallError, Endpoint
from kubelet_standin.deviceplugin.faults import Faults
from kubelet_standin.deviceplugin.registration import Registration
from kubelet_standin.deviceplugin.resources import ManagerState
from kubelet_standin.deviceplugin.tracking import Tracker, TrackerByName
from kubelet_standin.events import Emit
from kubelet_standin.versions import KubeletVersion

_log = logging.getLogger(__name__)

_GRACE_MARGIN = 0.01
"""Seconds: the event loop's clock may be that much ahead of the kubelet's."""


@dataclass(frozen=True)
class PluginSettings:
    """Settings for the connections to all plugins; times are in seconds, ``max_message`` is in bytes."""

    directory: PluginDirectory
    version: KubeletVersion
    grace_period: float
    dial_timeout: float
    max_message: int
    clock: Callable[[], float]


class PluginManager:
    """All plugins that registered since the kubelet's start. Stores the devices that they report in ``state``."""

    def __init__(
        self,
        settings: PluginSettings,
        state: ManagerState,
        faults: Faults,
        *,
        save: Callable[[], None],
        emit: Emit,
        notify: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._state = state
        self._faults = faults
        self._write_checkpoint = save
        self._emit = emit
        self._notify = notify
        self._tracker = TrackerByName[Endpoint]() if settings.version.identifies_by_name else Tracker[Endpoint]()
        self.current = self._tracker.current
        """The current plugin of each resource, including stopped ones."""
        self._endpoints: list[Endpoint] = []
        self._tasks: dict[asyncio.Task[None], Endpoint | None] = {}
        self._timers: list[asyncio.TimerHandle] = []
        for resource in state.listed():
            # A resource from the checkpoint has a stopped endpoint (manager.go:604-610). Its channel is not used.
            endpoint = self._endpoint(resource, "")
            self.current[resource] = endpoint
            self._stopped(endpoint)

    def streams(self, resource: str) -> int:
        """Return the number of open streams of a resource."""
        return sum(endpoint.streams for endpoint in self._of(resource))

    def _of(self, resource: str | None) -> list[Endpoint]:
        return [endpoint for endpoint in self._endpoints if resource in {None, endpoint.resource}]

    def _endpoint(self, resource: str, name: str) -> Endpoint:
        directory = self._settings.directory
        endpoint = Endpoint(resource, directory.endpoint_path(name), directory.channel, self._settings.max_message)
        self._endpoints.append(endpoint)
        return endpoint

    async def accept(self, registration: Registration) -> str | None:
        """Process a valid registration: dial the plugin and open its stream. Return the error text, or None."""
        endpoint = self._endpoint(registration.resource_name, registration.endpoint)
        self._tracker.on_dial(endpoint)
        connected = False
        try:
            await endpoint.dial(self._settings.dial_timeout)
            refusal = self._tracker.refusal(endpoint)
            if refusal is not None:
                return refusal
            endpoint.options = await endpoint.fetch_options()
            connected = True
        except CallError as error:
            return str(error)
        finally:
            if not connected:
                self._tracker.on_failed(endpoint)
                await self._close(endpoint)
        self._tracker.on_connected(endpoint)
        if not self._faults.never_open_stream:
            self._spawn(self._listen(endpoint), endpoint)
        self._notify()
        return None

    def _spawn(self, work: Coroutine[Any, Any, None], endpoint: Endpoint | None = None) -> None:
        """Start a task; ``endpoint`` is the plugin whose stream it follows."""
        task = asyncio.create_task(work)
        self._tasks[task] = endpoint
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Remove a task that succeeded. A failed one stays, and ``close`` raises its error."""
        if task.cancelled() or task.exception() is None:
            del self._tasks[task]

    async def _listen(self, endpoint: Endpoint) -> None:
        """Follow one stream to its end. After its last stream a plugin is lost, and is not dialled again."""
        resource = self._state.resource(endpoint.resource)
        plugin = {"resource": endpoint.resource, "endpoint": os.path.basename(endpoint.path)}

        def opened() -> None:
            resource.streams_opened += 1
            self._emit("stream-opened", **plugin)

        def on_message(message: pb.ListAndWatchResponse, size: int) -> None:
            if self._faults.ignore_devices or endpoint not in self._endpoints:  # a closed one restores no devices
                return
            resource.replace(message, size)
            self._save()
            self._devices_changed(endpoint.resource)

        resource.last_stream_end = await endpoint.listen(opened, on_message)
        self._emit("stream-ended", **plugin, reason=resource.last_stream_end)
        if endpoint.streams == 0:
            await self._ended(endpoint)

    def _devices_changed(self, name: str) -> None:
        resource = self._state.resource(name)
        self._emit(
            "devices-changed",
            resource=name,
            capacity=resource.capacity,
            allocatable=len(resource.healthy),
            unhealthy=len(resource.unhealthy),
        )

    def _save(self) -> None:
        """Write the checkpoint; log a failure (manager.go genericDeviceUpdateCallback, GetCapacity)."""
        try:
            self._write_checkpoint()
        except OSError as error:
            _log.error("Writing checkpoint encountered %s", error)

    async def _ended(self, endpoint: Endpoint) -> None:
        effect = self._tracker.on_end(endpoint)
        if effect.lost:
            self._lose(endpoint.resource)
        if effect.close is not None:
            await self._close(effect.close)

    def _lose(self, resource: str) -> None:
        self._state.resource(resource).lose()
        self._stopped(self.current[resource])
        self._devices_changed(resource)

    def _stopped(self, endpoint: Endpoint) -> None:
        """Begin the grace period. Its end is a change of state, also if nobody asks for the resource then."""
        endpoint.stopped_at = self._settings.clock()
        delay = self._settings.grace_period + _GRACE_MARGIN
        self._timers.append(asyncio.get_running_loop().call_later(delay, self.expire))

    def lose_devices(self) -> None:
        """Lose all resources, without the end of a stream."""
        for resource in self.current:
            self._lose(resource)

    async def _close(self, endpoint: Endpoint) -> None:
        if endpoint in self._endpoints:
            self._endpoints.remove(endpoint)
        await endpoint.close()

    def expire(self) -> None:
        """Forget resources whose plugin was lost for longer than the grace period, like GetCapacity."""
        now = self._settings.clock()
        expired = False
        for resource in list(self._state.listed()):
            endpoint = self.current.get(resource)
            stopped_at = endpoint.stopped_at if endpoint is not None else float("-inf")
            if stopped_at is not None and now - stopped_at > self._settings.grace_period:
                self.current.pop(resource, None)
                self._state.resource(resource).forget()
                self._emit("resource-forgotten", resource=resource)
                expired = True
        if expired:
            self._save()

    async def drop_streams(self, resource: str | None) -> None:
        """Cancel the open streams of a resource, or all streams, and wait until they have ended."""
        endpoints = [endpoint for endpoint in self._of(resource) if endpoint.streams]
        tasks = [task for task, endpoint in self._tasks.items() if endpoint in endpoints]
        for endpoint in endpoints:
            endpoint.drop_streams()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Close all connections at once, like the death of the kubelet; the state does not change."""
        for timer in self._timers:
            timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for endpoint in list(self._endpoints):
            await self._close(endpoint)
        for result in results:
            if isinstance(result, Exception):
                raise result
