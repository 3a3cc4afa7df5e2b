"""Keeps one plugin registered with the kubelet: serve on a new socket, watch for the signs of loss, try again.

The device plugin API and DRA share this loop. A device plugin calls the kubelet (``deviceplugin.supervisor``); a DRA
driver is called by it (``dra.kubelet_service``). One iteration of the loop is one registration, with a server and a
socket of its own, whose name was never used before: kubelets confuse registrations that share a name.
"""

import asyncio
import contextlib
import enum
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from aosp_plugin.framework import conditions as kinds
from aosp_plugin.framework.conditions import Condition, Kind
from aosp_plugin.framework.errors import RegistrationFailedError
from aosp_plugin.framework.file_events import Subscription
from aosp_plugin.framework.metrics import Result
from aosp_plugin.framework.plugin_socket import DirectoryMonitor, DirectoryView, Handlers, serving_rpcs
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service.logs import milliseconds
from aosp_plugin.framework.sockets import SocketDirectory, SocketIdentity
from aosp_plugin.framework.timing import Backoff, Stop, background_task

LOG = logging.getLogger(__name__)

STABLE = 5.0
"""Seconds after which a registration that fails does not count as one more failure in a row."""


class Loss(enum.StrEnum):
    """Why a registration ended."""

    STOPPED = "stopped"
    SOCKET_GONE = "the plugin's socket is gone"
    STREAM_ENDED = "the kubelet's stream ended"
    NO_STREAM = "the kubelet registered the plugin but did not request its devices"
    KUBELET_RESTARTED = "kubelet.sock was recreated"
    FEWER_DEVICES = "the kubelet has fewer devices than published"
    LATER_PLUGIN_ENDED = "a plugin of the resource that registered later has ended"
    NOT_REGISTERED = "it has not registered the driver's socket"


