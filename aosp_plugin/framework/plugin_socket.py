"""One plugin's access to the directory that a kubelet shares with its plugins, and its server there.

A worker thread accesses the directory. If that hangs or fails, only the registration of this plugin is delayed.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import grpc

from aosp_plugin.framework.conditions import KUBELET_DIRECTORY_HANGS
from aosp_plugin.framework.errors import KubeletDirectoryError, RegistrationFailedError, WorkerTimeoutError
from aosp_plugin.framework.file_events import Subscription
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.sockets import (
    REGISTERED_MODE,
    SocketDirectory,
    SocketIdentity,
    check_descriptors,
    identify,
    is_removed_mount,
    socket_address,
)
from aosp_plugin.framework.timing import Stop, background_task
from aosp_plugin.framework.worker import Worker, report_hangs

LOG = logging.getLogger(__name__)

T = TypeVar("T")

Handlers: TypeAlias = "Sequence[grpc.GenericRpcHandler[bytes, bytes]]"
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

SOCKET_MODE = 0o600
"""Mode of a plugin's socket: for the kubelet alone, which runs as root like the plugin."""

LABEL = "kubelet directory"
"""What hangs, for people."""


REQUEST_LIMIT = 64 * 1024 * 1024
"""Bytes of a request. GetPreferredAllocation carries every free ID; gRPC's default of 4 MiB suffices for 220,000."""

_STOPPING: set[asyncio.Task[None]] = set()
"""The ends of servers, so that none is dropped: the destructor of a server stops it, too."""


class DirectoryView(NamedTuple):
    """The sockets in the directory at one moment."""

    kubelet: SocketIdentity | None
    """``SocketDirectory.kubelet_path``; None if it does not exist."""
    own: SocketIdentity | None
    """The socket of the registration; None if it does not exist, or there is none."""


