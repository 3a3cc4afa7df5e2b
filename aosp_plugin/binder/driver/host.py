"""The host as this process sees it: its files, its mounts, and the device numbers of the binder driver.

Discovery accesses the file system through a ``Host`` only. In a container the host's files are below a root
(``--host-root /host``). All paths that a ``Host`` accepts and returns are the host's own, except those of
``process_path``. Each call may hang with the file system that it accesses.

Mount tables are files of /proc, in the format of proc_pid_mountinfo(5). Reading them accesses no mounted file system,
so that it never hangs.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple

BINDERFS = "binder"
"""The type of a binderfs in /proc/filesystems and the mount table, for the C driver and the Rust driver."""

MOUNTINFO = "/proc/self/mountinfo"

MODULES = "/sys/module"
"""Directory of sysfs with each loaded module, and each built-in one that has parameters."""

MODULE_NAMES = ("binder_linux", "binder", "rust_binder")
"""The names of the driver: C and Rust, as modules or built in."""

MISC_MAJOR = 10
"""Major number of all misc devices (include/uapi/linux/major.h)."""

FILE_SYSTEMS = "/proc/filesystems"
"""The types of file systems that the kernel supports now, including those of loaded modules."""

SYS_DEV = "/sys/dev"
"""Directory of sysfs with the devices of the kernel, by their numbers."""

TRANSIENT_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that are caused by this process or the system, not by the file."""

_BINDERFS_REGIONS = ("binder", "rust_binder")
"""Names in /proc/devices of binderfs's region: the C driver's (drivers/android/binderfs.c ``init_binderfs``), and the
Rust driver's (drivers/android/binder/rust_binderfs.c ``init_rust_binderfs``). Both call the file system binder."""

_MAX_LINKS = 40
"""Links in one path before ELOOP, as in the kernel (include/linux/namei.h, MAXSYMLINKS)."""

_INVISIBLE = frozenset({errno.EACCES, errno.ENOENT, errno.ESRCH, errno.EINVAL})
"""Errors for the files of a process that this one must not trace, or that has ended meanwhile."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class HostError(Exception):
    """The host is not in the required state.

    The text is one line for an operator: the failed operation, its path, the cause and the remedy. A subclass exists
    only for an error that some caller handles separately. An OSError is not wrapped if the wrapper would add nothing.
    """


class MountPoint(NamedTuple):
    """A mounted file system."""

    directory: str
    """Mount point: an absolute path without links. The mounted file, if a single file is bind-mounted."""
    st_dev: int
    """The file system: st_dev of its files. No other file system has the same number at the same time."""
    type: str
    source: str
    """The source that was given to mount(2). The kernel ignores it for a binderfs; a program recognises its own mounts
    by it."""
    id: int = 0
    """Mount ID. Distinguishes it from all other mounts of the host; the kernel reuses it after an unmount."""
    shared: bool = False
    """Whether it is in a peer group, so that what is mounted below it appears in other mount namespaces: in the host's,
    for a directory that a container has with ``mountPropagation: Bidirectional``."""
    slave: bool = False
    """Whether it receives the mounts of another mount namespace, where those made here do not appear: in a systemd
    service with ``ProtectSystem``."""
    root: str = "/"
    """The path, in the file system, of the directory or file that is mounted; / for all of it."""


class Driver(NamedTuple):
    """File systems and device numbers of the binder driver at one moment."""

    file_systems: frozenset[int] = frozenset()
    """st_dev of each mounted binderfs."""
    majors: frozenset[int] = frozenset()
    """Major numbers of out-of-tree binder modules, from /proc/devices."""
    misc_minors: frozenset[int] = frozenset()
    """Minor numbers of binder's misc devices, on a kernel without binderfs."""

    def owns(self, st_rdev: int) -> bool:
        """Return whether a device number belongs to the binder driver."""
        major = os.major(st_rdev)
        return major in self.majors or (major == MISC_MAJOR and os.minor(st_rdev) in self.misc_minors)


class Host:
    """A host's file tree below ``root``."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")

    def listdir(self, directory: str) -> list[str]:
        """List a directory in arbitrary order. Raises OSError."""
        return os.listdir(self._root + self.resolve(directory))

    def lstat(self, path: str) -> os.stat_result:
        """Return the status of ``path``. Only its last component may be a link. Raises OSError."""
        return os.lstat(self._root + path)

    def numa_node(self, status: os.stat_result) -> int | None:
        """Return the NUMA node of the hardware of a character or block device; None if it has none.

        From sysfs, which does not depend on the root. Raises OSError if descriptors or memory are exhausted.
        """
        text = _read(f"{_hardware_link(status)}/numa_node").strip()
        return int(text) if text.isdigit() else None  # -1 for none (drivers/pci/pci-sysfs.c, numa_node_show)

    def hardware(self, status: os.stat_result) -> str:
        """Return the directory in sysfs of the hardware of a character or block device; empty if it has none.

        Card and render node of a GPU have the same one. It does not depend on the root.
        """
        link = _hardware_link(status)
        try:
            os.readlink(link)
        except OSError:
            return ""
        return Host().resolve(link)

    def process_path(self, path: str) -> str:
        """Return the path under which this process opens or watches the host's ``path``."""
        return (self._root + path).rstrip("/") or "/"

    def resolve(self, path: str, links: set[str] | None = None) -> str:
        """Return ``path`` with all links followed *below the root*.

        ``os.path.realpath`` would follow an absolute link out of the root: in a container, /host/dev/x -> /run/y
        is /host/run/y. A component that does not exist is kept. The paths of the links, in which only the last
        component is a link, are added to ``links``. Raises OSError (ELOOP).
        """
        todo = path.split("/")[::-1]
        done: list[str] = []
        count = 0
        while todo:
            part = todo.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = os.readlink("/".join([self._root, *done, part]))
            except OSError:
                done.append(part)
                continue
            count += 1
            if links is not None:
                links.add("/" + "/".join([*done, part]))
            if count > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done = []
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def driver(self) -> Driver:
        """Read the state of the binder driver from /proc and /sys. A file that cannot be read counts as empty.

        Raises OSError if descriptors or memory are exhausted: an empty answer would change the kind of every device.
        """
        table = parse_mounts(_read(MOUNTINFO))
        return Driver(
            file_systems=frozenset(each.st_dev for each in table if each.type == BINDERFS),
            majors=binder_majors(_read("/proc/devices"), _read(FILE_SYSTEMS)),
            misc_minors=binder_misc_minors(_read("/proc/misc"), binder_parameters()),
        )


