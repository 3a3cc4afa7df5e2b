"""Keeps one plugin registered with the kubelet: serve on a new socket, watch for the signs of loss, try again.

The device plugin API and DRA share this. A plugin of the first one calls the kubelet (``deviceplugin.supervisor``), a
DRA driver is called by it (``dra.kubelet_service``). One iteration of the loop is one registration, with a server and a
socket of its own, whose name was never used before: kubelets confuse registrations that share a name.
"""

import asyncio
import contextlib
import enum
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

import grpc

from aosp_plugin.framework import sockets
from aosp_plugin.framework.errors import RegistrationFailedError
from aosp_plugin.framework.events.file_events import Subscription
from aosp_plugin.framework.observer import Observer, milliseconds
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Backoff, Clock, Stop, Timings

Handlers: TypeAlias = "Sequence[grpc.GenericRpcHandler[bytes, bytes]]"
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

LOG = logging.getLogger(__name__)

REQUEST_LIMIT = 64 * 1024 * 1024
"""Bytes of a request. GetPreferredAllocation carries every free ID; gRPC's default of 4 MiB suffices for 220,000."""

_STOPPING: set[asyncio.Task[None]] = set()
"""The ends of servers, so that none is dropped: the destructor of a server stops it, too."""


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
        directory: sockets.SocketDirectory,
        files: Subscription,
        stop: Stop,
        *,
        name: str,
        observer: Observer,
        timings: Timings = DEFAULT,
        clock: Clock = CLOCK,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``; ``name`` is that of the worker thread."""
        self._directory = directory
        self._monitor = sockets.DirectoryMonitor(directory, files, stop, name, timings)
        self._files = files
        self._stop = stop
        self._events = observer
        self._timings = timings
        self._clock = clock
        self._view = sockets.DirectoryView(None, None)
        """The directory before the plugin began to serve."""
        self._started = 0.0
        self._deadline: float | None = None
        """When the registration has failed, unless the kubelet completes it."""
        self._problem = "not registered yet"
        self.registered = False
        """Whether the kubelet is registered."""
        self.endpoint = ""
        """Name of the plugin's socket while it serves, and else empty."""
        self.directory_changed = asyncio.Event()
        """Set when the kubelet's directory may have changed during a registration; the subscriber clears it."""

    @property
    def problem(self) -> str:
        """Why the plugin is not registered, and what hangs; empty if neither. May be read in any thread."""
        return "; ".join(filter(None, [self._problem, self._monitor.problem]))

    @property
    def registered_endpoint(self) -> str:
        """Name of the plugin's socket while it is registered, and else empty."""
        return self.endpoint if self.registered else ""

    async def run(self) -> None:
        """Serve and stay registered until ``stop`` is set. Raises KubeletError if that will never be possible."""
        backoff = Backoff(first=self._timings.first_pause, cap=self._timings.longest_pause)
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
            if self._starts_over(loss) or self._clock() - self._started >= self._timings.stable:
                backoff.succeeded()
            else:
                await self._pause(backoff.pause())

    async def close(self) -> None:
        """Release the file events and the worker thread, after ``run`` or instead of it."""
        await self._monitor.close()

    @abstractmethod
    def _services(self, endpoint: str) -> tuple[Handlers, Callable[[], None]]:
        """Return the handlers for a new socket, and what ends their streams."""

    def _begin(self, view: sockets.DirectoryView) -> contextlib.AbstractAsyncContextManager[object]:  # noqa: ARG002
        """Start to register; the context ends with the registration."""
        return contextlib.nullcontext()

    @abstractmethod
    def _progress(self, view: sockets.DirectoryView) -> Loss | None:
        """Look whether the kubelet has completed, lost or failed to make the registration.

        Sets ``_deadline``. Raises RegistrationFailedError and RegistrationRefusedError.
        """

    @property
    def _interval(self) -> float:
        """Seconds after which to look without a change."""
        return self._files.interval

    async def _look(self) -> None:  # noqa: B027 - a default, not an abstract method
        """Look at anything but the directory. Raises RegistrationFailedError, without any effect."""

    async def _unavailable(self) -> str:
        """Return why the kubelet cannot be reached now; empty if it can. Raises RegistrationFailedError."""
        self._view = await self._monitor.view()
        return f"there is no {self._directory.kubelet_path}" if self._view.kubelet is None else ""

    def _starts_over(self, loss: Loss | None) -> bool:
        """Return whether the end of a registration is no failure, so that the next pause is the first one again."""
        return loss is Loss.NOT_REGISTERED

    def _restarted(self, view: sockets.DirectoryView) -> bool:  # noqa: ARG002 - for subclasses
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
            await self._clock.wait(self._files.changed, self._stop, timeout=self._files.interval)
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
        finally:
            self.endpoint = ""
        return loss

    async def _watch(self, path: str, view: sockets.DirectoryView) -> Loss:
        """Return the first sign that the kubelet has lost, or will never get, what the socket at ``path`` serves.

        The socket is watched from the first moment: a kubelet that starts may remove it before it looks at it.
        """
        own_socket: sockets.SocketIdentity | None = view.own
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

    def _lost(self, view: sockets.DirectoryView, own_socket: sockets.SocketIdentity | None) -> Loss | None:
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
        self._problem, self.registered = "", True
        self._files.changed.set()  # other plugins of the resource see it by the next view
        self._events.registration("ok")
        duration = milliseconds(self._clock() - self._started)
        LOG.info("registered", extra={"endpoint": self.endpoint, "duration_ms": duration})

    def _failed(self, error: str) -> None:
        self._unregistered()
        self._events.registration("failed")
        if self._set_problem(f"registration failed, retrying: {error}"):
            LOG.warning("registration failed, retrying", extra={"error": error})

    def _ended(self, loss: Loss) -> None:
        """Report the end of a registration, before its server stops."""
        if not self.registered and loss not in {Loss.STOPPED, Loss.NOT_REGISTERED}:
            self._events.registration("failed")
        self._unregistered()
        self.endpoint = ""  # what the kubelet still says about this socket does not count
        if loss is Loss.NOT_REGISTERED:
            if not self._problem.startswith("registration failed"):
                self._waits(loss.value)
        elif loss is not Loss.STOPPED and self._set_problem(f"connection to kubelet lost, re-registering: {loss}"):
            LOG.warning("connection to kubelet lost, re-registering", extra={"reason": loss.value})

    def _waits(self, reason: str) -> None:
        if self._set_problem(f"waiting for kubelet: {reason}"):
            LOG.warning("waiting for kubelet", extra={"reason": reason})

    def _unregistered(self) -> None:
        if self.registered:
            self.registered = False
            self._events.unregistered()

    def _set_problem(self, problem: str) -> bool:
        """Set why the plugin is not registered; return whether that differs from the last reason."""
        before, self._problem = self._problem, problem
        return problem != before


