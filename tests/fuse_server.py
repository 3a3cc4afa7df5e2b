# ruff: noqa: D102 - the methods of Tree have the names of the kernel's operations
"""The server of ``hanging_fs``, a program: FUSE 7.31 (linux/fuse.h) over /dev/fuse, and commands over standard input.

``hang``, ``fail OPERATION ERRNO`` and ``release`` change how requests are treated, ``waiting`` asks for the number of
those that wait, or that have failed, and ``await N`` is answered when there are N. The answer to each command is a line
with that number.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

DEVICE = "/dev/fuse"
MOUNT_OPTIONS = "rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other"


class Request(NamedTuple):
    """A request of the kernel: struct fuse_in_header, and what follows it."""

    opcode: int
    unique: int
    node: int
    thread: int
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> Request:
        """Read a request."""
        _, opcode, unique, node, _, _, thread, _, _ = struct.unpack_from("IIQQIIIHH", data)
        return cls(opcode, unique, node, thread, data[40:])

    def killed(self) -> bool:
        """Return whether the thread that waits has SIGKILL pending, as all threads of a process that ends."""
        try:
            with open(f"/proc/{self.thread}/status", encoding="utf-8") as file:
                pending = next(line for line in file if line.startswith("SigPnd:"))
        except (OSError, StopIteration):
            return True
        return bool(int(pending.split()[1], 16) & 1 << 8)


class Server:
    """The process that serves the file system."""

    POLL = 20
    """Milliseconds between two checks for killed processes during a hang."""

    PATIENCE = 30.0
    """Seconds until "await" is answered in any case."""

    def __init__(self, directory: str, source: str, *, killable: bool) -> None:
        self._killable = killable
        self._hanging = False
        self._failing = ("", 0)
        self._failed = 0
        self._waiting: list[Request] = []
        self._awaited: tuple[int, float] | None = None
        self._tree = Tree(source)
        self._fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
        _check(_libc.mount(b"hanging", os.fsencode(directory), b"fuse", 0, f"fd={self._fd},{MOUNT_OPTIONS}".encode()))

    def serve(self) -> None:
        """Serve until standard input ends."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(0, select.POLLIN)
        self._say(0)
        while True:
            ready = {fd for fd, _ in poll.poll(self.POLL if self._waiting or self._awaited else None)}
            if self._fd in ready:
                self._read()
            self._end_killed()
            count = len(self._waiting) + self._failed
            if self._awaited and (count >= self._awaited[0] or time.monotonic() > self._awaited[1]):
                self._awaited = None
                self._say(count)
            if 0 in ready:
                command = sys.stdin.readline()
                if not command:
                    return
                self._obey(*command.split())

    def _say(self, number: int) -> None:
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()

    def _obey(self, command: str, argument: str = "", error: str = "0") -> None:
        if command == "await":
            self._awaited = int(argument), time.monotonic() + self.PATIENCE
            return
        if command != "waiting":
            self._hanging = command == "hang"
            self._failing, self._failed = (argument, int(error)), 0
        if not self._hanging:
            waiting, self._waiting = self._waiting, []
            for request in waiting:
                self._answer(request)
        self._say(len(self._waiting) + self._failed)

    def _end_killed(self) -> None:
        killed = [request for request in self._waiting if request.killed()] if self._killable else []
        for request in killed:
            self._waiting.remove(request)
            self._reply(request, -errno.EINTR)

    def _read(self) -> None:
        try:
            request = Request.parse(os.read(self._fd, 1 << 18))
        except (BlockingIOError, FileNotFoundError, InterruptedError):  # the caller was killed before we read
            return
        if request.opcode in UNANSWERED:
            return
        if self._hanging and request.opcode not in NOT_AWAITED:
            self._waiting.append(request)
        else:
            self._answer(request)

    def _answer(self, request: Request) -> None:
        try:
            operation = OPERATIONS.get(request.opcode)
            if operation is None:
                self._reply(request, -errno.ENOSYS)
            elif operation.__name__ == self._failing[0]:
                self._failed += 1
                self._reply(request, -self._failing[1])
            else:
                self._reply(request, 0, operation(self._tree, request))
        except OSError as error:
            self._reply(request, -(error.errno or errno.EIO))

    def _reply(self, request: Request, error: int, body: bytes = b"") -> None:
        with contextlib.suppress(FileNotFoundError):  # the caller does not wait any more
            os.write(self._fd, struct.pack("IiQ", 16 + len(body), error, request.unique) + body)


