"""Keeps a plugin registered: serve, register, monitor, retry, stop.

A kubelet never calls ListAndWatch a second time by itself (pkg/kubelet/cm/devicemanager/endpoint.go ``run``): after the
stream has ended for any reason, the node has no devices until the plugin registers again. One iteration of the loop is
therefore one registration, with a server and a socket of its own, from serving to the first sign of a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import random
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework import backoff
from aosp_plugin.framework.aio import background_task, wait_any
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin.kubelet_client import VERSION, register
from aosp_plugin.framework.deviceplugin.servicer import Servicer
from aosp_plugin.framework.directory_monitor import DirectoryMonitor
from aosp_plugin.framework.errors import RegistrationFailedError, RegistrationRefusedError
from aosp_plugin.framework.observer import NULL_OBSERVER, milliseconds
from aosp_plugin.framework.socket_server import serving
from aosp_plugin.framework.timings import DEFAULT, Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory
    from aosp_plugin.framework.directory_monitor import DirectoryView
    from aosp_plugin.framework.events.file_events import Subscription
    from aosp_plugin.framework.inventory import Inventory
    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.sockets import OtherPlugin, SocketIdentity
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)


class DisconnectReason(enum.StrEnum):
    """Why a registration ended."""

    STOPPED = "stopped"
    STREAM_ENDED = "the kubelet's stream ended"
    NO_STREAM = "the kubelet registered the plugin but did not request its devices"
    SOCKET_GONE = "the plugin's socket is gone"
    KUBELET_RESTARTED = "kubelet.sock was recreated"
    FEWER_DEVICES = "the kubelet has fewer devices than published"
    LATER_PLUGIN_ENDED = "a plugin of the resource that registered later has ended"


class Supervisor:
    """Keeps one resource registered with the kubelet."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        *,
        directory: PluginDirectory,
        files: Subscription,
        worker: Worker,
        stop: asyncio.Event,
        rescan: Callable[[], None],
        timings: Timings = DEFAULT,
        rng: random.Random | None = None,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``; see Servicer for ``worker`` and ``rescan``."""
        self._backend = backend
        self._inventory = inventory
        self._directory = directory
        self._monitor = DirectoryMonitor(directory, files, stop, f"{backend.resource_name} kubelet")
        self._worker = worker
        self._stop = stop
        self._rescan = rescan
        self._timings = timings
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._observer = observer
        self._kubelet: SocketIdentity | None = None
        self._kubelet_now: SocketIdentity | None = None
        self._last_kubelet: SocketIdentity | None = None
        self._started = 0.0
        self._requested: DisconnectReason | None = None
        self._servicer: Servicer | None = None
        self.view_due = asyncio.Event()
        """Set after each registration, when the kubelet has also called ListAndWatch; see ``DevicePlugin.view_due``."""
        self.endpoint = ""
        """Name of the plugin's socket while it is registered, and else empty."""
        self.directory_changed = asyncio.Event()
        """Set when the kubelet's directory may have changed during a registration; the subscriber clears it."""
        self._problem = "not registered yet"

    @property
    def connected(self) -> bool:
        """Whether the kubelet has the devices."""
        return not self._problem

    @property
    def problem(self) -> str:
        """Why the kubelet does not have the devices, and what hangs; empty if neither. May be read in any thread."""
        return "; ".join(filter(None, [self._problem, self._monitor.problem]))

    async def run(self) -> None:
        """Serve and stay registered until ``stop`` is set.

        Raises KubeletDirectoryError if serving is impossible, and RegistrationRefusedError.
        """
        with contextlib.suppress(RegistrationFailedError):  # the first registration reports it
            await self._monitor.check()
        await self._monitor.sweep()
        pauses, last_kubelet = backoff.delays(self._rng), self._kubelet
        while not self._stop.is_set():
            self._started = time.monotonic()
            try:
                if not await self._wait_for_kubelet():
                    return
                self._started = time.monotonic()
                await self._monitor.sweep()
                await self._run_registration()
            except RegistrationFailedError as error:
                self._failed(error)
            if self._kubelet != last_kubelet or time.monotonic() - self._started >= self._timings.stable:
                pauses = backoff.delays(self._rng)
            last_kubelet = self._kubelet
            await self._pause(next(pauses))

    def reregister(self, reason: DisconnectReason) -> None:
        """End the current registration, and register again; no effect if the plugin is not registered."""
        if not self._problem:
            self._requested = reason
            self._monitor.changed.set()

    def silence(self) -> None:
        """Send no more lists in the current registration, but those that the kubelet requests."""
        if self._servicer is not None:
            self._servicer.silence()

    async def other_plugins(self) -> tuple[OtherPlugin, ...] | None:
        """Return the other plugins of the resource on this node; None if unknown, or ``stop`` is set first."""
        return await self._monitor.other_plugins(self.endpoint)

    async def close(self) -> None:
        """Release the file events and the worker thread, after ``run`` or instead of it."""
        await self._monitor.close()

    async def _wait_for_kubelet(self) -> bool:
        """Wait until kubelet.sock exists; return False if ``stop`` is set first. Raises RegistrationFailedError."""
        while not self._stop.is_set():
            self._kubelet_now = (await self._monitor.view()).kubelet
            if self._stop.is_set():
                break
            if self._kubelet_now is not None:
                return True
            reason = f"there is no {self._directory.kubelet_path}"
            if self._set_problem(f"waiting for kubelet: {reason}"):
                LOG.warning("waiting for kubelet", extra={"reason": reason})
            await wait_any(self._monitor.changed, self._stop, timeout=self._monitor.interval)
        return False

    async def _run_registration(self) -> None:
        """Serve on a new socket, register it, and return when the registration has ended.

        Raises RegistrationFailedError and RegistrationRefusedError.
        """
        self._kubelet = self._kubelet_now
        endpoint = self._directory.next_endpoint(time.time())
        path = os.path.join(self._directory.path, endpoint)
        servicer = Servicer(self._backend, self._inventory, self._worker, self._rescan, self._observer, self._timings)
        self._servicer = servicer
        try:
            async with serving([servicer.handler()], path, self._monitor, self._timings.stop, finish=servicer.finish):
                view = await self._monitor.view(path)
                self._kubelet_now = view.kubelet
                async with background_task(self._register(endpoint, servicer)) as response:
                    self._disconnected(await self._watch(endpoint, view, servicer, response))
        except RegistrationRefusedError:
            self._observer.registration("refused")
            raise

    def _register(self, endpoint: str, servicer: Servicer) -> Coroutine[None, None, None]:
        """Record with which kubelet the plugin registers now, and return the call of ``register``, not yet started."""
        self._kubelet = self._kubelet_now
        if self._kubelet is not None:
            if self._last_kubelet not in {None, self._kubelet}:
                self._observer.kubelet_restarted()
            self._last_kubelet = self._kubelet
        request = pb.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=self._backend.resource_name, options=servicer.options
        )
        return register(self._directory.kubelet_path, request, self._timings.register)

    async def _watch(
        self, endpoint: str, view: DirectoryView, servicer: Servicer, response: asyncio.Task[None]
    ) -> DisconnectReason:
        """Return the first sign that the kubelet has lost, or will never get, what this socket serves.

        The socket is monitored from the first moment, not only after Register has returned: a kubelet that starts may
        have removed the socket before it handles Register, and would then try to dial it for 10 s. ``view`` is that of
        the moment before Register. Raises RegistrationFailedError and RegistrationRefusedError.
        """
        path, own_socket = os.path.join(self._directory.path, endpoint), view.own
        answered = asyncio.Event()
        response.add_done_callback(lambda _: answered.set())
        stream_deadline: float | None = None
        while True:
            if reason := self._detect_failure(view, own_socket, servicer):
                return reason
            events, timeout = [self._monitor.changed, self._stop, servicer.stream_ended], self._monitor.interval
            if not answered.is_set():
                events.append(answered)
            elif response.result() is None and servicer.stream_opened.is_set():
                self._registered(endpoint)
            else:
                stream_deadline = stream_deadline or time.monotonic() + self._timings.stream
                if time.monotonic() >= stream_deadline:
                    return DisconnectReason.NO_STREAM
                events.append(servicer.stream_opened)
                timeout = min(timeout, stream_deadline - time.monotonic())
            await wait_any(*events, timeout=timeout)
            self.directory_changed.set()
            with contextlib.suppress(RegistrationFailedError):  # the stream shows whether the kubelet has the devices
                view = await self._monitor.view(path)

    def _detect_failure(
        self, view: DirectoryView, own_socket: SocketIdentity | None, servicer: Servicer
    ) -> DisconnectReason | None:
        """Return why the registration has ended; None if it has not."""
        if self._stop.is_set():
            return DisconnectReason.STOPPED
        if servicer.stream_ended.is_set():
            return DisconnectReason.STREAM_ENDED
        if own_socket is None or view.own != own_socket:
            return DisconnectReason.SOCKET_GONE
        if self._is_other_kubelet(view):
            return DisconnectReason.KUBELET_RESTARTED
        return self._requested

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; return at once if the kubelet restarts."""
        end = time.monotonic() + seconds
        while not self._stop.is_set():
            with contextlib.suppress(RegistrationFailedError):  # the next registration reports it
                if self._is_other_kubelet(await self._monitor.view()):
                    return
            remaining = end - time.monotonic()
            if remaining <= 0:
                return
            await wait_any(self._monitor.changed, self._stop, timeout=min(remaining, self._monitor.interval))

    def _is_other_kubelet(self, view: DirectoryView) -> bool:
        """Return whether another kubelet has started since the last Register; a missing kubelet.sock does not count."""
        return view.kubelet not in {None, self._kubelet}

    def _registered(self, endpoint: str) -> None:
        if self._problem:
            self._problem = ""
            self.endpoint = endpoint
            self.view_due.set()
            self._observer.registration("ok")
            duration = milliseconds(time.monotonic() - self._started)
            LOG.info("registered", extra={"endpoint": endpoint, "duration_ms": duration})

    def _failed(self, error: RegistrationFailedError) -> None:
        self._observer.registration("failed")
        if self._set_problem(f"registration failed, retrying: {error}"):
            LOG.warning("registration failed, retrying", extra={"error": str(error)})

    def _disconnected(self, reason: DisconnectReason) -> None:
        """Report the end of a registration, before its server stops."""
        if self._problem and reason is not DisconnectReason.STOPPED:
            self._observer.registration("failed")
        self._observer.unregistered()
        self.endpoint = ""
        self._requested = None
        if reason is not DisconnectReason.STOPPED and self._set_problem(
            f"connection to kubelet lost, re-registering: {reason}"
        ):
            LOG.warning("connection to kubelet lost, re-registering", extra={"reason": reason.value})

    def _set_problem(self, problem: str) -> bool:
        """Set why the kubelet does not have the devices; return whether that differs from the last reason."""
        before, self._problem = self._problem, problem
        return problem != before
