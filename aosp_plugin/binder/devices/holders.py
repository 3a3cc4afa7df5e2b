"""The processes that hold binder devices open, as /proc shows them.

File descriptors are identified by their status, because the text of their links is a path in another mount namespace.
``statx`` with AT_STATX_DONT_SYNC returns what the kernel knows: a FUSE server that does not answer cannot delay it.
``cli.holders`` reads each process within a limited time, because other reads may hang.

Not found: a mapping whose descriptor is closed (it keeps a context manager alive; finding it requires reading all
maps); descriptors in transit over a socket or in a private descriptor table of one thread; a process whose main
thread has exited (its /proc/PID/fd is empty).
"""

import ctypes
import errno
import os
import re
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from aosp_plugin.binder.devices.scanner import BinderDevice, Kind

DeviceKeys = Mapping[int | tuple[int, int], list[str]]  # st_rdev, or (st_dev, st_ino), to binder device names

MAX_TEXT = 120
"""Characters of a command line or of a cgroup that are reported."""
DENIED = "permission denied, as without SYS_PTRACE or DAC_READ_SEARCH"
"""Why a process could not be read. A security module, or a user namespace, can deny what these capabilities allow."""
_MEM_MAJOR = 1
"""Major number of /dev/null and similar devices (include/uapi/linux/major.h)."""
_AT_FDCWD = -100
_AS_KNOWN = 0x4000 | 0x800
"""AT_STATX_DONT_SYNC and AT_NO_AUTOMOUNT (include/uapi/linux/fcntl.h)."""
_STATX_BASIC_STATS = 0x7FF
_STATX = struct.Struct("=28xH2xQ88x4I112x")
"""Of struct statx (include/uapi/linux/stat.h): mode, inode, and the numbers of the device and of the file system."""
_UID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
"""A UUID, or the MD5 sum that static pods have (pkg/kubelet/config/common.go ``applyDefaults``)."""
_POD = re.compile(
    rf"(?:/\.\.)*(?:/(?:kube|besteffort|burstable)[\w.-]*)*?/(?:kube[\w.-]*-)?pod({_UID})(?:\.slice)?(?:/|$)"
)
"""From the root on: a user may create what follows ``user.slice``, or a service that systemd delegates a cgroup to."""


class Holder(NamedTuple):
    """A process that holds a binder device open."""

    binder_device: str
    pid: int
    """Process ID in the PID namespace of the /proc that was read."""
    user: int
    """Effective user ID. Names differ between host, plugin image and container image."""
    place: str
    """Its pod, ``pod UID``; outside pods its cgroup, whose name its user may have chosen."""
    command: str
    """Command line, or the process name in brackets if it has none. Like ``place``, it is printable and truncated."""


class Unread(NamedTuple):
    """A process that could not be read."""

    pid: int
    cause: str


class Search:
    """Reads processes one after the other. For one thread."""

    def __init__(self, binder_devices: Iterable[BinderDevice], proc: str = "/proc") -> None:
        """Search for processes that hold ``binder_devices`` open."""
        self._keys = _device_keys(binder_devices)
        self._proc = proc
        self._statx = ctypes.CDLL(None, use_errno=True).statx
        self._status = ctypes.create_string_buffer(_STATX.size)

    def pids(self) -> list[int]:
        """Return the visible processes but this one. Raises OSError."""
        own = os.readlink(f"{self._proc}/self")
        return sorted(int(name) for name in os.listdir(self._proc) if name.isdigit() and name != own)

    def read(self, pid: int) -> Sequence[Holder | Unread]:
        """Return which devices a process holds open, or why that is unknown; nothing if it has ended.

        Raises OSError if descriptors or memory are exhausted.
        """
        directory = f"{self._proc}/{pid}"
        try:
            names = self._held(directory)
            if not names:
                return []
            user, place, command = os.stat(directory).st_uid, _place(directory), _command(directory)
        except (FileNotFoundError, ProcessLookupError):
            return []
        except PermissionError:
            return [Unread(pid, DENIED)]
        except (ValueError, LookupError) as error:
            return [Unread(pid, f"unexpected content of /proc ({type(error).__name__})")]
        return [Holder(name, pid, user, place, command) for name in names]

    def _held(self, directory: str) -> set[str]:
        """Return the binder devices that the process with a directory of /proc holds open. Raises OSError."""
        held = set()
        with os.scandir(f"{directory}/fd") as descriptors:
            for descriptor in descriptors:
                names = self._names(descriptor.path)
                if names and _is_usable(f"{directory}/fdinfo/{descriptor.name}"):
                    held.update(names)
        return held

    def _names(self, descriptor: str) -> list[str]:
        """Return the binder devices that a descriptor refers to. Raises PermissionError."""
        if self._statx(_AT_FDCWD, descriptor.encode(), _AS_KNOWN, _STATX_BASIC_STATS, self._status):
            if ctypes.get_errno() == errno.EACCES:
                os.readlink(descriptor)  # succeeds if a user's FUSE file system denies it, not the kernel
            return []  # otherwise it is closed
        mode, inode, *numbers = _STATX.unpack(self._status.raw)
        by_number = self._keys.get(os.makedev(numbers[0], numbers[1])) if stat.S_ISCHR(mode) else None
        return by_number or self._keys.get((os.makedev(numbers[2], numbers[3]), inode), [])


