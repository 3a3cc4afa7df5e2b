"""Keeps a DRA driver registered with the kubelet, and serves its requests.

One socket in the kubelet's directory plugins_registry serves everything: registration, DRAPlugin, DRAResourceHealth.
The socket has a name that was never used before, and appears only when the server answers. The kubelet finds it by file
events, and a kubelet that starts finds it by reading the directory; nothing else tells a driver that the kubelet
restarted. If the kubelet does not connect, or the socket is gone, the driver serves on another one.

The end of a kubelet shows in no call either: its connection to the driver may be idle, and gRPC closes it after half an
hour. Its podresources socket, which then refuses connections, shows it at no cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import random
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework import backoff
from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.directory_monitor import DirectoryMonitor
from aosp_plugin.framework.dra.claim_servicer import ClaimServicer
from aosp_plugin.framework.dra.health import PERIOD, HealthServicer
from aosp_plugin.framework.dra.observer import NULL_DRA_OBSERVER
from aosp_plugin.framework.dra.registration import RegistrationServicer, RegistryDirectory
from aosp_plugin.framework.errors import KubeletDirectoryError, RegistrationFailedError
from aosp_plugin.framework.observer import milliseconds
from aosp_plugin.framework.socket_server import serving

if TYPE_CHECKING:
    from aosp_plugin.framework.directory_monitor import DirectoryView
    from aosp_plugin.framework.dra.health import PreparedHealth
    from aosp_plugin.framework.dra.interfaces import ClaimHandler
    from aosp_plugin.framework.dra.observer import DraObserver
    from aosp_plugin.framework.events.file_events import Subscription
    from aosp_plugin.framework.sockets import SocketIdentity

LOG = logging.getLogger(__name__)


class Timings(NamedTuple):
    """Durations in seconds."""

    patience: float = 10.0
    """For the kubelet to register the driver after the socket appeared, or after its last attempt; doubled each time it
    does not. The kubelet repeats attempts that failed after 0.5 s, and then after twice as long each time."""
    max_patience: float = 60.0
    """The longest patience."""
    stable: float = 5.0
    """After which the loss of a socket does not count as one more failure in a row."""
    kubelet: float = 5.0
    """Between two checks whether the kubelet runs."""
    stop: float = 1.0
    """For pending requests when the server stops."""
    health_period: float = PERIOD
    """Between two reports of a health that does not change."""


class _Reason(enum.StrEnum):
    """Why a socket is given up."""

    STOPPED = "stopped"
    SOCKET_GONE = "the driver's socket is gone"
    NOT_REGISTERED = "the kubelet has not registered the driver"


class KubeletService:
    """The kubelet's side of one DRA driver. Belongs to one event loop."""

    def __init__(
        self,
        driver: str,
        registry_directory: str,
        handler: ClaimHandler,
        *,
        health: PreparedHealth,
        files: Subscription,
        stop: asyncio.Event,
        kubelet_socket: str = "",
        observer: DraObserver = NULL_DRA_OBSERVER,
        timings: Timings = Timings(),
        rng: random.Random | None = None,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``.

        ``kubelet_socket`` is a socket on which the kubelet listens; empty if there is none.
        """
        self._driver = driver
        self._directory = RegistryDirectory(registry_directory, driver)
        self._monitor = DirectoryMonitor(self._directory, files, stop, f"{driver} registry")
        self._claims = ClaimServicer(handler)
        self._health = health
        self._stop = stop
        self._kubelet_socket = kubelet_socket
        self._kubelet_listened = False
        self._observer = observer
        self._timings = timings
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._patience = timings.patience
        self._awaited_since = 0.0
        self._started = 0.0
        self._problem = "not registered yet"
        self.registered = False
        """Whether the kubelet has confirmed the registration of the current socket."""
        self.first_registered = asyncio.Event()
        """Set when the kubelet has confirmed a registration for the first time."""
        self.endpoint = ""
        """Name of the driver's socket while it serves, and else empty."""
        self.restarted = asyncio.Event()
        """Set each time the kubelet begins to register the driver, as it does after a restart; the subscriber clears
        it."""

    @property
    def problem(self) -> str:
        """Why the driver is not registered, and what hangs; empty if neither. May be read in any thread."""
        return "; ".join(filter(None, [self._problem, self._monitor.problem]))

    async def run(self) -> None:
        """Serve and stay registered until ``stop`` is set."""
        pauses = backoff.delays(self._rng)
        while not self._stop.is_set():
            self._started, reason = time.monotonic(), None
            try:
                if not await self._wait_for_directory():
                    return
                self._started = time.monotonic()
                await self._monitor.sweep()
                reason = await self._serve()
            except RegistrationFailedError as error:
                self._failed(str(error))
            if reason is _Reason.NOT_REGISTERED or time.monotonic() - self._started >= self._timings.stable:
                pauses = backoff.delays(self._rng)
            await wait_any(self._stop, timeout=next(pauses))

    async def close(self) -> None:
        """End the work for claims, the file events and the worker thread, after ``run`` or instead of it."""
        await self._claims.close(self._timings.stop)
        await self._monitor.close()

    async def _wait_for_directory(self) -> bool:
        """Wait until the driver can serve in the kubelet's directory; return False if ``stop`` is set first.

        Raises RegistrationFailedError.
        """
        while not self._stop.is_set():
            exists = (await self._monitor.view()).kubelet is not None
            reason = await self._directory_problem() if exists else f"there is no {self._directory.path}"
            if self._stop.is_set():
                break
            if not reason:
                return True
            self._wait_for_kubelet(reason)
            await wait_any(self._monitor.changed, self._stop, timeout=self._monitor.interval)
        return False

    async def _directory_problem(self) -> str:
        try:
            await self._monitor.check()
        except KubeletDirectoryError as error:
            return str(error)
        return ""

    async def _serve(self) -> _Reason:
        """Serve on a new socket until it is given up; return why. Raises RegistrationFailedError."""
        endpoint = self._directory.next_endpoint(time.time())
        path = os.path.join(self._directory.path, endpoint)
        registration = RegistrationServicer(
            self._driver, partial(self._requested, endpoint), partial(self._answered, endpoint)
        )
        health = HealthServicer(self._health, self._timings.health_period)
        handlers = [registration.handler(), *self._claims.handlers(), *health.handlers()]
        self._awaited_since, self.endpoint = time.monotonic(), endpoint
        async with serving(handlers, path, self._monitor, self._timings.stop, finish=health.finish):
            reason = await self._watch(path)
            self._given_up(reason)
        return reason

    async def _watch(self, path: str) -> _Reason:
        """Return the first sign that the kubelet has lost the driver, or will not register it.

        Raises RegistrationFailedError.
        """
        view = await self._monitor.view(path)
        own_socket = view.own
        while True:
            if self._stop.is_set():
                return _Reason.STOPPED
            if self._is_gone(view, own_socket):
                return _Reason.SOCKET_GONE
            timeout = min(self._monitor.interval, self._timings.kubelet)
            if not self.registered:
                remaining = self._awaited_since + self._patience - time.monotonic()
                if remaining <= 0:
                    return _Reason.NOT_REGISTERED
                timeout = min(timeout, remaining)
            await wait_any(self._monitor.changed, self._stop, timeout=timeout)
            with contextlib.suppress(RegistrationFailedError):  # the kubelet keeps its connection
                view = await self._monitor.view(path)
                await self._check_kubelet()

    async def _check_kubelet(self) -> None:
        """Note the end of the kubelet. A socket on which it has never listened may be left from another one."""
        listens = await self._monitor.listens(self._kubelet_socket)
        if listens and self.registered:
            self._kubelet_listened = True
        elif listens is False and self._kubelet_listened:
            self._unregistered()
            self._awaited_since = time.monotonic()  # it finds the driver's socket when it starts
            self._wait_for_kubelet(f"it does not listen on {self._kubelet_socket}")

    @staticmethod
    def _is_gone(view: DirectoryView, own_socket: SocketIdentity | None) -> bool:
        return own_socket is None or view.own != own_socket

    def _requested(self, endpoint: str) -> None:
        """Handle the kubelet's first call of a registration."""
        if endpoint != self.endpoint:
            return  # the socket was given up
        self._awaited_since = time.monotonic()
        LOG.info("kubelet requests registration", extra={"endpoint": self.endpoint})
        self.restarted.set()

    def _answered(self, endpoint: str, refusal: str | None) -> None:
        """Handle the end of the kubelet's registration."""
        if endpoint != self.endpoint:
            return
        if refusal is not None:
            # Without the name of the socket, which differs each time: a refusal that lasts is logged once.
            self._failed(f"the kubelet refuses the driver: {refusal.replace(f'/{endpoint}', '')}")
            self._awaited_since = time.monotonic()
            self._monitor.changed.set()  # the wait for the registration begins
            return
        self._observer.registration("ok")
        self.registered, self._problem, self._patience = True, "", self._timings.patience
        self.first_registered.set()
        self._monitor.changed.set()  # check the kubelet's socket at once
        duration = milliseconds(time.monotonic() - self._started)
        LOG.info("registered", extra={"endpoint": self.endpoint, "duration_ms": duration})

    def _failed(self, error: str) -> None:
        self._unregistered()
        self._observer.registration("failed")
        if self._set_problem(f"registration failed, retrying: {error}"):
            LOG.warning("registration failed, retrying", extra={"error": error})

    def _given_up(self, reason: _Reason) -> None:
        """Report the end of a socket, before its server stops."""
        self._unregistered()
        self.endpoint = ""
        if reason is _Reason.SOCKET_GONE:
            if self._set_problem(f"connection to kubelet lost, re-registering: {reason}"):
                LOG.warning("connection to kubelet lost, re-registering", extra={"reason": reason.value})
        elif reason is _Reason.NOT_REGISTERED:
            self._patience = min(2 * self._patience, self._timings.max_patience)
            if not self._problem.startswith("registration failed"):
                self._wait_for_kubelet("it has not registered the driver's socket")

    def _unregistered(self) -> None:
        self._kubelet_listened = False
        if self.registered:
            self.registered = False
            self._observer.unregistered()

    def _wait_for_kubelet(self, reason: str) -> None:
        if self._set_problem(f"waiting for kubelet: {reason}"):
            LOG.warning("waiting for kubelet", extra={"reason": reason})

    def _set_problem(self, problem: str) -> bool:
        """Set why the driver is not registered; return whether that differs from the last reason."""
        before, self._problem = self._problem, problem
        return problem != before