class Tree:
    """The source directory, in the kernel's terms: nodes have numbers, of which 1 is the root."""

    def __init__(self, source: str) -> None:
        self._paths = {1: source}
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._listings: dict[int, list[bytes]] = {}

    def init(self, _request: Request) -> bytes:
        return struct.pack("4I2H2I2H2I", 7, 31, 1 << 17, 0, 64, 48, 1 << 17, 1, 0, 0, 0, 0).ljust(64, b"\0")

    def lookup(self, request: Request) -> bytes:
        return self._entry(self._child(request.node, request.body[:-1]))

    def getattr(self, request: Request) -> bytes:
        return struct.pack("QII", 0, 0, 0) + _attributes(os.lstat(self._path(request)))

    def setattr(self, request: Request) -> bytes:
        valid, _, _, size = struct.unpack_from("IIQQ", request.body)
        mode, _, uid, gid = struct.unpack_from("4I", request.body, 68)
        path = self._path(request)
        if valid & 6:
            os.lchown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(path, size)
        return self.getattr(request)

    def readlink(self, request: Request) -> bytes:
        return os.fsencode(os.readlink(self._path(request)))

    def mknod(self, request: Request) -> bytes:
        mode, rdev = struct.unpack_from("II", request.body)
        path = self._child(request.node, request.body[16:-1])
        os.mknod(path, mode, os.makedev(rdev >> 8 & 0xFFF, rdev & 0xFF | rdev >> 12 & 0xFFF00))
        return self._entry(path)

    def mkdir(self, request: Request) -> bytes:
        path = self._child(request.node, request.body[8:-1])
        os.mkdir(path, struct.unpack_from("I", request.body)[0])
        return self._entry(path)

    def unlink(self, request: Request) -> bytes:
        os.unlink(self._child(request.node, request.body[:-1]))
        return b""

    def rename(self, request: Request) -> bytes:
        old, new, _ = request.body[8:].split(b"\0")
        (directory,) = struct.unpack_from("Q", request.body)
        before, after = self._child(request.node, old), self._child(directory, new)
        os.rename(before, after)
        status = os.lstat(after)
        number = self._numbers.get((before, status.st_ino, stat.S_IFMT(status.st_mode)))
        if number is not None:  # the kernel finds the listener on a socket by its node
            self._numbers[after, status.st_ino, stat.S_IFMT(status.st_mode)] = number
            self._paths[number] = after
        return b""

    def create(self, request: Request) -> bytes:
        flags, mode = struct.unpack_from("II", request.body)
        path = self._child(request.node, request.body[16:-1])
        return self._entry(path, lambda: _opened(os.open(path, flags & ~os.O_NOFOLLOW, mode)))

    def open(self, request: Request) -> bytes:
        (flags,) = struct.unpack_from("I", request.body)
        return _opened(os.open(self._path(request), flags & ~(os.O_CREAT | os.O_EXCL)))

    def read(self, request: Request) -> bytes:
        fd, offset, size = struct.unpack_from("QQI", request.body)
        return os.pread(fd, size, offset)

    def write(self, request: Request) -> bytes:
        fd, offset, size = struct.unpack_from("QQI", request.body)
        return struct.pack("II", os.pwrite(fd, request.body[40 : 40 + size], offset), 0)

    def release(self, request: Request) -> bytes:
        os.close(struct.unpack_from("Q", request.body)[0])
        return b""

    def nothing(self, _request: Request) -> bytes:
        return b""

    def opendir(self, request: Request) -> bytes:
        path = self._path(request)
        listing = [_directory_entry(path, name, number + 1) for number, name in enumerate(sorted(os.listdir(path)))]
        self._listings[request.unique] = listing
        return struct.pack("QIi", request.unique, 0, 0)

    def readdir(self, request: Request) -> bytes:
        handle, offset, size = struct.unpack_from("QQI", request.body)
        data = b""
        for entry in self._listings[handle][offset:]:
            if len(data) + len(entry) > size:
                break
            data += entry
        return data

    def releasedir(self, request: Request) -> bytes:
        del self._listings[struct.unpack_from("Q", request.body)[0]]
        return b""

    def _path(self, request: Request) -> str:
        return self._paths[request.node]

    def _child(self, node: int, name: bytes) -> str:
        return os.path.join(self._paths[node], os.fsdecode(name))

    def _entry(self, path: str, opened: Callable[[], bytes] = bytes) -> bytes:
        """Return a node that the kernel must not cache. Another file of the same name is another node."""
        handle = opened()
        status = os.lstat(path)
        key = (path, status.st_ino, stat.S_IFMT(status.st_mode))
        number = self._numbers.setdefault(key, len(self._numbers) + 2)
        self._paths[number] = path
        return struct.pack("4QII", number, 0, 0, 0, 0, 0) + _attributes(status) + handle