def cgroup_of(text: str) -> str:
    """Return the path of the cgroup in the text of /proc/PID/cgroup: that of the memory controller.

    A process with CAP_SYS_ADMIN may mount another hierarchy, which has a line of its own, and name its cgroup there as
    it likes.
    """
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in text.splitlines())}
    return next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), paths.get("", ""))


def pod_uid(path: str) -> str:
    """Return the UID of the pod that a cgroup is in; empty if it is in none of the kubelet's.

    The kubelet names the cgroup of a pod pod<UID>, or with systemd kubepods-burstable-pod<UID, _ for ->.slice
    (pkg/kubelet/cm, cgroup_manager_linux.go), in kubepods or kubepods.slice; in a node of kind, these are in
    kubelet or kubelet.slice. Of nested pods the outermost counts. A reader in a cgroup namespace sees ``..`` in place
    of the common part of the path, so that its own pod is not shown.
    """
    pod = _POD.match(path)
    return pod[1].replace("_", "-") if pod else ""


def _device_keys(binder_devices: Iterable[BinderDevice]) -> DeviceKeys:
    """Map device number or inode to binder device names.

    The number identifies a device if every device file with that number opens it. Files of binderfs and stand-ins with
    the number of /dev/null are identified by their inode.
    """
    keys: dict[int | tuple[int, int], list[str]] = {}
    for device in binder_devices:
        identity = device.identity
        if identity is None or device.kind is Kind.OTHER:
            continue
        by_number = device.kind in {Kind.CDEV, Kind.STAND_IN} and os.major(identity.st_rdev) != _MEM_MAJOR
        keys.setdefault(identity.st_rdev if by_number else (identity.st_dev, identity.st_ino), []).append(device.name)
    return keys


def _is_usable(fdinfo: str) -> bool:
    """Return whether a descriptor reaches the driver. O_PATH descriptors, which runtimes keep for mounts, do not."""
    try:
        flags = Path(fdinfo).read_text(encoding="utf-8").partition("flags:")[2].split()[0]
    except FileNotFoundError:
        return False
    return not int(flags, 8) & os.O_PATH


def _place(directory: str) -> str:
    """Return where a process is, as of ``Holder``. Raises OSError."""
    path = cgroup_of(Path(directory, "cgroup").read_text(encoding="utf-8", errors="surrogateescape"))
    pod = pod_uid(path)
    return f"pod {pod}" if pod else _printable(path)


def _command(directory: str) -> str:
    """Return the command line of a process, of which no more is read than is reported. Raises OSError.

    A character has up to four bytes in UTF-8; the whole may be megabytes.
    """
    with open(f"{directory}/cmdline", "rb", buffering=0) as file:
        line = file.read(4 * MAX_TEXT)
    text = line.replace(b"\0", b" ").strip(b" ").decode(errors="surrogateescape")
    if not text:
        text = f"[{Path(directory, 'comm').read_text(encoding='utf-8', errors='surrogateescape').strip()}]"
    return _printable(text)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_TEXT])
