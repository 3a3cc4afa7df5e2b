"""Access to a directory that the kubelet shares with its plugins, in a worker thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.errors import RegistrationFailedError, WorkerTimeoutError
from aosp_plugin.framework.observer import Problem
from aosp_plugin.framework.sockets import SocketIdentity, identify, listens
from aosp_plugin.framework.timings import DEFAULT, Timings
from aosp_plugin.framework.worker import HostCall, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.framework.events.file_events import Subscription
    from aosp_plugin.framework.sockets import OtherPlugin, SocketDirectory

LOG = logging.getLogger(__name__)

T = TypeVar("T")

ACCESS = "access to the kubelet's plugin directory"
"""Label of the calls."""

SOCKET_MODE = 0o600
"""For the kubelet alone, which runs as root like the plugin."""


class DirectoryView(NamedTuple):
    """The sockets in the directory at one moment."""

    kubelet: SocketIdentity | None
    """``SocketDirectory.kubelet_path``; None if it does not exist."""
    own: SocketIdentity | None
    """The socket of the registration; None if it does not exist, or there is none."""


class DirectoryMonitor:
    """The directory as one plugin sees it. One that hangs or fails delays nothing but the registration of this plugin.

    What the plugin needs for its registration raises RegistrationFailedError instead of OSError, so that no error of
    the directory ends the plugin. Everything else can wait for the next registration, and raises nothing.
    """

    def __init__(
        self,
        directory: SocketDirectory,
        files: Subscription,
        stop: asyncio.Event,
        name: str,
        timings: Timings = DEFAULT,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends every wait; ``name`` is the name of the thread."""
        self._directory = directory
        self._files = files
        self._stop = stop
        self._worker = Worker(name)
        self._timings = timings
        self._access = HostCall(
            self._worker,
            ACCESS,
            hang=Problem(LOG, "kubelet directory is hanging", "kubelet directory is no longer hanging", logging.ERROR),
            limit=timings.hang,
            path=directory.path,
        )

    @property
    def changed(self) -> asyncio.Event:
        """Set after each change of the directory since the last ``view``."""
        return self._files.changed

    @property
    def interval(self) -> float:
        """Seconds after which to call ``view`` without a change."""
        return self._files.interval

    @property
    def problem(self) -> str:
        """Whether an access hangs; empty if none does. May be read in any thread."""
        return self._access.problem

    async def view(self, own_path: str = "") -> DirectoryView:
        """Return which sockets exist now. The next change of the directory sets ``changed``.

        Returns at once, without any socket, if ``stop`` is set; the same goes for all other methods. Raises
        RegistrationFailedError.
        """
        self.changed.clear()
        return await self._run("read", partial(self._view, own_path)) or DirectoryView(None, None)

    async def check(self) -> None:
        """Raise KubeletDirectoryError if the plugin can never serve in this directory."""
        await self._run("use", self._directory.check)

    async def sweep(self) -> None:
        """Remove stale sockets: of killed predecessors, or of this process in a directory that was moved back.

        gRPC removes the file at a socket's path when it stops, but finds none while the directory is elsewhere.
        """
        with contextlib.suppress(RegistrationFailedError):
            for name in await self._run("remove stale sockets in", self._directory.sweep) or ():
                LOG.info("removed stale socket", extra={"endpoint": name})

    async def other_plugins(self, own_endpoint: str) -> tuple[OtherPlugin, ...] | None:
        """Return the other processes that serve the plugin; None if they are unknown, or ``stop`` is set first."""
        with contextlib.suppress(RegistrationFailedError):
            return await self._run("read", partial(self._directory.other_plugins, own_endpoint))
        return None

    async def restrict(self, path: str) -> None:
        """Make a socket accessible for root alone. It may be gone: a kubelet that starts removes all sockets.

        Raises RegistrationFailedError.
        """

        def chmod() -> None:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(path, SOCKET_MODE)

        await self._run("set the mode of a socket in", chmod)

    async def show(self, hidden: str, path: str) -> None:
        """Give a socket its final name. Raises RegistrationFailedError."""
        await self._run("create a socket in", partial(os.rename, hidden, path))

    async def listens(self, path: str) -> bool | None:
        """Return whether a process listens on a socket of the kubelet; None if that is unknown, or ``stop`` is set."""
        return await self._run("connect to a socket beside", partial(listens, path))

    async def remove(self, path: str) -> None:
        """Remove a socket when its directory answers, even if ``stop`` is set. What fails is logged."""
        try:
            await self._worker.run(partial(os.unlink, path), label=ACCESS)
        except FileNotFoundError:
            pass
        except OSError as error:
            LOG.warning("socket could not be removed", extra={"path": path, "error": str(error)})

    async def close(self) -> None:
        """End the file events and the thread, now or when its last call returns."""
        with contextlib.suppress(WorkerTimeoutError):
            await self._worker.run(self._files.close, self._timings.stop, label="close")
        self._worker.close(self._files.close)

    def _view(self, own_path: str) -> DirectoryView:
        self._files.watch([self._directory.path])
        return DirectoryView(identify(self._directory.kubelet_path), identify(own_path) if own_path else None)

    async def _run(self, action: str, function: Callable[[], T]) -> T | None:
        """Run a call in the worker thread, and log if it hangs. Return None if ``stop`` is set first.

        Raises RegistrationFailedError instead of OSError; ``action`` is a verb for its message. The message does not
        name the socket, which differs each time: a failure that lasts is logged once.
        """
        async with (
            background_task(self._access.run(function)) as call,
            background_task(self._stop.wait()) as stopped,
        ):
            await asyncio.wait({call, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return None
            try:
                return call.result()
            except OSError as error:
                message = f"cannot {action} {self._directory.path}: {error.strerror}"
                raise RegistrationFailedError(message) from error
