"""Unix sockets that a kubelet and its plugins share a directory for, and access to it in a worker thread of its own."""

import asyncio
import contextlib
import errno
import logging
import os
import re
import socket
import stat
import struct
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import grpc

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.devices import shortened
from aosp_plugin.framework.errors import KubeletDirectoryError, RegistrationFailedError, WorkerTimeoutError
from aosp_plugin.framework.events.file_events import Subscription
from aosp_plugin.framework.timings import DEFAULT, Stop, Timings
from aosp_plugin.framework.worker import HostCall, Worker

LOG = logging.getLogger(__name__)

T = TypeVar("T")

MAX_SOCKET_PATH = 107
"""Bytes in the path of a unix socket: sun_path has 108 with the terminating NUL (include/uapi/linux/un.h)."""

_CREDENTIALS = struct.Struct("3i")
"""struct ucred (include/linux/socket.h): process, user, group."""

_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._~-]*")

GRPC_DESCRIPTORS = 16
"""Free descriptors that a new server or channel requires. It uses fewer than ten."""

MAX_STEM_LENGTH = 40
"""Characters of a socket's name that come from the name of the resource or driver. A socket's path has at most 107
bytes, of which the kubelet's directory takes 34 or more, and the rest of the socket's name up to 33."""

SOCKET_MODE = 0o600
"""For the kubelet alone, which runs as root like the plugin."""

REGISTERED_MODE = 0o700
"""Of a socket on which a kubelet has registered its plugin. The further bit has no other meaning for a socket."""


class SocketIdentity(NamedTuple):
    """Distinguishes a socket from its successor at the same path.

    File systems reuse inode numbers at once. st_mtime of a socket is the time of bind(2): neither connections nor a new
    mode, owner, label or hard link change it, unlike st_ctime.
    """

    device: int
    inode: int
    created: int
    """st_mtime in nanoseconds."""


def identify(path: str) -> SocketIdentity | None:
    """Return the identity of the socket at ``path``; None if it does not exist. Raises OSError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return SocketIdentity(status.st_dev, status.st_ino, status.st_mtime_ns)


def socket_address(path: str) -> str:
    """Return the gRPC address of the socket at ``path``, a URI in which spaces and % are escaped."""
    if _PLAIN_PATH.fullmatch(path):
        return f"unix:{path}"
    import urllib.parse  # noqa: PLC0415 - no path of a kubelet requires it

    return "unix:" + urllib.parse.quote(path)


def check_descriptors() -> None:
    """Raise OSError if the process has not enough free descriptors for a server or a channel.

    gRPC's C core aborts the process if it cannot create one of its event descriptors, instead of returning an error
    (measured with 1.85: "Attempting to fetch value instead of handling error INTERNAL: eventfd: Too many open files").
    """
    opened: list[int] = []
    try:
        while len(opened) < GRPC_DESCRIPTORS:
            opened.append(os.eventfd(0))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: gRPC requires {GRPC_DESCRIPTORS} free descriptors") from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def open_channel(path: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    """Return a new gRPC channel to the kubelet's socket at ``path``, with further ``options``. Raises OSError.

    The authority is set because C-core would send the %-encoded path of the socket. The channel has a subchannel pool
    of its own because a connection that failed before would make the next channel wait for the end of its backoff.
    """
    check_descriptors()
    own_options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1), *options]
    return grpc.aio.insecure_channel(socket_address(path), options=own_options)


class OtherPlugin(NamedTuple):
    """A socket that another process listens on."""

    endpoint: str
    """The name of the socket."""
    number: int
    """When it was created, in milliseconds since the epoch, according to its name."""
    pid: int
    """Process ID; 0 if the process is in another PID namespace."""
    registered: bool
    """Whether a kubelet has registered it on this socket, see ``REGISTERED_MODE``."""

    def __str__(self) -> str:
        """Return the name of the socket, and the process ID if it is known."""
        return f"{self.endpoint} (process {self.pid})" if self.pid else self.endpoint


def socket_number(endpoint: str) -> int:
    """Return the number in the name of a plugin's socket: when it was created, in milliseconds since the epoch."""
    return int(endpoint.removesuffix(".sock").rpartition("-")[2])


