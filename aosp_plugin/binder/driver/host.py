"""The host's files as this process sees them, and which device numbers the binder driver owns.

The thin edge under ``scanner``: every access to the file system goes through a ``Host``, so that the rest of
the room is functions of what a ``Host`` answers. In a container the host's files are seen under a root
(``--host-root /host``); paths that go in and out here are the host's own.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.driver import binderfs

if TYPE_CHECKING:
    from collections.abc import Iterator

MISC_MAJOR = 10
"""The major of all misc devices (include/uapi/linux/major.h)."""

_NOT_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing of the file."""

_MOST_LINKS = 40
"""Links followed in one path before ELOOP, as the kernel does (include/linux/namei.h, MAXSYMLINKS)."""


class Driver(NamedTuple):
    """What belongs to the binder driver on this host at one moment."""

    file_systems: frozenset[int] = frozenset()
    """st_dev of each mounted binderfs."""
    majors: frozenset[int] = frozenset()
    """Majors that /proc/devices gives to out-of-tree binder modules."""
    misc_minors: frozenset[int] = frozenset()
    """Minors under the misc major that are binder's: a kernel without binderfs."""

    def owns(self, number: int) -> bool:
        """Say whether the device number ``number`` (st_rdev) opens the binder driver."""
        major, minor = os.major(number), os.minor(number)
        return major in self.majors or (major == MISC_MAJOR and minor in self.misc_minors)


class Host:
    """The host's file tree, seen under ``root``."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def names(self, directory: str) -> list[str]:
        """List a directory in no particular order. Raises OSError."""
        return os.listdir(self._root + self.resolve(directory))

    def lstat(self, path: str) -> os.stat_result:
        """Look at the file that stands at ``path``, which must be free of links but for its last part."""
        return os.lstat(self._root + path)

    def readlink(self, path: str) -> str:
        """Say where the link at ``path`` points to. Raises OSError (EINVAL where it is no link)."""
        return os.readlink(self._root + path)

    def exists(self, path: str) -> bool:
        """Say whether something is there, links followed."""
        try:
            self.lstat(self.resolve(path))
        except OSError:
            return False
        return True

    def seen(self, path: str) -> str:
        """Return the path under which this process can open or watch the host's ``path``."""
        return self._root + path or "/"

    def resolve(self, path: str, followed: set[str] | None = None) -> str:
        """Return ``path`` with every link in it followed *under the root*, whatever the link says.

        ``os.path.realpath`` would follow an absolute link out of the root: in a container, /host/dev/x ->
        /run/y has to become /host/run/y. A part that does not exist stays as it is. ``followed`` gets the paths of the
        links, each free of links but for its last part. Raises OSError (ELOOP).
        """
        todo = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = self.readlink("/" + "/".join([*done, part]))
            except OSError:
                done.append(part)
                continue
            links += 1
            if followed is not None:
                followed.add("/" + "/".join([*done, part]))
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done = []
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def driver(self) -> Driver:
        """Read what the kernel says of the binder driver; what can't be read counts as empty.

        Raises OSError where that is for want of descriptors or memory: it would make other nodes of binder's.
        """
        return Driver(
            file_systems=frozenset(mount.device for mount in binderfs.binder_mounts(_read("/proc/self/mountinfo"))),
            majors=binder_majors(_read("/proc/devices"), _read("/proc/filesystems")),
            misc_minors=binder_misc_minors(_read("/proc/misc"), binder_parameters()),
        )


def binder_majors(proc_devices: str, proc_filesystems: str) -> frozenset[int]:
    """Find binder's majors in the text of /proc/devices (fs/char_dev.c ``chrdev_show``: "<major> <name>").

    Out-of-tree modules have regions of their own, with the word in the name. That of binderfs, which is called like
    its file system (drivers/android/binderfs.c ``init_binderfs``), is none of them: it has no cdev, so that a copy of
    its numbers outside a binderfs opens nothing.
    """
    reserved = {line.rpartition("\t")[2] for line in proc_filesystems.splitlines()} & {binderfs.FILESYSTEM}
    characters = proc_devices.partition("Block devices:")[0]
    return frozenset(number for number, name in _numbered(characters) if "binder" in name and name not in reserved)


def binder_misc_minors(proc_misc: str, parameters: str) -> frozenset[int]:
    """Find binder's minors in the text of /proc/misc ("<minor> <name>").

    A misc node is registered under the name that the module's ``devices=`` gave it (drivers/android/binder.c
    ``init_binder_device``). The major alone says nothing: KVM's node is 10:232.
    """
    names = {name for name in parameters.replace("\n", ",").split(",") if name}
    return frozenset(number for number, name in _numbered(proc_misc) if name in names)


def binder_parameters() -> str:
    """Return what the driver, as a module or built in, C or Rust, was given as its list of devices."""
    return "\n".join(
        _read(f"/sys/module/{module}/parameters/{parameter}")
        for module in ("binder_linux", "binder", "rust_binder")
        for parameter in ("devices", "rust_devices")
    )


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the name of each line that is such a pair."""
    for line in text.splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            yield int(number), name.strip()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        if error.errno in _NOT_NOW:
            raise
        return ""