def read_mounts(path: str = MOUNTINFO) -> tuple[MountPoint, ...]:
    """Return the mounts in a mount table, in its order. Raises OSError."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return parse_mounts(file.read())


def parse_mounts(mountinfo: str) -> tuple[MountPoint, ...]:
    """Return the mounts in the text of a mount table, in its order."""
    lines = mountinfo.rstrip("\n").split("\n") if mountinfo else []  # a path may contain other line separators
    return tuple(map(_parse_mount, lines))


def mount_users(mounted: Mapping[int, str]) -> dict[int, int]:
    """Return a process that uses each file system, by st_dev; those that no visible process uses are left out.

    ``mounted`` has the name of the directory that each file system is mounted on, by st_dev. A container that uses one
    has single files of it mounted, or all of it on another directory. The same directory in another mount namespace is
    a copy of the mount, which ends with an unmount on the host. Processes that this one may not trace are invisible.
    Raises OSError.
    """
    found: dict[int, int] = {}
    namespaces: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            table = () if namespace in namespaces else read_mounts(f"/proc/{pid}/mountinfo")
        except OSError as error:
            if error.errno not in _INVISIBLE:
                raise
            continue
        namespaces.add(namespace)
        for mount in table:
            if mount.st_dev in mounted and (mount.root, os.path.basename(mount.directory)) != (
                "/",
                mounted[mount.st_dev],
            ):
                found[mount.st_dev] = int(pid)
    return found


def binder_majors(proc_devices: str, proc_filesystems: str) -> frozenset[int]:
    """Return binder's major numbers from the text of /proc/devices (fs/char_dev.c ``chrdev_show``: "<major> <name>").

    An out-of-tree module registers a region with "binder" in its name. The region of binderfs is excluded: it has no
    cdev, so a copy of its device numbers outside a binderfs does not open.
    """
    has_binderfs = BINDERFS in {line.rpartition("\t")[2] for line in proc_filesystems.splitlines()}
    binderfs_names = _BINDERFS_REGIONS if has_binderfs else ()
    characters = proc_devices.partition("Block devices:")[0]
    return frozenset(
        number for number, name in _numbered(characters) if "binder" in name and name not in binderfs_names
    )


def binder_misc_minors(proc_misc: str, parameters: str) -> frozenset[int]:
    """Return binder's minor numbers from the text of /proc/misc ("<minor> <name>").

    A misc device has the name that the module parameter ``devices=`` gives it (drivers/android/binder.c
    ``init_binder_device``). The major number is not sufficient: /dev/kvm is 10:232.
    """
    names = {name for name in parameters.replace("\n", ",").split(",") if name}
    return frozenset(number for number, name in _numbered(proc_misc) if name in names)


def binder_parameters() -> str:
    """Return the values of the driver's ``devices`` parameters, for the C and Rust drivers, as modules or built in."""
    return "\n".join(
        _read(f"{MODULES}/{module}/parameters/{parameter}")
        for module in MODULE_NAMES
        for parameter in ("devices", "rust_devices")
    )


def has_selinux() -> bool:
    """Return whether the kernel has booted with SELinux, which gives the driver the security context of a caller.

    The service manager of an unchanged Android asks for it; without SELinux the driver refuses each call to it. SELinux
    registers its file system only if it is enabled (security/selinux/selinuxfs.c ``init_sel_fs``). Raises OSError.
    """
    with open(FILE_SYSTEMS, encoding="utf-8") as file:
        return "selinuxfs" in file.read().split()


def sees_kernel_threads() -> bool:
    """Look for kthreadd, which only the host's PID namespace shows, without further privileges."""
    name, _, fields = _read("/proc/2/stat").partition("(")[2].rpartition(") ")
    return name == "kthreadd" and fields.split()[1] == "0"  # of no parent


def _hardware_link(status: os.stat_result) -> str:
    """Return the link of sysfs from a device to its hardware, if it has any."""
    kind = "block" if stat.S_ISBLK(status.st_mode) else "char"
    return f"{SYS_DEV}/{kind}/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}/device"


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and name of each line that has this form."""
    for line in text.splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            yield int(number), name.strip()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        if error.errno in TRANSIENT_ERRORS:
            raise
        return ""


def _parse_mount(line: str) -> MountPoint:
    mount_fields, _, file_system_fields = line.partition(" - ")
    fields = mount_fields.split(" ")
    major, _, minor = fields[2].partition(":")
    kind, source, *_ = file_system_fields.split(" ")
    st_dev = os.makedev(int(major), int(minor))
    shared, slave = (any(field.startswith(tag) for field in fields[6:]) for tag in ("shared:", "master:"))
    root, directory, source = map(_unescaped, (fields[3], fields[4], source))
    return MountPoint(directory, st_dev, kind, source, int(fields[0]), shared, slave, root)


def _unescaped(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field) if "\\" in field else field
