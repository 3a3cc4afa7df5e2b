# ruff: noqa: D102, ARG002 - the methods of Tree have the names and arguments of libfuse's operations
"""The server of ``hanging_fs``, a program: a directory as a file system, and commands over standard input.

``hang``, ``fail OPERATION ERRNO`` and ``release`` change how operations are treated, and ``await N`` is answered when N
of them wait or have failed. The answer to each command is a line with that number. When standard input ends, the
program does, and the kernel fails the calls that wait.
"""

import ctypes
import errno
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from mfusepy import FUSE, Operations, fuse_get_context

POLL: Final = 0.02
"""Seconds between two checks for killed processes during a hang."""
PATIENCE: Final = 30.0
"""Seconds until "await" is answered in any case."""
NOT_AWAITED: Final = {"release", "releasedir"}
"""Operations for which no thread waits."""


class Gate:
    """Lets operations pass, or holds them, or fails those of a name."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._hang: object = None
        self._failing = ("", 0)
        self._failed = self._waiting = 0

    def enter(self, operation: str) -> None:
        """Return when an operation may be done. Raises OSError if it fails, or its process is killed."""
        with self._changed:
            if operation == self._failing[0]:
                self._failed += 1
                self._changed.notify_all()
                raise OSError(self._failing[1], "as commanded")
            hang, thread = self._hang, fuse_get_context()[2]
            if hang is None or operation in NOT_AWAITED:
                return
            self._waiting += 1
            self._changed.notify_all()
            while self._hang is hang and not _killed(thread):
                self._changed.wait(POLL)
            self._waiting -= 1
            if self._hang is hang:
                raise OSError(errno.EINTR, "killed")

    def obey(self, command: str, argument: str = "", error: str = "0") -> int:
        """Execute a command, and return the number of operations that wait or have failed."""
        with self._changed:
            if command == "await":
                self._changed.wait_for(lambda: self._waiting + self._failed >= int(argument), PATIENCE)
            else:
                self._hang = object() if command == "hang" else None
                self._failing, self._failed = (argument, int(error)), 0
                self._changed.notify_all()
            return self._waiting + self._failed


def _killed(thread: int) -> bool:
    """Return whether a thread has SIGKILL pending, as all threads of a process that ends."""
    try:
        with open(f"/proc/{thread}/status", encoding="utf-8") as file:
            pending = next(line for line in file if line.startswith("SigPnd:"))
    except (OSError, StopIteration):
        return True
    return bool(int(pending.split()[1], 16) & 1 << 8)


class Tree(Operations):  # type: ignore[misc]  # mfusepy has no types
    """The source directory, each of whose operations passes the gate. FUSE_LOOKUP is a ``getattr`` too."""

    use_ns = True

    def __init__(self, source: str, gate: Gate) -> None:
        self._source = source
        for name in OPERATIONS:
            setattr(self, name, _gated(gate, getattr(self, name)))

    def init(self, _path: str) -> None:
        print(0, flush=True)  # noqa: T201 - the answer to the start

    def _path(self, path: str) -> str:
        return self._source + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._path(path))
        times = {name: getattr(status, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
        names = ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blocks", "st_blksize")
        return {name: getattr(status, name) for name in names} | times

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._path(path), mode & 0o7777)
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._path(path))

    def mknod(self, path: str, mode: int, dev: int) -> int:
        os.mknod(self._path(path), mode, dev)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._path(path), mode)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._path(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._path(old), self._path(new))
        return 0

    def create(self, path: str, mode: int, fi: int) -> int:
        return os.open(self._path(path), fi | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._path(path), flags & ~(os.O_CREAT | os.O_EXCL))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def opendir(self, path: str) -> int:
        return 0

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, dict[str, Any], int]]:
        entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(self._path(path))]
        return ((name, {"st_ino": it.st_ino, "st_mode": it.st_mode}, 0) for name, it in entries)


OPERATIONS: Final = [name for name in vars(Tree) if not name.startswith("_") and name not in {"init", "use_ns"}]


def _gated(gate: Gate, operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that passes the gate first, with the same parameters, which mfusepy counts."""

    @functools.wraps(operation)
    def gated(*arguments: Any) -> Any:
        gate.enter(operation.__name__)
        return operation(*arguments)

    return gated


def _obey(gate: Gate, directory: str) -> None:
    """Obey standard input until it ends, and end the program: the calls that wait must not be answered."""
    for line in sys.stdin:
        print(gate.obey(*line.split()), flush=True)  # noqa: T201 - the answer
    ctypes.CDLL(None).umount2(os.fsencode(directory), 2)  # MNT_DETACH
    os._exit(0)


def main(directory: str, source: str) -> None:
    """Serve until standard input ends. The kernel caches neither names nor attributes nor pages."""
    gate = Gate()
    threading.Thread(target=_obey, args=(gate, directory), daemon=True).start()
    uncached = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0, "direct_io": True, "use_ino": True}
    options = {"allow_other": True, "default_permissions": True}
    FUSE(Tree(source, gate), directory, foreground=True, **uncached, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
