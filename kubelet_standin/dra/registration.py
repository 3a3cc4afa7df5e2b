"""The stand-in kubelet's plugin manager (pkg/kubelet/pluginmanager): registers the sockets that the watcher finds."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from functools import partial
from typing import NamedTuple

import grpc

from kubelet_standin.api import pluginregistration_pb2 as pb
from kubelet_standin.dra.drivers import DriverError, Drivers, Setup
from kubelet_standin.dra.settings import DraRegistration

PLUGIN_TYPE = "DRAPlugin"
_SERVICE = "/pluginregistration.Registration"


class _Registered(NamedTuple):
    """A socket that the plugin manager considers registered."""

    number: int
    driver: str
    endpoint: str


class _Backoff(NamedTuple):
    """The pause after an operation that failed."""

    until: float
    pause: float


class PluginManager:
    """Compares the sockets that should be registered with those that are, once in each period.

    Operations on different sockets run side by side. One that failed is tried again after a pause that doubles.
    """

    def __init__(self, drivers: Drivers, setup: Setup, registrations: list[DraRegistration]) -> None:
        """``registrations`` receives every attempt."""
        self._drivers = drivers
        self._setup = setup
        self._registrations = registrations
        self._numbers = itertools.count()
        self._wanted: dict[str, int] = {}
        """The number of each socket; a socket that is created again has another one."""
        self._actual: dict[str, _Registered] = {}
        self._operations: dict[str, asyncio.Task[None]] = {}
        self._backoffs: dict[str, _Backoff] = {}

    def appeared(self, path: str) -> None:
        """Register the socket at ``path``, or register it again."""
        if not self._setup.faults.miss_sockets:
            self._wanted[path] = next(self._numbers)

    def disappeared(self, path: str) -> None:
        """Deregister what was registered at ``path``."""
        self._wanted.pop(path, None)

    async def run(self) -> None:
        """Reconcile in each period, until this is cancelled."""
        try:
            while True:
                self._reconcile()
                await asyncio.sleep(self._setup.timings.reconcile)
        finally:
            for operation in self._operations.values():
                operation.cancel()

    def _reconcile(self) -> None:
        for path, registered in list(self._actual.items()):
            if self._wanted.get(path) != registered.number:
                self._start(path, partial(self._deregister, path, registered))
        for path, number in list(self._wanted.items()):
            actual = self._actual.get(path)
            if actual is None or actual.number != number:
                self._start(path, partial(self._register, path, number))

    def _start(self, path: str, operation: Callable[[], Coroutine[None, None, None]]) -> None:
        """Start an operation, unless one runs for this socket or its last failure was too recent."""
        backoff = self._backoffs.get(path)
        if path not in self._operations and (backoff is None or _now() > backoff.until):
            self._operations[path] = asyncio.create_task(self._run(path, operation()))

    async def _run(self, path: str, operation: Coroutine[None, None, None]) -> None:
        try:
            await operation
        except DriverError:
            before, timings = self._backoffs.get(path), self._setup.timings
            pause = timings.first_retry if before is None else min(2 * before.pause, timings.last_retry)
            self._backoffs[path] = _Backoff(_now() + pause, pause)
        else:
            self._backoffs.pop(path, None)
        finally:
            del self._operations[path]

    async def _deregister(self, path: str, registered: _Registered) -> None:
        del self._actual[path]
        await self._drivers.remove(registered.driver, registered.endpoint)
        self._setup.emit("driver-deregistered", driver=registered.driver, endpoint=registered.endpoint)

    async def _register(self, path: str, number: int) -> None:
        """Register a socket; the attempt and its outcome are recorded. Raises DriverError."""
        attempt = DraRegistration(path)
        self._registrations.append(attempt)
        self._setup.emit("registration-started", endpoint=path)
        try:
            async with self._setup.registry.channel(path) as channel:
                await self._handshake(channel, attempt, number)
        except (grpc.aio.AioRpcError, OSError) as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else error.strerror
            self._failed(attempt, f"failed to get plugin info using RPC GetInfo at socket {path}, err: {details}")
            raise DriverError(attempt.outcome) from None
        except DriverError as error:
            self._failed(attempt, str(error))
            raise
        attempt.outcome = "ok"
        self._setup.emit("driver-registered", driver=attempt.driver, endpoint=attempt.endpoint)

    async def _handshake(self, channel: grpc.aio.Channel, attempt: DraRegistration, number: int) -> None:
        """Do the steps of operation_generator.go, GenerateRegisterPluginFunc, in their order."""
        timings, path = self._setup.timings, attempt.path
        await _ready(channel, timings.dial)
        info = await channel.unary_unary(
            f"{_SERVICE}/GetInfo",
            request_serializer=pb.InfoRequest.SerializeToString,
            response_deserializer=pb.PluginInfo.FromString,
        )(pb.InfoRequest(), timeout=timings.get_info)
        attempt.driver, attempt.endpoint = info.name, info.endpoint or path
        attempt.supported_versions = tuple(info.supported_versions)
        try:
            self._validate(info.type, attempt)
        except DriverError as error:
            await self._notify(channel, pb.RegistrationStatus(error=f"RegisterPlugin error -- {error}"))
            raise
        self._actual[path] = _Registered(number, info.name, attempt.endpoint)
        try:
            self._drivers.add(info.name, attempt.endpoint, attempt.supported_versions)
        except DriverError as error:
            if self._setup.version.repeats_failed_registration:
                del self._actual[path]
            refusal = f"RegisterPlugin error -- plugin registration failed with err: {error}"
            await self._notify(channel, pb.RegistrationStatus(error=refusal))
            raise
        try:
            await self._notify(channel, pb.RegistrationStatus(plugin_registered=True))
        except DriverError:
            if self._setup.version.repeats_failed_registration:
                del self._actual[path]
                await self._drivers.remove(info.name, attempt.endpoint)
            raise

    def _validate(self, plugin_type: str, attempt: DraRegistration) -> None:
        """Raise DriverError if the kubelet refuses the driver."""
        if plugin_type != PLUGIN_TYPE:
            raise DriverError(f"no handler registered for plugin type: {plugin_type} at socket {attempt.path}")
        problem = self._setup.faults.refuse
        if problem is None:
            try:
                self._drivers.choose_service(attempt.driver, attempt.endpoint, attempt.supported_versions)
            except DriverError as error:
                problem = str(error)
        if problem is not None:
            raise DriverError(f"plugin validation failed with err: {problem}")

    async def _notify(self, channel: grpc.aio.Channel, status: pb.RegistrationStatus) -> None:
        """Send the outcome to the driver. Raises DriverError."""
        if self._setup.faults.skip_notify:
            raise DriverError("failed to send registration status")
        try:
            await channel.unary_unary(
                f"{_SERVICE}/NotifyRegistrationStatus",
                request_serializer=pb.RegistrationStatus.SerializeToString,
                response_deserializer=pb.RegistrationStatusResponse.FromString,
            )(status, timeout=self._setup.timings.notify)
        except grpc.aio.AioRpcError as error:
            raise DriverError(f"failed to send registration status: {error.details()}") from None

    def _failed(self, attempt: DraRegistration, error: str) -> None:
        attempt.outcome = error
        self._setup.emit("registration-failed", endpoint=attempt.path, reason=error)


async def _ready(channel: grpc.aio.Channel, timeout: float) -> None:
    """Wait for the connection, like a dial that blocks. Raises DriverError."""
    try:
        await asyncio.wait_for(channel.channel_ready(), timeout)
    except TimeoutError:
        raise DriverError("dial failed: context deadline exceeded") from None


def _now() -> float:
    return asyncio.get_running_loop().time()
