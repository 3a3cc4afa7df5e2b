"""The stand-in kubelet's plugin watcher: which sockets appear in a directory tree, and which disappear.

Like pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go, it reads the directory once, at its start, and then
relies on the inotify events CREATE (which includes files that are moved to the directory) and DELETE. Files that are
moved away are not noticed, nor is a directory that replaces the watched one. Names that begin with a dot are ignored,
and so are files that are no sockets.
"""

import asyncio
import ctypes
import os
import stat
import struct
from collections.abc import Callable
from typing import Final

import grpc

from kubelet_standin.sockets import open_channel

_IN_CREATE: Final = 0x100
_IN_DELETE: Final = 0x200
_IN_MOVED_TO: Final = 0x80
_IN_IGNORED: Final = 0x8000
_HEADER: Final = struct.Struct("iIII")
_BUFFER: Final = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class RegistryWatcher:
    """Watches one directory tree with an inotify instance of its own. Belongs to one event loop."""

    def __init__(self, directory: str, appeared: Callable[[str], None], disappeared: Callable[[str], None]) -> None:
        """Create the directory, watch it, and report the sockets in it. Raises OSError."""
        os.makedirs(directory, mode=0o755, exist_ok=True)
        self._appeared = appeared
        self._disappeared = disappeared
        self.directories: dict[int, str] = {}
        """The watched directories by the numbers of their watches."""
        self.descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        asyncio.get_running_loop().add_reader(self.descriptor, self._read)
        self._walk(directory)

    def close(self) -> None:
        """Stop watching."""
        asyncio.get_running_loop().remove_reader(self.descriptor)
        os.close(self.descriptor)

    def _walk(self, directory: str) -> None:
        watch = _checked(
            _libc.inotify_add_watch(self.descriptor, os.fsencode(directory), _IN_CREATE | _IN_DELETE | _IN_MOVED_TO)
        )
        self.directories[watch] = directory
        for name in sorted(os.listdir(directory)):
            self._created(os.path.join(directory, name))

    def _read(self) -> None:
        self.process(os.read(self.descriptor, _BUFFER))

    def process(self, events: bytes) -> None:
        """Report what a buffer of events says. Those that the kernel had no room for are lost, as for a kubelet."""
        while events:
            watch, mask, _, length = _HEADER.unpack_from(events)
            name = events[_HEADER.size : _HEADER.size + length].rstrip(b"\0")
            events = events[_HEADER.size + length :]
            if mask & _IN_IGNORED:
                del self.directories[watch]
            if watch not in self.directories:
                continue
            path = os.path.join(self.directories[watch], os.fsdecode(name))
            if mask & _IN_DELETE:
                self._disappeared(path)
            elif mask & (_IN_CREATE | _IN_MOVED_TO):
                self._created(path)

    def _created(self, path: str) -> None:
        if os.path.basename(path).startswith("."):
            return
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return
        if stat.S_ISDIR(mode):
            self._walk(path)
        elif stat.S_ISSOCK(mode):
            self._appeared(path)


class Registry:
    """The directory plugins_registry of this machine. A subclass may have other sockets, such as simulated ones."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name a directory, which ``watch`` creates."""
        self.path = os.path.abspath(path)

    def channel(self, path: str) -> grpc.aio.Channel:
        """Return a new gRPC channel to the socket of a driver."""
        return open_channel(path)

    def watch(self, appeared: Callable[[str], None], disappeared: Callable[[str], None]) -> Callable[[], None]:
        """Report the paths of sockets as ``RegistryWatcher`` does; return what ends that. Raises OSError."""
        return RegistryWatcher(self.path, appeared, disappeared).close


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