class Registration(ABC):
    """The registration of one plugin. Belongs to one event loop; it runs once."""

    def __init__(
        self,
        directory: SocketDirectory,
        files: Subscription,
        stop: Stop,
        *,
        name: str,
        resource: str,
        runtime: Runtime,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``; ``name`` is that of the worker thread.

        ``resource`` is the name of the resource.
        """
        self._directory = directory
        self._monitor = DirectoryMonitor(directory, files, stop, name, resource, runtime)
        self._conditions = runtime.conditions
        self._resource = resource
        self._files = files
        self._stop = stop
        self._metrics = runtime.metrics
        self._timings = runtime.timings
        self._clock = runtime.clock
        self._view = DirectoryView(None, None)
        """The directory before the plugin began to serve."""
        self._started = 0.0
        self._deadline: float | None = None
        """When the registration fails unless the kubelet has completed it."""
        self.registered_changed = time.time()
        """When ``registered`` changed last, or the plugin started, in seconds since the epoch."""
        self._attempt_failed = False
        """Whether the kubelet has refused the last attempt: its condition says more than the wait that follows."""
        self.registered = False
        """Whether the kubelet is registered."""
        self.endpoint = ""
        """Name of the plugin's socket while it serves, and else empty."""
        self.directory_changed = asyncio.Event()
        """Set when the kubelet's directory may have changed during a registration; the subscriber clears it."""
        self._report(kinds.NOT_REGISTERED, "not registered yet")

    @property
    def registered_endpoint(self) -> str:
        """Name of the plugin's socket while it is registered, and else empty."""
        return self.endpoint if self.registered else ""

    async def run(self) -> None:
        """Serve and stay registered until ``stop`` is set. Raises KubeletError if that is impossible."""
        backoff = Backoff(first=self._timings.first_pause, cap=self._timings.longest_pause)
        async with background_task(self._monitor.report_hangs()):
            while not self._stop.is_set():
                self._started, loss = self._clock(), None
                try:
                    if not await self._wait_for_kubelet():
                        return
                    self._started = self._clock()
                    await self._monitor.sweep()
                    loss = await self._serve()
                except RegistrationFailedError as error:
                    self._failed(str(error))
                if self._starts_over(loss) or self._clock() - self._started >= STABLE:
                    backoff.succeeded()
                else:
                    await self._pause(backoff.pause())

    async def close(self) -> None:
        """Release the file events and the worker thread, after ``run`` or instead of it."""
        await self._monitor.close()

    @abstractmethod
    def _services(self, endpoint: str) -> tuple[Handlers, Callable[[], None]]:
        """Return the handlers for a new socket, and a function that ends their streams."""

    def _begin(self, view: DirectoryView) -> contextlib.AbstractAsyncContextManager[object]:  # noqa: ARG002
        """Start to register; the context ends with the registration."""
        return contextlib.nullcontext()

    async def _drain(self) -> None:  # noqa: B027 - a default, not an abstract method
        """Wait, at the end of a registration, for the requests that would end with the streams."""

    @abstractmethod
    def _progress(self, view: DirectoryView) -> Loss | None:
        """Check whether the kubelet has completed or lost the registration, or failed to make it.

        Sets ``_deadline``. Raises RegistrationFailedError.
        """

    @property
    def _interval(self) -> float:
        """Seconds between checks without a change of files."""
        return self._files.interval

    async def _look(self) -> None:  # noqa: B027 - a default, not an abstract method
        """Poll signs of the kubelet besides the directory. A RegistrationFailedError is ignored."""

    async def _unavailable(self) -> str:
        """Return why the kubelet cannot be reached now; empty if it can. Raises RegistrationFailedError."""
        self._view = await self._monitor.view()
        return f"there is no {self._directory.kubelet_path}" if self._view.kubelet is None else ""

    def _starts_over(self, loss: Loss | None) -> bool:
        """Return whether the pauses between attempts begin again, because the registration has not failed."""
        return loss is Loss.NOT_REGISTERED

    def _restarted(self, view: DirectoryView) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether another kubelet has started since the last attempt."""
        return False

    async def _wait_for_kubelet(self) -> bool:
        """Wait until the kubelet can be reached; return False if ``stop`` is set first."""
        while not self._stop.is_set():
            reason = await self._unavailable()
            if self._stop.is_set():
                break
            if not reason:
                return True
            self._waits(reason)
            await self._clock.wait(self._files.changed, self._stop, timeout=self._interval)
        return False

    async def _serve(self) -> Loss:
        """Serve on a new socket until the registration ends; return why. Raises KubeletError."""
        self.endpoint = self._directory.next_endpoint(time.time())
        self._deadline = None
        path = os.path.join(self._directory.path, self.endpoint)
        handlers, finish = self._services(self.endpoint)
        try:
            async with serving_rpcs(handlers, path, self._monitor, self._stop, finish=finish):
                view = await self._monitor.view(path)
                async with self._begin(view):
                    loss = await self._watch(path, view)
                    self._ended(loss)
                await self._drain()
        finally:
            self.endpoint = ""
        return loss

    async def _watch(self, path: str, view: DirectoryView) -> Loss:
        """Return the first sign that the kubelet has lost, or will never register, the plugin at ``path``.

        The socket is watched from the first moment, because a starting kubelet may remove it before it registers the
        plugin.
        """
        own_socket: SocketIdentity | None = view.own
        while True:
            if loss := self._lost(view, own_socket) or self._progress(view):
                return loss
            timeout = self._interval
            if self._deadline is not None:
                timeout = min(timeout, max(0.0, self._deadline - self._clock()))
            await self._clock.wait(self._files.changed, self._stop, timeout=timeout)
            self.directory_changed.set()
            with contextlib.suppress(RegistrationFailedError):  # other signs show whether the kubelet has the plugin
                view = await self._monitor.view(path, registered=self.registered)
                await self._look()

    def _lost(self, view: DirectoryView, own_socket: SocketIdentity | None) -> Loss | None:
        if self._stop.is_set():
            return Loss.STOPPED
        return Loss.SOCKET_GONE if own_socket is None or view.own != own_socket else None

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; return at once if the kubelet restarts."""
        end = self._clock() + seconds
        while not self._stop.is_set():
            with contextlib.suppress(RegistrationFailedError):  # the next registration reports it
                if self._restarted(await self._monitor.view()):
                    return
            remaining = end - self._clock()
            if remaining <= 0:
                return
            timeout = min(remaining, self._files.interval)
            await self._clock.wait(self._files.changed, self._stop, timeout=timeout)

    def _completed(self) -> None:
        """Note that the kubelet has registered the plugin."""
        self._deadline = None
        self._conditions.replace("registration", self._resource, ())
        self._set_registered(registered=True)
        self._files.changed.set()  # the next view shows it to other plugins of the resource
        self._count("ok")
        duration = milliseconds(self._clock() - self._started)
        LOG.info("registered", extra={"endpoint": self.endpoint, "duration_ms": duration})

    def _failed(self, error: str) -> None:
        self._unregistered()
        self._count("failed")
        self._report(kinds.REGISTRATION_FAILED, error, "error")
        self._attempt_failed = True

    def _ended(self, loss: Loss) -> None:
        """Report the end of a registration, before its server stops."""
        if not self.registered and loss not in {Loss.STOPPED, Loss.NOT_REGISTERED}:
            self._count("failed")
        self._unregistered()
        self.endpoint = ""  # further answers of the kubelet about this socket do not count
        if loss is Loss.NOT_REGISTERED:
            if not self._attempt_failed:
                self._waits(loss.value)
        elif loss is not Loss.STOPPED:
            self._report(kinds.CONNECTION_LOST, loss.value)

    def _waits(self, reason: str) -> None:
        self._report(kinds.WAITING_FOR_KUBELET, reason)

    def _unregistered(self) -> None:
        if self.registered:
            self._set_registered(registered=False)

    def _set_registered(self, *, registered: bool) -> None:
        if registered != self.registered:
            self.registered, self.registered_changed = registered, time.time()
            self._metrics.registered.labels(self._resource).set(registered)

    def _count(self, result: Result) -> None:
        """Count an attempt to register."""
        self._metrics.registrations.labels(self._resource, result).inc()

    def _report(self, kind: Kind, cause: str, field: str = "reason") -> None:
        """Set why the plugin is not registered. ``field`` is the name of the cause in the log."""
        self._attempt_failed = False
        text = f"{kind.begins}: {cause}" if kind.begins else cause
        self._conditions.replace("registration", self._resource, [Condition(kind, text, fields={field: cause})])