@contextlib.asynccontextmanager
async def serving_rpcs(
    handlers: Handlers, path: str, monitor: sockets.DirectoryMonitor, stop: Stop, *, finish: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve on a new socket at ``path`` inside the context.

    At the end, pending requests have a quarter of the time until the deadline of ``stop``, so that there is time for
    what ends after them. ``finish`` is called then and must end all streams. The socket appears only when the server
    answers: until then, its name begins with a dot.

    The handlers are coroutines. Measured with 1.85: Allocate takes 1.2 times as long as an empty handler in a thread,
    and 1.1 times in a pool of threads, in which however each stream that a client holds open occupies a thread.

    The event loop waits while gRPC creates the socket, just after its directory has answered in the monitor's thread:
    the only access to files of the host there. If the directory hangs, the server stops when it answers again. Raises
    RegistrationFailedError if the server cannot start, or the directory fails.
    """
    directory, name = os.path.split(path)
    hidden = os.path.join(directory, f".{name}")
    try:
        sockets.check_descriptors()
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", REQUEST_LIMIT)])
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(sockets.socket_address(hidden))
    except (OSError, RuntimeError) as error:
        # Without the name of the socket, which differs each time: a failure that lasts is logged once.
        cause = str(error).replace(sockets.socket_address(hidden), directory)
        raise RegistrationFailedError(f"cannot listen in {directory}: {cause}") from error
    started = False
    try:
        await server.start()
        started = True
        await monitor.show(hidden, path)
        yield
    finally:
        finish()
        remaining = stop.remaining
        stopping = asyncio.create_task(_stop(server, [path, hidden], monitor, remaining / 4, started=started))
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        await asyncio.wait({stopping}, timeout=remaining / 2)  # the directory may hang


async def _stop(
    server: grpc.aio.Server, paths: Sequence[str], monitor: sockets.DirectoryMonitor, grace: float, *, started: bool
) -> None:
    """Stop the server when its directory answers. gRPC removes a socket only if it has the name that gRPC gave it."""
    for path in paths:
        await monitor.remove(path)
    if not started:
        await server.start()  # otherwise gRPC would keep the server
    await server.stop(grace)
