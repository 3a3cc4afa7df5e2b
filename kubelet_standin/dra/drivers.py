"""The DRA drivers that the stand-in kubelet has registered (pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from kubelet_standin.aio import background_task
from kubelet_standin.api import dra_health_pb2 as health_pb
from kubelet_standin.dra.health import HealthCache
from kubelet_standin.dra.settings import DraFaults, DraTimings
from kubelet_standin.dra.watcher import Registry
from kubelet_standin.events import Emit
from kubelet_standin.versions import DRA_SERVICES, HEALTH_V1ALPHA1, KubeletVersion

Wipe = Callable[[str], Awaitable[None]]

Response = TypeVar("Response", bound="Message")


class DriverView(NamedTuple):
    """A registered socket of a driver."""

    endpoint: str
    service: str
    """The name of the service in ``supported_versions`` that the kubelet uses."""
    health_service: str
    """The name of the health service that the kubelet uses; empty for none."""
    connected: bool


class DriverError(Exception):
    """A driver is not registered, or did not answer."""


@dataclass(frozen=True)
class Setup:
    """What all drivers of one run of the kubelet share."""

    registry: Registry
    version: KubeletVersion
    timings: DraTimings
    faults: DraFaults
    health: HealthCache
    watch_health: bool
    wipe: Wipe | None
    """Deletes the ResourceSlices of a driver on the node, or of all drivers (empty)."""
    rng: random.Random
    emit: Emit


class Driver:
    """One registered socket: its connection, which is kept open, and its health stream."""

    def __init__(self, name: str, endpoint: str, service: str, announced: Sequence[str], setup: Setup) -> None:
        self.name = name
        self.endpoint = endpoint
        self.service = service
        known = [each for each in setup.version.health_services if each in announced]
        self.health_service = known[0] if known else HEALTH_V1ALPHA1 if setup.version.watches_unannounced_health else ""
        self.connected = False
        self._setup = setup
        self._channel = setup.registry.channel(endpoint)

    async def run(self, changed: Callable[[], None]) -> None:
        """Keep the connection open, and watch the health, until this is cancelled."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self._setup.watch_health and self.health_service:
                    await stack.enter_async_context(background_task(self._watch_health()))
                while True:
                    state = self._channel.get_state(try_to_connect=True)
                    connected = state is grpc.ChannelConnectivity.READY
                    if connected != self.connected:
                        self.connected = connected
                        name = "driver-connected" if connected else "driver-disconnected"
                        self._setup.emit(name, driver=self.name, endpoint=self.endpoint)
                        changed()
                    await self._channel.wait_for_state_change(state)
        finally:
            self.connected = False
            await self._channel.close(None)

    async def call(self, method: str, request: Message, response: type[Response]) -> Response:
        """Call a method of the service that was chosen at registration. Raises DriverError."""
        call = self._channel.unary_unary(
            f"/{DRA_SERVICES[self.service]}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )(request, timeout=self._setup.timings.call)
        try:
            result: Response = await call
        except grpc.aio.AioRpcError as error:
            raise DriverError(f"{method}: rpc error: code = {error.code().name} desc = {error.details()}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise DriverError(f"{method}: the kubelet has stopped") from None  # the connection was closed
        return result

    async def _watch_health(self) -> None:
        """Open the health stream again and again; newer versions give up if the driver has no such service."""
        while True:
            try:
                await self._health_stream()
            except grpc.aio.AioRpcError as error:
                unknown = error.code() is grpc.StatusCode.UNIMPLEMENTED
                if unknown and not self._setup.version.watches_unannounced_health:
                    return
            finally:
                self._setup.health.clear(self.name)
            await asyncio.sleep(self._setup.timings.health_retry)

    async def _health_stream(self) -> None:
        method = self._channel.unary_stream(
            f"/{self.health_service}/NodeWatchResources",
            request_serializer=health_pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb.NodeWatchResourcesResponse.FromString,
        )
        async for response in method(health_pb.NodeWatchResourcesRequest()):
            self._setup.health.update(self.name, response)
            self._setup.emit("health-reported", driver=self.name, devices=len(response.devices))


class Drivers:
    """All registered drivers, and the deletion of the ResourceSlices of those that are away for too long."""

    def __init__(self, setup: Setup) -> None:
        """Begin to delete all ResourceSlices of the node, as every kubelet does when it starts."""
        self._setup = setup
        self._registered: dict[str, list[Driver]] = {}
        self._tasks: dict[Driver, asyncio.Task[None]] = {}
        self._pending: dict[str, asyncio.TimerHandle] = {}
        self._wipes: set[asyncio.Task[None]] = set()
        self._start_wipe("")

    @property
    def views(self) -> dict[str, tuple[DriverView, ...]]:
        """The registered sockets of each driver, in the order of their registration."""
        return {
            name: tuple(
                DriverView(each.endpoint, each.service, each.health_service, each.connected) for each in drivers
            )
            for name, drivers in self._registered.items()
        }

    def get(self, name: str) -> Driver:
        """Return the latest driver that is connected, or else the latest one. Raises DriverError."""
        drivers = self._registered.get(name, [])
        if not drivers:
            raise DriverError(f"DRA driver {name} is not registered")
        return next((each for each in reversed(drivers) if each.connected), drivers[-1])

    def choose_service(self, name: str, endpoint: str, supported: Sequence[str]) -> str:
        """Return the first supported service that the kubelet knows. Raises DriverError."""
        prefix = f"invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: "
        if not supported:
            raise DriverError(f"{prefix}empty list of supported gRPC services (aka supported versions)")
        for service in supported:
            if service in DRA_SERVICES:
                return service
        raise DriverError(
            f"{prefix}none of services supported by the plugin ({_quoted(supported)}) are supported by the kubelet "
            f"({_quoted(DRA_SERVICES)})"
        )

    def add(self, name: str, endpoint: str, supported: Sequence[str]) -> None:
        """Register a driver, and begin to connect to it. Raises DriverError."""
        service = self.choose_service(name, endpoint, supported)
        if any(each.endpoint == endpoint for each in self._registered.get(name, ())):
            raise DriverError(f"endpoint {endpoint} already registered for DRA driver plugin {name}")
        driver = Driver(name, endpoint, service, supported, self._setup)
        self._registered.setdefault(name, []).append(driver)
        self._tasks[driver] = asyncio.create_task(driver.run(lambda: self._sync(name)))
        self._sync(name)

    async def remove(self, name: str, endpoint: str) -> None:
        """Forget a driver, and close the connection to it."""
        drivers = self._registered.get(name, [])
        for driver in [each for each in drivers if each.endpoint == endpoint]:
            drivers.remove(driver)
            if not drivers:
                del self._registered[name]
            await _cancelled([self._tasks.pop(driver)])
        self._sync(name)

    async def close(self) -> None:
        """End all connections and deletions."""
        for handle in self._pending.values():
            handle.cancel()
        await _cancelled([*self._tasks.values(), *self._wipes])
        self._registered.clear()

    def _sync(self, name: str) -> None:
        """Begin or call off the deletion of a driver's ResourceSlices; one that has begun is not called off."""
        if any(driver.connected for driver in self._registered.get(name, ())):
            if handle := self._pending.pop(name, None):
                handle.cancel()
        elif name not in self._pending:
            self._pending[name] = asyncio.get_running_loop().call_later(
                self._setup.timings.wipe, self._wipe_is_due, name
            )

    def _wipe_is_due(self, name: str) -> None:
        del self._pending[name]
        self._start_wipe(name)

    def _start_wipe(self, name: str) -> None:
        if self._setup.wipe is None:
            return
        task = asyncio.create_task(self._wipe(name, self._setup.wipe))
        self._wipes.add(task)
        task.add_done_callback(self._wipes.discard)

    async def _wipe(self, name: str, wipe: Wipe) -> None:
        """Delete ResourceSlices until it has worked once."""
        first = pause = self._setup.timings.wipe_retry
        while True:
            failure = await _failure(wipe(name))
            if not failure:
                self._setup.emit("slices-wiped", driver=name)
                return
            self._setup.emit("slices-not-wiped", driver=name, reason=failure)
            await asyncio.sleep(pause * self._setup.rng.uniform(1.0, 1.2))
            pause = min(2 * pause, 300 * first)


async def _failure(work: Awaitable[None]) -> str:
    """Return why the work failed; empty if it did not."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - a kubelet repeats it, whatever it is
        return str(error) or repr(error)
    return ""


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _quoted(names: Sequence[str] | dict[str, str]) -> str:
    """Return names as Go's %q formats a slice of them."""
    return "[" + " ".join(f'"{name}"' for name in names) + "]"