class DirectoryMonitor:
    """One plugin's access to the directory.

    What the plugin needs for its registration raises RegistrationFailedError instead of OSError, so that no error of
    the directory ends the plugin. Everything else can wait for the next registration, and raises nothing.
    """

    def __init__(
        self,
        directory: SocketDirectory,
        files: Subscription,
        stop: Stop,
        name: str,
        resource: str,
        runtime: Runtime,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends every wait; ``name`` is the name of the thread."""
        self._directory = directory
        self._files = files
        self._stop = stop
        self._worker = Worker(name)
        self._conditions = runtime.conditions
        self._resource = resource
        self._limit = runtime.timings.hang

    async def report_hangs(self) -> None:
        """Report, until cancelled, that the directory hangs."""
        await report_hangs(
            self._worker,
            self._conditions,
            self._resource,
            self._limit,
            lambda _call: KUBELET_DIRECTORY_HANGS,
            self._directory.path,
        )

    async def run(self, action: str, function: Callable[[], T], timeout: float | None = None) -> T | None:
        """Run a call in the worker thread. Return None if ``stop`` is set or time is over first.

        Raises RegistrationFailedError instead of OSError; ``action`` is a verb for its message. The message does not
        name the socket, which differs each time: a failure that lasts is logged once.
        """
        async with (
            background_task(self._worker.run(function, label=LABEL)) as call,
            background_task(self._stop.wait()) as stopped,
        ):
            await asyncio.wait({call, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                return None
            try:
                return call.result()
            except OSError as error:
                message = f"cannot {action} {self._directory.path}: {error.strerror}"
                raise RegistrationFailedError(message) from error

    async def view(self, own_path: str = "", *, registered: bool = False) -> DirectoryView:
        """Return which sockets exist now. The next change of the directory sets the event of ``files``.

        ``registered`` gives the plugin's own socket the mode that tells other plugins of the resource.

        Once ``stop`` is set, all methods return at once, and this one without any socket. Raises
        RegistrationFailedError.
        """
        self._files.changed.clear()
        return await self.run("read", partial(self._view, own_path, registered)) or DirectoryView(None, None)

    async def sweep(self) -> None:
        """Remove stale sockets: of killed predecessors, or of this process in a directory that was moved back.

        gRPC removes the file at a socket's path when it stops, but finds none while the directory is elsewhere.
        """
        with contextlib.suppress(RegistrationFailedError):
            for name in await self.run("remove stale sockets in", self._directory.sweep) or ():
                LOG.info("removed stale socket", extra={"endpoint": name})

    async def show(self, hidden: str, path: str) -> None:
        """Make a socket accessible for root alone, and give it its final name. Raises RegistrationFailedError."""

        def show() -> None:
            os.chmod(hidden, SOCKET_MODE)
            os.rename(hidden, path)

        await self.run("create a socket in", show)

    async def remove(self, name: str) -> None:
        """Remove a socket when its directory answers, even if ``stop`` is set. What fails is logged."""
        try:
            await self._worker.run(partial(self._directory.remove, name), label=LABEL)
        except FileNotFoundError:
            pass
        except OSError as error:
            path = os.path.join(self._directory.path, name)
            LOG.warning("socket could not be removed", extra={"path": path, "error": str(error)})

    async def close(self) -> None:
        """End the file events and the thread, at the deadline of ``stop`` or when its last call returns."""
        with contextlib.suppress(WorkerTimeoutError):
            await self._worker.run(self._files.close, self._stop.remaining, label="close")
        self._worker.close(self._files.close)

    def _view(self, own_path: str, registered: bool) -> DirectoryView:  # noqa: FBT001 - called by position
        self._files.watch([self._directory.path])
        if is_removed_mount(self._directory.path):  # a kubelet makes a new one, which only a new mount shows
            raise KubeletDirectoryError(f"{self._directory.path} was removed: this container has it as a mount")
        own = identify(own_path) if own_path else None
        if registered and own is not None:
            os.chmod(own_path, REGISTERED_MODE)
        return DirectoryView(identify(self._directory.kubelet_path), own)


@contextlib.asynccontextmanager
async def serving_rpcs(
    handlers: Handlers, path: str, monitor: DirectoryMonitor, stop: Stop, *, finish: Callable[[], None]
) -> AsyncIterator[None]:
    """Serve on a new socket at ``path`` inside the context.

    At the end, ``finish`` is called and must end all streams. Pending requests get a quarter of the time until the
    deadline of ``stop``, which leaves time for later steps of the shutdown. The name of the socket begins with a dot
    until the server answers.

    The handlers are coroutines. Measured with gRPC 1.85: Allocate takes 1.2 times as long as an empty handler in a
    thread, and 1.1 times in a pool of threads, where however each open stream occupies a thread.

    The event loop waits while gRPC creates the socket. This is its only access to files of the host, and the directory
    has just answered in the monitor's thread. If the directory hangs, the server stops when it answers again. Raises
    RegistrationFailedError if the server cannot start, or the directory fails.
    """
    directory, name = os.path.split(path)
    hidden = os.path.join(directory, f".{name}")
    try:
        check_descriptors()
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", REQUEST_LIMIT)])
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(socket_address(hidden))
    except (OSError, RuntimeError) as error:
        # The name of the socket differs each time. Without it, a failure that lasts is logged once.
        cause = str(error).replace(socket_address(hidden), directory)
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
        stopping = asyncio.create_task(_stop(server, [name, f".{name}"], monitor, remaining / 4, started=started))
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        await asyncio.wait({stopping}, timeout=remaining / 2)  # the directory may hang


async def _stop(
    server: grpc.aio.Server, names: Sequence[str], monitor: DirectoryMonitor, grace: float, *, started: bool
) -> None:
    """Stop the server when its directory answers. gRPC removes a socket only if it has the name that gRPC gave it."""
    for name in names:
        await monitor.remove(name)
    if not started:
        await server.start()  # otherwise gRPC would keep the server
    await server.stop(grace)
