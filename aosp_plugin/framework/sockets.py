"""Unix sockets in the directories that a kubelet shares with its plugins. What accesses a directory may block."""

import contextlib
import errno
import os
import re
import socket
import stat
import struct
import urllib.parse
from typing import NamedTuple

import grpc

from aosp_plugin.framework.backend import file_stem
from aosp_plugin.framework.errors import KubeletDirectoryError
from aosp_plugin.framework.file_events import MOUNT_TABLE

MAX_SOCKET_PATH = 107
"""Bytes in the path of a unix socket: sun_path has 108 with the terminating NUL (include/uapi/linux/un.h)."""

_CREDENTIALS = struct.Struct("3i")
"""struct ucred (include/linux/socket.h): process, user, group."""

GRPC_DESCRIPTORS = 16
"""Free descriptors that a new server or channel requires. It uses fewer than ten."""

REGISTERED_MODE = 0o700
"""Mode of a socket whose plugin is registered, for other plugins. The execute bit of a socket has no other meaning."""


class SocketIdentity(NamedTuple):
    """Distinguishes a socket from its successor at the same path.

    File systems reuse inode numbers at once. st_mtime of a socket is the time of bind(2): neither connections nor a new
    mode, owner, label or hard link change it, unlike st_ctime.
    """

    st_dev: int
    st_ino: int
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
    return f"unix:{urllib.parse.quote(path)}"


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
    created: int
    """When it was created, in milliseconds since the epoch, according to its name."""
    pid: int
    """Process ID; 0 if the process is in another PID namespace."""
    registered: bool
    """Whether a kubelet has registered it on this socket, see ``REGISTERED_MODE``."""

    def __str__(self) -> str:
        """Return the name of the socket, and the process ID if it is known."""
        return f"{self.endpoint} (process {self.pid})" if self.pid else self.endpoint


def creation_time(endpoint: str) -> int:
    """Return when a plugin's socket was created, according to its name, in milliseconds since the epoch."""
    return int(endpoint.removesuffix(".sock").rpartition("-")[2])


class SocketDirectory:
    """A directory that a kubelet shares with its plugins, and the names of one plugin's sockets in it."""

    def __init__(self, path: str, name: str, prefix: str = "") -> None:
        """Prepare for the sockets of one plugin, whose names begin with ``prefix`` and ``name``."""
        self.path = path
        self.kubelet_path = path
        """The path that exists if a kubelet has set up the directory: by default the directory itself."""
        self.stem = prefix + name
        """The beginning of the names of the plugin's sockets."""
        self._names = re.compile(r"\.?" + re.escape(self.stem) + r"-[0-9]{1,7}-[0-9]{1,14}\.sock")
        self._last_created = 0

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
                f"a socket in the kubelet's plugin directory {self.path} would have a path of {longest} bytes, and the "
                f"limit is {MAX_SOCKET_PATH}: shorten the kubelet's root directory, or the name of the resource"
            )

    @property
    def longest_name(self) -> str:
        """The longest name that a socket may have, before it serves."""
        return f".{self._endpoint(10**12)}"

    def next_endpoint(self, now: float) -> str:
        """Return a socket name that was never used before: a kubelet confuses registrations that share a name.

        The process ID does not make a name unique, because in a container it is the same after each restart. The name
        therefore ends with the time in milliseconds (``now`` is in seconds since the epoch), increased if it was used.
        """
        self._last_created = max(self._last_created + 1, int(now * 1000))
        return self._endpoint(self._last_created)

    def sweep(self) -> list[str]:
        """Remove the sockets that a killed predecessor left, and return their names. Raises OSError.

        A socket that accepts connections belongs to a running plugin, as during a rolling update, and stays.
        """
        stale = self.stale_sockets()
        for name in stale:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))
        return stale

    def stale_sockets(self) -> list[str]:
        """Return the names of the plugin's sockets that no process listens on. Raises OSError."""
        return [name for name in self.socket_names() if listener(os.path.join(self.path, name)) is None]

    def remove(self, name: str) -> None:
        """Remove a socket of this process at the end of its server. Raises OSError."""
        os.unlink(os.path.join(self.path, name))

    def socket_names(self) -> list[str]:
        """Return the names of the plugin's sockets, of this process and of others. Raises OSError.

        The name of a socket that does not serve yet begins with a dot: see ``plugin_socket``.
        """
        with os.scandir(self.path) as entries:
            return [entry.name for entry in entries if self._names.fullmatch(entry.name) and not entry.is_dir()]

    def other_plugins(self, own_endpoint: str = "") -> tuple[OtherPlugin, ...]:
        """Return the other processes that serve the plugin, the oldest socket first. Raises OSError.

        Sockets of this process do not count, and no connection is made to ``own_endpoint``.
        """
        found = []
        for endpoint in self.socket_names():
            if endpoint == self.left_name(endpoint):
                continue
            pid = None if endpoint == own_endpoint else listener(os.path.join(self.path, endpoint))
            if pid is not None and pid != os.getpid():
                with contextlib.suppress(FileNotFoundError):
                    found.append(OtherPlugin(endpoint, creation_time(endpoint), pid, self.was_registered(endpoint)))
        return tuple(sorted(found, key=lambda plugin: plugin.created))

    def left_name(self, name: str) -> str:
        """Return the name of the socket ``name`` after the end of its plugin: that of no process."""
        return f"{self.stem}-0-{creation_time(name)}.sock"

    def was_registered(self, name: str) -> bool:
        """Return whether a kubelet has registered a plugin on this socket, see ``REGISTERED_MODE``. Raises OSError.

        A hidden socket has the mode that the process's umask gives it.
        """
        mode = stat.S_IMODE(os.stat(os.path.join(self.path, name)).st_mode)
        return mode == REGISTERED_MODE and not name.startswith(".")

    def _endpoint(self, created: int) -> str:
        return f"{self.stem}-{os.getpid()}-{created}.sock"


