"""The file systems of a simulated host: directories, files, links, devices and sockets, and the mounts of them."""

import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.binder_driver import (
    ALL_MINORS,
    CONTROL,
    CONTROL_INODE,
    FIRST_DEVICE_INODE,
    KERNEL_DEVICES,
    MAJOR,
    Binderfs,
    Numbers,
)

ROOT_DEVICE = 1


class Status(NamedTuple):
    """What stat(2) returns of a file."""

    st_mode: int
    st_ino: int
    st_dev: int
    st_rdev: int
    st_size: int
    st_mtime_ns: int
    st_nlink: int = 1
    st_uid: int = 0

    @property
    def st_mtime(self) -> float:
        """Seconds."""
        return self.st_mtime_ns / 1e9


class Inode:
    """A file of any type."""

    def __init__(self, system: "FileSystem", mode: int, now: int, number: int | None = None) -> None:
        self.system = system
        self.number = system.next_inode() if number is None else number
        self.mode = mode
        self.changed = now
        self.rdev = 0
        self.data = b""
        self.target = ""
        self.entries: dict[str, Inode] = {}
        self.watchers: list[Callable[[], None]] = []
        self.locks: list[Any] = []
        """The descriptors that hold a lock."""
        self.descriptors: list[Any] = []
        """The open descriptors of it, if it is in a binderfs."""
        self.users: set[str] = set()
        """The pods whose running containers have it."""
        self.first_user = ""

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_used(self) -> bool:
        """Whether a container or a process has it, removed or not."""
        return bool(self.users) or any(each.is_open for each in self.descriptors)

    def status(self) -> Status:
        """Return the result of stat(2)."""
        return Status(self.mode, self.number, self.system.device, self.rdev, len(self.data), self.changed)


class FileSystem:
    """A file system; a binderfs has a control file, and its devices have numbers of the driver."""

    def __init__(self, device: int, kind: str, source: str, now: int, binderfs: Binderfs | None = None) -> None:
        self.device, self.kind, self.source, self.binderfs = device, kind, source, binderfs
        self._inodes = 0
        self.root = Inode(self, stat.S_IFDIR | 0o755, now)
        self.devices: list[Inode] = []
        """The binder devices that have a number, removed ones that are in use included."""
        if binderfs is not None:
            self.root.entries[CONTROL] = Inode(self, stat.S_IFCHR | 0o600, now, CONTROL_INODE)

    def next_inode(self) -> int:
        """Return a number that no other file has."""
        self._inodes += 1
        return self._inodes


class Mount(NamedTuple):
    """A file system at a place."""

    path: str
    system: FileSystem
    number: int
    """In the order of mounts."""
    id: int


