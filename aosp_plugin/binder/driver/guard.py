"""Calls on file systems that may hang while the rest of the host works: over a network, or served by a process.

A call on such a file system runs in a thread that is given up after ``GUARD_TIMEOUT``. The file system is not called
again until that call has returned, so that each hang costs one thread. Slow calls together have the same timeout.
Whether a path is on such a file system is decided by the mount table alone. Calls on all other file systems are made
directly.

A union (overlayfs) of a network file system has the type of the union and counts as one that does not hang.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from aosp_plugin.binder.driver import mounts
from aosp_plugin.binder.errors import NotRespondingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aosp_plugin.binder.driver.mounts import Mount

T = TypeVar("T")

LOG = logging.getLogger(__name__)

GUARD_TIMEOUT = 5.0
"""Seconds that a call may take. Less than ``framework.timings.Timings.hang``, so that a scan survives one hang."""

SLOW_CALL = 0.5
"""Seconds after which a call counts as slow. All slow calls on one file system may take ``GUARD_TIMEOUT`` together,
until the next ``refresh``: otherwise a file system that answers each call at the last moment would stop all scans."""

THREAD = "guarded call"
"""The name of the threads."""

_NETWORK = ("9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4")
_CLUSTER = ("gfs2", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs")
_SERVED = ("autofs", "fuse", "fuseblk", "prl_fs", "vboxsf", "virtiofs", "vmhgfs")
TYPES = frozenset({*_NETWORK, *_CLUSTER, *_SERVED})
"""Types of file systems that may hang. ``fuse.sshfs`` and the like count as ``fuse``."""

_given_up: dict[int, threading.Event] = {}
"""For each file system on which a call was given up, by st_dev: whether that call has ended. The kernel does not reuse
the number as long as a call is inside. Shared by all threads, which replace entries by single assignments."""


class Guard:
    """Protects the calls of one host. To be used in one thread at a time."""

    def __init__(self, mountinfo: Callable[[], str], root: str = "") -> None:
        """``mountinfo`` returns the text of the mount table, ``root`` is the directory that the host's files are in."""
        self._table = mounts.MountTable(mountinfo)
        self._root = root
        self.needed = False
        """Whether any file system may hang, according to the last ``refresh``."""
        self._mounts: Sequence[Mount] | None = None
        self._prefixes: tuple[str, ...] = ()
        self._devices: dict[str, int | None] = {}
        self._slow: dict[int, float] = {}
        """For each file system, by st_dev, the seconds that its slow calls have taken."""

    def refresh(self) -> Sequence[Mount]:
        """Return the mount table, the same object if it has not changed. Raises what ``mountinfo`` raises.

        To be called before each scan.
        """
        self._slow.clear()
        table = self._table.mounts()
        if table is not self._mounts:
            self._devices = hanging_devices(table, self._root)
            hanging = [path for path, device in self._devices.items() if device is not None]
            self._prefixes = tuple(f"{path.rstrip('/')}/" for path in hanging)
            self._mounts = table
            self.needed = bool(hanging)
        return table

    def may_hang(self, path: str) -> bool:
        """Return whether a call on ``path`` may hang. ``path`` is a path of this process without links."""
        if self._mounts is None:
            self.refresh()
        return self.needed and self._device(path) is not None

    def may_hang_below(self, directory: str) -> bool:
        """Return whether a call on a path below ``directory``, a path without links, may hang."""
        if self._mounts is None:
            self.refresh()
        prefix = f"{directory.rstrip('/')}/"
        return self.needed and (prefix.startswith(self._prefixes) or any(p.startswith(prefix) for p in self._prefixes))

    def call(self, function: Callable[[str], T], path: str) -> T:
        """Return ``function(path)``, or raise its error.

        Raises NotRespondingError if the file system does not respond. A function that was given up may still run later.
        """
        if self._mounts is None:
            self.refresh()
        if not self.needed or not f"{path}/".startswith(self._prefixes):  # the usual case, 50,000 times in a scan
            return function(path)
        device = self._device(path)
        if device is None:
            return function(path)
        given_up = _given_up.get(device)
        if (given_up is not None and not given_up.is_set()) or self._slow.get(device, 0.0) >= GUARD_TIMEOUT:
            raise _timeout(path)
        started = time.monotonic()
        call = _Call(function, path)
        ended = call.ended.wait(GUARD_TIMEOUT)
        seconds = time.monotonic() - started
        if not ended:
            self._give_up(device, call.ended, path)
            raise _timeout(path)
        if seconds >= SLOW_CALL:
            self._slow[device] = self._slow.get(device, 0.0) + seconds
            if self._slow[device] >= GUARD_TIMEOUT and device not in _given_up:
                self._give_up(device, call.ended, path)
        elif _given_up.pop(device, None) is not None:
            LOG.info("file system is responding again", extra={"path": path})
        return call.result()

    @staticmethod
    def _give_up(device: int, ended: threading.Event, path: str) -> None:
        _given_up[device] = ended
        LOG.warning("file system is not responding", extra={"path": path})

    def _device(self, path: str) -> int | None:
        """Return the st_dev of the file system that a call on ``path`` may hang in, or None."""
        if not f"{path}/".startswith(self._prefixes):
            return None
        while path not in self._devices:
            path = path.rpartition("/")[0] or "/"
        return self._devices[path]


class _Call(Generic[T]):
    """A call in a thread of its own. It starts at once."""

    def __init__(self, function: Callable[[str], T], path: str) -> None:
        self.ended = threading.Event()
        self._function = function
        self._path = path
        self._result: T
        self._error: BaseException | None = None
        try:
            threading.Thread(target=self._run, name=THREAD, daemon=True).start()
        except RuntimeError:  # no thread can be started, so the state of the file system is unknown
            self._error = _timeout(path)
            self.ended.set()

    def result(self) -> T:
        """Return the result of the call that has ended, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._function(self._path)
        except BaseException as error:  # noqa: BLE001 - raised by ``result``
            self._error = error
        self.ended.set()


def hanging_devices(table: Sequence[Mount], root: str = "") -> dict[str, int | None]:
    """Return for mount points the st_dev of the file system that a call below them may hang in; None for none.

    Below a file system that may hang, every path may hang, because the kernel asks it for the parent directories. The
    file system at "/" or at ``root`` is an exception: it only counts for paths that are on it, because if it hangs, the
    whole host does. Mount points that are neither such a file system nor below one are omitted, except "/".
    """
    top = {mount.directory: mount for mount in table}  # a later mount at the same place covers an earlier one
    hanging = {path: mount.device for path, mount in top.items() if mount.type.partition(".")[0] in TYPES}
    prefixes = tuple(f"{path.rstrip('/')}/" for path in hanging)
    devices: dict[str, int | None] = {"/": None}
    for path in sorted(path for path in top if f"{path}/".startswith(prefixes)):  # parents first
        devices[path] = hanging.get(path)
        parent = path.rpartition("/")[0] or "/"
        while parent not in devices:
            parent = parent.rpartition("/")[0] or "/"
        if devices[path] is None and parent not in {"/", root}:
            devices[path] = devices[parent]
    return devices


def _timeout(path: str) -> NotRespondingError:
    return NotRespondingError(f"the file system of {path} is not responding")