class PluginDirectory(SocketDirectory):
    """The kubelet's directory for device plugins, and the names of one plugin's sockets in it."""

    def __init__(self, path: str, resource_name: str, prefix: str = "") -> None:
        """``resource_name`` is the resource of the plugin; the names of its sockets begin with ``prefix``."""
        super().__init__(path, file_stem(resource_name), prefix)
        self.kubelet_path = os.path.join(path, "kubelet.sock")

    def remove(self, name: str) -> None:
        """Remove a socket of this process, or leave it to a plugin of the resource that started earlier.

        The kubelet drops the devices when the later plugin ends (see ``supervisor.OtherPlugins``). If that one lived
        between two scans of the earlier one, nothing but its socket shows it, whose new name wakes the earlier plugin.
        The next registration removes it. Raises OSError.
        """
        created = creation_time(name)
        if self.was_registered(name) and any(other.created < created for other in self.other_plugins(name)):
            os.rename(os.path.join(self.path, name), os.path.join(self.path, self.left_name(name)))
        else:
            super().remove(name)

    def ended_plugins(self, own_endpoint: str) -> list[str]:
        """Return the sockets of registered plugins of the resource that have ended; ``own_endpoint`` is of none."""
        names = [name for name in self.socket_names() if name != own_endpoint and self.was_registered(name)]
        paths = {name: os.path.join(self.path, name) for name in names}
        return [name for name in names if name == self.left_name(name) or listener(paths[name]) is None]


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

    The mount table says so (fs/proc_namespace.c ``show_mountinfo``, fs/dcache.c ``dentry_path``). A directory without
    links need not be one: rmdir(2) drops the last link of any directory before its name, and some file systems count
    none.
    """
    try:
        if os.stat(path).st_nlink:
            return False
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
            fields = dict(line.split(b":", 1) for line in file)
    finally:
        os.close(descriptor)
    mount = fields[b"mnt_id"].strip()
    with open(MOUNT_TABLE, "rb") as file:
        mounts = (line.split(b" ", 4) for line in file)  # ID, parent's ID, device, root, further fields
        return any(each[0] == mount and each[3].endswith(b"//deleted") for each in mounts)
