"""Staying registered: serve, register, watch, heal, stop.

A kubelet never opens a second ListAndWatch by itself (pkg/kubelet/cm/devicemanager/endpoint.go ``run``): whatever
ends the stream leaves the node without devices until the plugin registers again. So one turn of the loop here is
one registration, with a server and a socket of its own, from serving to the first sign that it is broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import random
import time
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.aio import background_task, wait_any
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.deviceplugin import backoff
from aosp_plugin.framework.deviceplugin.kubelet_client import VERSION, SocketIdentity, identify, register
from aosp_plugin.framework.deviceplugin.server import serving
from aosp_plugin.framework.deviceplugin.servicer import Servicer
from aosp_plugin.framework.errors import RegistrationFailedError, RegistrationRefusedError
from aosp_plugin.framework.observer import NULL_OBSERVER, milliseconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory
    from aosp_plugin.framework.events.file_events import Subscription
    from aosp_plugin.framework.inventory import Inventory
    from aosp_plugin.framework.observer import Observer

LOG = logging.getLogger(__name__)


class Timings(NamedTuple):
    """Seconds."""

    register: float = 20.0
    """For Register: a kubelet takes up to 10 s to dial back before it answers, and has no deadline itself."""
    stream: float = 10.0
    """For ListAndWatch after Register: old kubelets dial only then, for up to 10 s, and never tell of a failure."""
    stable: float = 5.0
    """After which a registration that breaks is not counted as one more failure."""
    stop: float = 1.0
    """For requests under way when the server stops."""


class DisconnectReason(enum.StrEnum):
    """Why a registration is over."""

    STOPPED = "stopped"
    STREAM_ENDED = "the kubelet's stream ended"
    NO_STREAM = "the kubelet registered the plugin and did not ask for its devices"
    SOCKET_GONE = "the plugin's socket is gone"
    KUBELET_RESTARTED = "kubelet.sock was made anew"


class Supervisor:
    """Keeps one resource registered with the kubelet."""

    def __init__(
        self,
        backend: Backend,
        inventory: Inventory,
        *,
        directory: PluginDirectory,
        files: Subscription,
        stop: asyncio.Event,
        rescan: Callable[[], None],
        timings: Timings = Timings(),
        rng: random.Random | None = None,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """``files`` tells of changes in ``directory``; ``stop`` ends everything; for ``rescan`` see Servicer."""
        self._backend = backend
        self._inventory = inventory
        self._directory = directory
        self._files = files
        self._stop = stop
        self._look_again_at_devices = rescan
        self._timings = timings
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._observer = observer
        self._kubelet: SocketIdentity | None = None
        self._last_kubelet: SocketIdentity | None = None
        self._started = 0.0
        self.problem = "not registered yet"
        """Why the kubelet does not know the devices now; empty while it does."""

    async def run(self) -> None:
        """Serve and stay registered until ``stop`` is set.

        Raises KubeletDirectoryError where serving can't even begin, and RegistrationRefusedError.
        """
        self._directory.check()
        self._sweep()
        pauses, last_kubelet = backoff.delays(self._rng), self._kubelet
        while await self._kubelet_is_there():
            self._started = time.monotonic()
            with contextlib.suppress(OSError):  # can't be looked at now: the next turn will
                self._sweep()
            await self._registration()
            if self._kubelet != last_kubelet or time.monotonic() - self._started >= self._timings.stable:
                pauses = backoff.delays(self._rng)
            last_kubelet = self._kubelet
            await self._pause(next(pauses))

    def _sweep(self) -> None:
        """Remove the sockets of predecessors: processes that were killed, or our own in a directory that came back.

        gRPC removes the file at a socket's path when it stops, and finds none while the directory is elsewhere.
        """
        for name in self._directory.sweep():
            LOG.info("removed the socket of a predecessor", extra={"endpoint": name})

    async def _kubelet_is_there(self) -> bool:
        """Wait until there is a kubelet.sock; return False where the plugin is to stop first."""
        while not self._stop.is_set():
            self._rescan()
            if identify(self._directory.kubelet_socket) is not None:
                return True
            missing = f"there is no {self._directory.kubelet_socket}"
            if self._is_news(f"waiting for the kubelet: {missing}"):
                LOG.warning("waiting for the kubelet", extra={"reason": missing})
            await wait_any(self._files.changed, self._stop, timeout=self._files.interval)
        return False

    async def _registration(self) -> None:
        """Serve on a new socket, register it, and return once that is over."""
        self._kubelet = identify(self._directory.kubelet_socket)
        endpoint = self._directory.next_endpoint(time.time())
        path = os.path.join(self._directory.path, endpoint)
        servicer = Servicer(self._backend, self._inventory, self._look_again_at_devices, self._observer)
        try:
            async with (
                serving(servicer, path, self._timings.stop),
                self._registering(endpoint, servicer) as answer,
            ):
                self._ended(await self._until_broken(endpoint, servicer, answer))
        except RegistrationRefusedError:
            self._observer.registration("refused")
            raise
        except RegistrationFailedError as error:
            self._observer.registration("failed")
            if self._is_news(f"registration failed and is tried again: {error}"):
                LOG.warning("registration failed and is tried again", extra={"error": str(error)})

    @contextlib.asynccontextmanager
    async def _registering(self, endpoint: str, servicer: Servicer) -> AsyncIterator[asyncio.Task[None]]:
        """Register the served socket while the context goes on: a task that raises what ``register`` does."""
        self._kubelet = identify(self._directory.kubelet_socket)
        if self._kubelet is not None:
            if self._last_kubelet not in {None, self._kubelet}:
                self._observer.kubelet_restarted()
            self._last_kubelet = self._kubelet
        request = pb.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=self._backend.resource_name, options=servicer.options
        )
        call = register(self._directory.kubelet_socket, request, self._timings.register)
        async with background_task(call) as answer:
            yield answer

    async def _until_broken(self, endpoint: str, servicer: Servicer, answer: asyncio.Task[None]) -> DisconnectReason:
        """Return the first sign that the kubelet no longer has, or will never get, what this socket serves.

        Looked for from the first moment on, and not only once Register is answered: a kubelet that starts just now
        may have swept the socket away before it took the request, and would then dial nothing for 10 s.
        Raises RegistrationFailedError and RegistrationRefusedError.
        """
        path = os.path.join(self._directory.path, endpoint)
        own = identify(path)
        answered = asyncio.Event()
        answer.add_done_callback(lambda _: answered.set())
        patience: float | None = None
        while True:
            self._rescan()
            if ending := self._sign(path, own, servicer):
                return ending
            signs, timeout = [self._files.changed, self._stop, servicer.stream_ended], self._files.interval
            if not answered.is_set():
                signs.append(answered)
            elif answer.result() is None and servicer.stream_opened.is_set():
                self._registered(endpoint)
            else:
                patience = patience or time.monotonic() + self._timings.stream
                if time.monotonic() >= patience:
                    return DisconnectReason.NO_STREAM
                signs.append(servicer.stream_opened)
                timeout = min(timeout, patience - time.monotonic())
            await wait_any(*signs, timeout=timeout)

    def _sign(self, path: str, own: SocketIdentity | None, servicer: Servicer) -> DisconnectReason | None:
        if self._stop.is_set():
            return DisconnectReason.STOPPED
        if servicer.stream_ended.is_set():
            return DisconnectReason.STREAM_ENDED
        if own is None or identify(path) != own:
            return DisconnectReason.SOCKET_GONE
        if self._another_kubelet():
            return DisconnectReason.KUBELET_RESTARTED
        return None

    async def _pause(self, seconds: float) -> None:
        """Wait before the next try, unless there is another kubelet than the last one."""
        end = time.monotonic() + seconds
        while not self._stop.is_set():
            self._rescan()
            left = end - time.monotonic()
            if left <= 0 or self._another_kubelet():
                return
            await wait_any(self._files.changed, self._stop, timeout=min(left, self._files.interval))

    def _another_kubelet(self) -> bool:
        """Say whether a kubelet has started since the last Register; that one has merely gone is no news."""
        return identify(self._directory.kubelet_socket) not in {None, self._kubelet}

    def _rescan(self) -> None:
        """Make sure that a change of the directory from here on is told."""
        self._files.changed.clear()
        self._files.watch([self._directory.path])
        self._files.changes()  # which they are doesn't matter: what does is looked at each time

    def _registered(self, endpoint: str) -> None:
        if self.problem:
            self.problem = ""
            self._observer.registration("ok")
            took = milliseconds(time.monotonic() - self._started)
            LOG.info("registered", extra={"endpoint": endpoint, "duration_ms": took})

    def _ended(self, ending: DisconnectReason) -> None:
        """Tell that the registration is over, before its server stops: from now on the kubelet is told nothing."""
        if self.problem and ending is not DisconnectReason.STOPPED:
            self._observer.registration("failed")
        self._observer.unregistered()
        if ending is not DisconnectReason.STOPPED and self._is_news(f"registering again: {ending}"):
            LOG.warning("registering again", extra={"reason": ending.value})

    def _is_news(self, problem: str) -> bool:
        """Note why the kubelet does not know the devices; say whether it is another reason than the last one."""
        before, self.problem = self.problem, problem
        return problem != before