class Files:
    """The tree of a host. Every change of a directory is reported to those that watch it."""

    def __init__(self, now: Callable[[], int]) -> None:
        """``now`` returns nanoseconds since the epoch."""
        self.now = now
        self._devices = Numbers(ROOT_DEVICE + 1)
        self._systems: list[FileSystem] = []
        """Those that have a number, but the root."""
        self._numbers = 0
        self._ids = Numbers(2)
        self._minors = Numbers()
        self.root = FileSystem(ROOT_DEVICE, "ext4", "/dev/vda", now())
        self.mounts: dict[str, list[Mount]] = {}
        """By path, the topmost last."""
        self.changes = 0
        """The number of changes of directories and mounts."""
        self._found: dict[tuple[str, bool], Inode | int] = {}
        """What ``lookup`` has found since the last change, or the number of its error."""
        self._table = ""
        self.mounts_changed: list[Callable[[], None]] = []
        self.going: dict[str, Inode] = {}
        """Directories by path whose removal goes on: stat(2) may find them, without links. To list a directory waits
        for the end (fs/namei.c ``do_rmdir``)."""

    # -- paths

    def lookup(self, path: str, *, follow: bool = True) -> Inode:
        """Return the file at an absolute path. Raises OSError."""
        if (found := self._found.get((path, follow))) is None:
            try:
                found = self._lookup(path, follow=follow, depth=0)
            except OSError as error:
                found = error.errno or 0
            self._found[path, follow] = found
        if isinstance(found, int):
            raise _error(found, path)
        return found

    def _lookup(self, path: str, *, follow: bool, depth: int) -> Inode:
        if depth > 40:
            raise _error(errno.ELOOP, path)
        inode, done = self.root.root, ""
        if stack := self.mounts.get("/"):
            inode = stack[-1].system.root
        parts = [part for part in path.split("/") if part not in {"", "."}]
        for index, part in enumerate(parts):
            if not inode.is_directory:
                raise _error(errno.ENOTDIR, path)
            child = inode.entries.get(part)
            if child is None:
                raise _error(errno.ENOENT, path)
            done = f"{done}/{part}"
            if stat.S_ISLNK(child.mode) and (follow or index < len(parts) - 1):
                target = child.target if child.target.startswith("/") else f"{os.path.dirname(done)}/{child.target}"
                rest = "/".join(parts[index + 1 :])
                return self._lookup(os.path.normpath(f"{target}/{rest}"), follow=follow, depth=depth + 1)
            if stack := self.mounts.get(done):
                child = stack[-1].system.root
            inode = child
        return inode

    def exists(self, path: str) -> bool:
        """Return whether there is a file at a path."""
        try:
            self.lookup(path)
        except OSError:
            return False
        return True

    def parent(self, path: str) -> tuple[Inode, str]:
        """Return the directory of a path, and the name in it. Raises OSError."""
        directory, name = os.path.split(path.rstrip("/"))
        inode = self.lookup(directory or "/")
        if not inode.is_directory:
            raise _error(errno.ENOTDIR, path)
        return inode, name

    def real_path(self, path: str) -> str:
        """Return a path without links; one that has more than 40, with the rest of them."""
        done, links = "", 0
        todo = [part for part in path.split("/") if part not in {"", "."}]
        while todo:
            part = todo.pop(0)
            candidate = f"{done}/{part}"
            try:
                inode = self.lookup(candidate, follow=False)
            except OSError:
                done = candidate
                continue
            links += stat.S_ISLNK(inode.mode)
            if stat.S_ISLNK(inode.mode) and links <= 40:
                target = inode.target if inode.target.startswith("/") else f"{done}/{inode.target}"
                todo = [each for each in os.path.normpath(target).split("/") if each] + todo
                done = ""
            else:
                done = candidate
        return done or "/"

    # -- changes

    def add(self, path: str, mode: int, *, exclusive: bool = True) -> Inode:
        """Create a file. Raises OSError."""
        directory, name = self.parent(path)
        if name in directory.entries:
            if exclusive:
                raise _error(errno.EEXIST, path)
            return directory.entries[name]
        if directory.system.kind == "binder":  # fs/namei.c vfs_create, vfs_mkdir and vfs_symlink: it has none of them
            raise _error(errno.EACCES if stat.S_ISREG(mode) else errno.EPERM, path)
        inode = Inode(directory.system, mode, self.now())
        directory.entries[name] = inode
        self.changed(directory)
        return inode

    def make_directories(self, path: str) -> None:
        """Create a directory, and those above it."""
        done = ""
        for part in path.strip("/").split("/"):
            done = f"{done}/{part}"
            try:
                self.lookup(done)
            except FileNotFoundError:
                self.add(done, stat.S_IFDIR | 0o755)

    def write(self, path: str, data: bytes) -> None:
        """Create a file with this content, or replace it."""
        self.add(path, stat.S_IFREG | 0o644, exclusive=False).data = data

    def remove(self, path: str) -> Inode:
        """Unlink a file. Raises OSError."""
        directory, name = self.parent(path)
        inode = directory.entries.get(name)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if inode.is_directory:
            raise _error(errno.EISDIR, path)
        if directory.system.kind == "binder" and name == CONTROL:
            raise _error(errno.EPERM, path)
        del directory.entries[name]
        self.changed(directory)
        return inode

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises OSError."""
        directory, name = self.parent(path)
        inode = directory.entries.get(name)
        if inode is None:
            raise _error(errno.ENOENT, path)
        if path.rstrip("/") in self.mounts:
            raise _error(errno.EBUSY, path)
        if not inode.is_directory:
            raise _error(errno.ENOTDIR, path)
        if inode.entries:
            raise _error(errno.ENOTEMPTY, path)
        del directory.entries[name]
        self.changed(directory)
        self.changed(inode)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with what is in it."""
        directory, name = self.parent(path)
        inode = directory.entries.pop(name, None)
        if inode is None:
            raise _error(errno.ENOENT, path)
        self.going[path] = inode
        self.changed(directory)
        self.changed(inode)

    def rename(self, source: str, target: str) -> Inode | None:
        """Rename a file, and return the one that it replaces. Raises OSError."""
        directory, name = self.parent(source)
        other, new_name = self.parent(target)
        inode = directory.entries.get(name)
        if inode is None:
            raise _error(errno.ENOENT, source)
        if directory.system is not other.system:
            raise _error(errno.EXDEV, source)
        replaced = other.entries.get(new_name)
        if replaced is inode:
            return None
        if f"{source}/".startswith(f"{target}/"):
            raise _error(errno.ENOTEMPTY, target)
        if inode.is_directory and f"{target}/".startswith(f"{source}/"):
            raise _error(errno.EINVAL, target)
        if replaced is not None:
            if replaced.is_directory != inode.is_directory:
                raise _error(errno.EISDIR if replaced.is_directory else errno.ENOTDIR, target)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, target)
        del directory.entries[name]
        other.entries[new_name] = inode
        self.changed(directory)
        self.changed(other)
        return replaced

    def changed(self, directory: Inode) -> None:
        """Report a change in a directory."""
        self.changes += 1
        self._found.clear()
        for watcher in [*directory.watchers]:
            watcher()

    # -- mounts and binder

    def new_system(self, kind: str, source: str, limit: int = ALL_MINORS) -> FileSystem:
        """Return a file system that is mounted nowhere."""
        self._free_numbers()
        binderfs = Binderfs(self._minors, limit) if kind == "binder" else None
        system = FileSystem(self._devices.take(), kind, source, self.now(), binderfs)
        if binderfs is not None:
            for name in KERNEL_DEVICES:
                self.add_device(system, name)
        self._systems.append(system)
        return system

    def _free_numbers(self) -> None:
        """Free the numbers of removed devices that nobody has, and of file systems of which nobody has a file.

        Only a number that is taken next can tell when another one was freed.
        """
        mounted = {mount.system for stack in self.mounts.values() for mount in stack}
        for system in [*self._systems]:
            if system not in mounted and not any(inode.is_used for inode in (system.root, *system.devices)):
                self._systems.remove(system)
                self._devices.release(system.device)
                if system.binderfs is not None:
                    system.binderfs.close()
            elif system.binderfs is not None:
                linked = {*system.root.entries.values()}
                for inode in [each for each in system.devices if not (each in linked or each.is_used)]:
                    system.devices.remove(inode)
                    system.binderfs.release(os.minor(inode.rdev))

    def attach(self, system: FileSystem, path: str) -> None:
        """Mount a file system. Raises OSError."""
        if not self.lookup(path).is_directory:
            raise _error(errno.ENOTDIR, path)
        self._numbers += 1
        self.mounts.setdefault(path.rstrip("/") or "/", []).append(Mount(path, system, self._numbers, self._ids.take()))
        self._report_mounts()

    def detach(self, path: str) -> FileSystem:
        """Unmount the topmost file system at a path. Raises OSError."""
        stack = self.mounts.get(path.rstrip("/"))
        if not stack:
            raise _error(errno.EINVAL, path)
        _, system, _, mount_id = stack.pop()
        self._ids.release(mount_id)
        if not stack:
            del self.mounts[path.rstrip("/")]
        self.changed(system.root)
        self._report_mounts()
        return system

    def unmount(self, system: FileSystem) -> None:
        """Unmount a file system wherever it is, topmost or not."""
        for path, stack in [*self.mounts.items()]:
            for mount in stack:
                if mount.system is system:
                    self._ids.release(mount.id)
            stack[:] = [mount for mount in stack if mount.system is not system]
            if not stack:
                del self.mounts[path]
        self._report_mounts()

    def mounted(self, path: str) -> FileSystem | None:
        """Return the topmost file system at a path; None if there is none."""
        stack = self.mounts.get(path.rstrip("/"))
        return stack[-1].system if stack else None

    def all_mounts(self) -> Iterator[Mount]:
        """Yield the mounts in the order in which they were made."""
        yield from sorted((each for stack in self.mounts.values() for each in stack), key=lambda each: each.number)

    def add_device(self, system: FileSystem, name: str) -> Inode:
        """Create a binder device. Raises OSError."""
        assert system.binderfs is not None
        self._free_numbers()
        minor = system.binderfs.add(name, system.root.entries)
        inode = Inode(system, stat.S_IFCHR | 0o600, self.now(), FIRST_DEVICE_INODE + minor)
        inode.rdev = os.makedev(MAJOR, minor)
        system.devices.append(inode)
        system.root.entries[name] = inode
        self.changed(system.root)
        return inode

    def mount_table(self) -> str:
        """Return the text of /proc/self/mountinfo."""
        if self._table:
            return self._table
        lines = ["1 0 0:1 / / rw,relatime shared:1 - ext4 /dev/vda rw"]
        for each in self.all_mounts():
            device = each.system.device
            place = f"{os.major(device)}:{os.minor(device)} / {each.path} rw shared:2"
            lines.append(f"{each.id} 1 {place} - {each.system.kind} {each.system.source} rw")
        self._table = "\n".join(lines) + "\n"
        return self._table

    def _report_mounts(self) -> None:
        self._table = ""
        self.changes += 1
        self._found.clear()
        for changed in [*self.mounts_changed]:
            changed()


_strerror = functools.cache(os.strerror)


def _error(number: int, path: Any) -> OSError:
    return OSError(number, _strerror(number), path)