class SocketDirectory:
    """A directory that a kubelet shares with its plugins, and the names of one plugin's sockets in it."""

    def __init__(self, path: str, stem: str) -> None:
        """Prepare for the sockets of one plugin, whose names begin with ``stem``."""
        self.path = path
        self._stem = stem
        self._names = re.compile(r"\.?" + re.escape(self._stem) + r"-[0-9]{1,7}-[0-9]{1,14}\.sock")
        self._last_number = 0

    @property
    def kubelet_path(self) -> str:
        """The path that exists if a kubelet has set up the directory: the directory itself."""
        return self.path

    def check(self) -> None:
        """Raise KubeletDirectoryError if the plugin can never serve in this directory, and OSError if it fails now."""
        try:
            exists = stat.S_ISDIR(os.stat(self.path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            exists = False
        if not exists:
            raise KubeletDirectoryError(
                f"the kubelet's plugin directory {self.path} does not exist: is this a node with a kubelet, and is "
                "the directory mounted into this container?"
            )
        if not os.access(self.path, os.W_OK | os.X_OK):
            if os.geteuid() == 0:  # the file system is read-only after an error, or fails
                raise OSError(errno.EROFS, "not writable", self.path)
            raise KubeletDirectoryError(
                f"the kubelet's plugin directory {self.path} is not writable for uid {os.getuid()}: the kubelet "
                "creates it for root only (mode 0750)"
            )
        longest = len(os.fsencode(os.path.join(self.path, self.longest_name)))
        if longest > MAX_SOCKET_PATH:
            raise KubeletDirectoryError(
                f"the kubelet's plugin directory {self.path} is {longest - MAX_SOCKET_PATH} bytes too long: the "
                f"path of a socket has at most {MAX_SOCKET_PATH} bytes"
            )

    @property
    def longest_name(self) -> str:
        """The longest name that a socket may have: that of a socket that does not serve yet."""
        return f".{self._name(4194304, 10**13)}"

    def next_endpoint(self, now: float) -> str:
        """Return a socket name that was never used before: a kubelet confuses registrations that share a name.

        The process ID does not make a name unique, because in a container it is the same after each restart. The name
        therefore ends with the time in milliseconds (``now`` is in seconds since the epoch), increased if it was used.
        """
        self._last_number = max(self._last_number + 1, int(now * 1000))
        return self._name(os.getpid(), self._last_number)

    def sweep(self) -> list[str]:
        """Remove the sockets that a killed predecessor left, and return their names. Raises OSError.

        A socket that accepts connections belongs to a running plugin, as during a rolling update, and stays.
        """
        stale = [name for name in self.socket_names() if listener(os.path.join(self.path, name)) is None]
        for name in stale:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))
        return stale

    def socket_names(self) -> list[str]:
        """Return the names of the plugin's sockets, of this process and of others. Raises OSError.

        Names that begin with a dot are those of sockets that do not serve yet: see ``registration``.
        """
        with os.scandir(self.path) as entries:
            return [entry.name for entry in entries if self._names.fullmatch(entry.name) and not entry.is_dir()]

    def other_plugins(self, own_endpoint: str = "") -> tuple[OtherPlugin, ...]:
        """Return the other processes that serve the plugin, in the order of their sockets' numbers. Raises OSError.

        Sockets of this process do not count: it has two plugins of the resource for a moment during a reload. Nor does
        ``own_endpoint``, to which no connection is made.
        """
        found = []
        for endpoint in self.socket_names():
            pid = None if endpoint == own_endpoint else listener(os.path.join(self.path, endpoint))
            if pid is not None and pid != os.getpid():
                with contextlib.suppress(FileNotFoundError):
                    is_registered = stat.S_IMODE(os.stat(os.path.join(self.path, endpoint)).st_mode) == REGISTERED_MODE
                    found.append(OtherPlugin(endpoint, socket_number(endpoint), pid, is_registered))
        return tuple(sorted(found, key=lambda plugin: plugin.number))

    def _name(self, pid: int, number: int) -> str:
        return f"{self._stem}-{pid}-{number}.sock"


def listener(path: str) -> int | None:
    """Return the process ID of the listener on the socket at ``path`` (unix(7), SO_PEERCRED); None if there is none.

    0 if it is unknown: the process is in another PID namespace, or accepts no connection at the moment. A process that
    ends leaves its socket behind. A gRPC server drops a connection that ends at once, without a log line
    (google.golang.org/grpc, internal/transport/http2_server.go ``NewServerTransport``). Raises OSError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except BlockingIOError:
            return 0
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def is_removed_mount(path: str) -> bool:
    """Return whether a mount at ``path`` shows a directory that has been removed. Raises OSError.

    A directory that is no mount also has no links for a moment while it is removed: rmdir(2) drops its last link before
    its name, and keeps its parent locked meanwhile (fs/namei.c ``do_rmdir``). To list the parent waits for that.
    """
    try:
        removed = os.stat(path)
        if removed.st_nlink:
            return False
        os.listdir(f"{path}/..")
        return os.stat(path) == removed
    except (FileNotFoundError, NotADirectoryError):
        return False


def socket_stem(name: str, prefix: str = "") -> str:
    """Return the beginning of the names of the sockets of a resource or driver, whose own name may be long."""
    return prefix + shortened(name.replace("/", "_"), MAX_STEM_LENGTH)


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
        stop: Stop,
        name: str,
        timings: Timings = DEFAULT,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends every wait; ``name`` is the name of the thread."""
        self._directory = directory
        self._files = files
        self._stop = stop
        self._worker = Worker(name)
        self._access = HostCall(
            self._worker,
            "kubelet directory",
            limit=timings.hang,
            retried=False,
            path=directory.path,
        )

    @property
    def problem(self) -> str:
        """Whether an access hangs; empty if none does. May be read in any thread."""
        return self._access.problem

    async def run(self, action: str, function: Callable[[], T], timeout: float | None = None) -> T | None:
        """Run a call in the worker thread, and log if it hangs. Return None if ``stop`` is set or time is over first.

        Raises RegistrationFailedError instead of OSError; ``action`` is a verb for its message. The message does not
        name the socket, which differs each time: a failure that lasts is logged once.
        """
        async with (
            background_task(self._access.run(function)) as call,
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

        Returns at once, without any socket, if ``stop`` is set; the same goes for all other methods. Raises
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

    async def remove(self, path: str) -> None:
        """Remove a socket when its directory answers, even if ``stop`` is set. What fails is logged."""
        try:
            await self._worker.run(partial(os.unlink, path), label="kubelet directory")
        except FileNotFoundError:
            pass
        except OSError as error:
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