def _attributes(status: os.stat_result) -> bytes:
    """Return struct fuse_attr."""
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    rdev = minor & 0xFF | major << 8 | (minor & ~0xFF) << 12
    return struct.pack(
        "6Q10I",
        *(status.st_ino, status.st_size, status.st_blocks, *(time // 10**9 for time in times)),
        *(*(time % 10**9 for time in times), status.st_mode, status.st_nlink, status.st_uid, status.st_gid),
        *(rdev, status.st_blksize, 0),
    )


def _directory_entry(directory: str, name: str, following: int) -> bytes:
    """Return struct fuse_dirent; ``following`` is the offset of the next one."""
    status, encoded = os.lstat(os.path.join(directory, name)), os.fsencode(name)
    entry = struct.pack("QQII", status.st_ino, following, len(encoded), stat.S_IFMT(status.st_mode) >> 12) + encoded
    return entry.ljust(-(-len(entry) // 8) * 8, b"\0")


def _opened(fd: int) -> bytes:
    return struct.pack("QIi", fd, 1, 0)  # FOPEN_DIRECT_IO: no page cache


UNANSWERED = {2, 36, 38, 42}
"""FORGET, INTERRUPT, DESTROY and BATCH_FORGET. An answer to DESTROY is not awaited without a block device."""

NOT_AWAITED = {18, 29}
"""RELEASE and RELEASEDIR, for which no thread waits."""

OPERATIONS = {
    1: Tree.lookup,
    3: Tree.getattr,
    4: Tree.setattr,
    5: Tree.readlink,
    8: Tree.mknod,
    9: Tree.mkdir,
    10: Tree.unlink,
    12: Tree.rename,
    14: Tree.open,
    15: Tree.read,
    16: Tree.write,
    18: Tree.release,
    20: Tree.nothing,  # FSYNC
    25: Tree.nothing,  # FLUSH
    26: Tree.init,
    27: Tree.opendir,
    28: Tree.readdir,
    29: Tree.releasedir,
    30: Tree.nothing,  # FSYNCDIR
    35: Tree.create,
}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "mount")


def main(directory: str, source: str, killable: str) -> None:
    """Serve until standard input ends. The kernel then fails the calls that wait, because /dev/fuse is closed."""
    server = Server(directory, source, killable=killable == "1")
    try:
        server.serve()
    finally:
        os.close(server._fd)
        _libc.umount2(os.fsencode(directory), 2)  # MNT_DETACH


if __name__ == "__main__":
    main(*sys.argv[1:])
