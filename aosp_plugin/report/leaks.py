"""Leaked binder devices: held open by a process outside the pods they are allocated to.

Examples are a process of the previous tenant that outlived its pod, and a tool on the host. The next tenant would
share a binder context with it. ``scan`` walks /proc and compares the holders with the allocations that ``owners`` reads
from the kubelet's checkpoints. ``compare`` returns what changed since the previous scan.

File descriptors are identified by stat, because the link text is a path in another mount namespace. This costs 0.1 s
of CPU time for 20,000 descriptors in 500 processes. A stat blocks when a network file system hangs, so call ``scan``
in a worker thread.

A tenant can open millions of descriptors, and share them between hundreds of processes. So descriptors are read one by
one, and only ``MAX_DESCRIPTORS`` of each owner: a pod, a container, or a user outside containers. What the scan does
not read is a ``Gap``, which names the owner.

Not detected: a mapping whose descriptor is closed (it keeps a context manager alive; finding it requires reading all
maps); descriptors in transit over a socket or in a private descriptor table of one thread; a process whose main
thread has exited (its /proc/PID/fd is empty). The kubelet does not write the checkpoint when a pod ends: leftover
processes of that pod count as its own until the next allocation.
"""

import operator
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.devices.sets import natural_key
from aosp_plugin.binder.driver.cgroup import parse_cgroup

Owners = Mapping[str, Collection[str]]  # binder device name to the UIDs of the pods that it is allocated to
DeviceKeys = Mapping[int | tuple[int, int], list[str]]  # st_rdev, or (st_dev, st_ino), to binder device names

MAX_COMMAND_LENGTH = 120
"""Characters of a command line that are reported."""
MAX_DESCRIPTORS = 50_000
"""Descriptors that a scan reads of one owner, for which it takes 0.3 s of CPU time."""
MAX_ALL_DESCRIPTORS = 5_000_000
"""The same for the whole host: the scan ends before ``Timings.leak_scan``. No process is begun beyond."""
MAX_GAPS = 5
"""Reasons of an incomplete scan that are reported."""
_HELD_COST = 5
"""A descriptor of a device counts as so many more: its flags are in another file, and it is read twice."""
_HOST = "all processes"
"""Key of the count of all descriptors."""
_DENIED = "permission denied, as without SYS_PTRACE or DAC_READ_SEARCH"
"""Why a process could not be read. A security module, or a user namespace, can deny what these capabilities allow."""
UNEXPECTED_CONTENT = (ValueError, LookupError, RuntimeError)
"""What psutil and this module raise if a file in /proc does not have the format of the kernels known so far."""
_MEM_MAJOR = 1
"""Major number of /dev/null and similar devices (include/uapi/linux/major.h)."""


class Holder(NamedTuple):
    """A process that holds a binder device open."""

    binder_device: str
    pid: int
    """Process ID in the PID namespace of the scanned /proc."""
    command: str
    """Command line, or the process name in brackets if it has none. Printable characters only, truncated."""
    started: float
    """Start time in seconds since the epoch."""
    since_boot: float
    """Start time in seconds since boot. Unlike ``started``, it does not change when the clock is set."""
    user: int
    """Effective user ID. Names differ between host, plugin image and container image."""
    container: str
    """Container ID; empty outside containers."""
    pod_uid: str
    """Empty outside pods, or if the cgroup does not show the pod."""


class Gap(NamedTuple):
    """Why leaks may exist that the scan could not see."""

    cause: str
    """The same in each scan as long as it lasts."""
    processes: str = ""
    """Number and an example of the processes that it concerns; empty if it concerns those that are invisible."""

    def __str__(self) -> str:
        """Return the text for logs, status and page."""
        return f"{self.cause}: {self.processes}" if self.processes else self.cause


class Leaks(NamedTuple):
    """Result of a scan, sorted by binder device in natural order, then by PID."""

    leaked: tuple[Holder, ...]
    undecided: tuple[Holder, ...]
    """Holders for which ``is_leak`` has no answer."""
    unread: frozenset[int]
    """PIDs of the processes that could not be inspected, or not completely."""
    gaps: tuple[Gap, ...]
    """Empty if the scan has seen all processes. At most ``MAX_GAPS``, and one that counts the others."""

    @property
    def incomplete(self) -> bool:
        """Whether leaks may exist that the scan could not see."""
        return bool(self.gaps)

    @property
    def unreadable(self) -> int:
        """Number of processes that could not be inspected."""
        return len(self.unread)

    @property
    def leaked_devices(self) -> int:
        """Number of leaked binder devices."""
        return len({holder.binder_device for holder in self.leaked})


class Changes(NamedTuple):
    """Difference between two scans."""

    appeared: tuple[Holder, ...]
    released: tuple[Holder, ...]
    open: tuple[Holder, ...]
    """All leaks that have appeared and are not released; the input of the next comparison."""


def scan(binder_devices: Iterable[BinderDevice], owners: Callable[[], Owners | None]) -> Leaks:
    """Return the leaks of ``binder_devices`` according to ``psutil.PROCFS_PATH``. The plugin's own process is ignored.

    ``owners`` is called after /proc was read, because the kubelet writes the checkpoint before a container starts.
    It returns None if the owners are unknown; its exceptions propagate. Raises OSError if the directory is not a proc
    file system, or a resource such as descriptors is exhausted.
    """
    walk = _Walk(_device_keys(binder_devices), psutil.PROCFS_PATH)
    holders = sorted(walk.holders(), key=lambda holder: natural_key(holder.binder_device))
    known_owners = owners()
    leaked = tuple(holder for holder in holders if is_leak(holder, known_owners))
    undecided = tuple(holder for holder in holders if is_leak(holder, known_owners) is None)
    return Leaks(leaked, undecided, walk.unread, walk.gaps)


def is_leak(holder: Holder, owners: Owners | None) -> bool | None:
    """Return whether ``holder`` is outside the pods that own the binder device; None if this cannot be decided.

    ``owners`` is None if the owners are unknown. A process outside containers is always a leak. A container whose pod
    is unknown (started beside the kubelet, or the kubelet runs with ``cgroupsPerQOS: false``) is a leak if the binder
    device is not allocated, and undecided if it is.
    """
    if not holder.container and not holder.pod_uid:
        return True
    if owners is None:
        return None
    pods = owners.get(holder.binder_device, ())
    return None if pods and not holder.pod_uid else holder.pod_uid not in pods


def compare(open_leaks: Collection[Holder], leaks: Leaks) -> Changes:
    """Compare ``leaks`` with the leaks that were open before. One that is undecided or was not read stays open."""
    key = operator.attrgetter("binder_device", "pid", "since_boot")
    before = {key(holder): holder for holder in open_leaks}
    present = {key(holder) for holder in (*leaks.leaked, *leaks.undecided)}
    present |= {key(holder) for holder in open_leaks if holder.pid in leaks.unread}
    appeared = tuple(holder for holder in leaks.leaked if key(holder) not in before)
    released = tuple(holder for holder in before.values() if key(holder) not in present)
    still_open = (holder for holder in before.values() if key(holder) in present)
    return Changes(appeared, released, (*still_open, *appeared))


def sees_kernel_threads() -> bool:
    """Look for kthreadd, which only the host's PID namespace shows, without further privileges."""
    try:
        second = psutil.Process(2)
        return second.name() == "kthreadd" and second.ppid() == 0
    except psutil.Error:
        return False


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
        by_number = device.kind in {Kind.CDEV, Kind.STAND_IN} and os.major(identity.number) != _MEM_MAJOR
        keys.setdefault(identity.number if by_number else (identity.device, identity.inode), []).append(device.name)
    return keys


class _Walk:
    """One walk through /proc, and what it could not read."""

    def __init__(self, keys: DeviceKeys, proc: str) -> None:
        self._keys = keys
        self._proc = proc
        self._read = Counter[str]()
        """Descriptors that were read, by owner, and of ``_HOST``."""
        self._unread: dict[str, list[int]] = {}
        """The processes that could not be inspected, by cause."""
        self._examples: dict[str, str] = {}
        """The first of them, with its command."""

    @property
    def unread(self) -> frozenset[int]:
        """The processes that could not be inspected."""
        return frozenset().union(*self._unread.values())

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Why the walk is not complete."""
        gaps = [] if sees_kernel_threads() else [Gap("no kernel thread is visible, as without hostPID")]
        for cause, pids in self._unread.items():
            gaps.append(Gap(cause, f"{len(pids)} process{'es' * (len(pids) > 1)} such as {self._examples[cause]}"))
        if len(gaps) > MAX_GAPS:
            gaps[MAX_GAPS:] = [Gap("further reasons", str(len(gaps) - MAX_GAPS))]
        return tuple(gaps)

    def holders(self) -> Iterator[Holder]:
        """Yield the holders of all devices."""
        own_pid = os.readlink(f"{self._proc}/self")
        for pid in psutil.pids():
            try:
                if str(pid) != own_pid:
                    yield from self._inspect(pid, f"{self._proc}/{pid}")
            except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
                continue  # the process has exited
            except (PermissionError, psutil.AccessDenied):
                self._skipped(pid, _DENIED)
            except (psutil.Error, *UNEXPECTED_CONTENT) as error:
                self._skipped(pid, f"unexpected content of /proc ({type(error).__name__})")

    def _skipped(self, pid: int, cause: str) -> None:
        self._unread.setdefault(cause, []).append(pid)
        if cause not in self._examples:
            self._examples[cause] = _example(pid, f"{self._proc}/{pid}")

    def _inspect(self, pid: int, directory: str) -> list[Holder]:
        """Return the devices that a process holds open.

        The descriptors are checked again after the process was described: a short probe may have closed its descriptor,
        and the PID may belong to another process.
        """
        owner = _owner(directory)
        for name, limit in ((owner, MAX_DESCRIPTORS), (_HOST, MAX_ALL_DESCRIPTORS)):
            if self._read[name] >= limit:
                self._skipped(pid, _exceeded(name, limit))
                return []
        table = os.open(f"{directory}/fd", os.O_RDONLY | os.O_DIRECTORY)
        try:
            held = self._held(pid, owner, table)
            if not held:
                return []
            holder = _describe(pid, directory)
            usable = [descriptor for descriptor in held if _is_usable(f"{directory}/fdinfo/{descriptor}")]
            names = {name for descriptor in usable for name in _devices_at(descriptor, table, self._keys)}
            return [holder._replace(binder_device=name) for name in names]
        finally:
            os.close(table)

    def _held(self, pid: int, owner: str, table: int) -> list[str]:
        """Return the descriptors in the directory ``table`` that refer to a device, of those that may be read.

        The directory is not listed: its names would take 70 bytes of memory for each descriptor.
        """
        held, read, limit = [], 0, MAX_DESCRIPTORS - self._read[owner]
        try:
            with os.scandir(table) as entries:
                for entry in entries:
                    if read >= limit:
                        self._skipped(pid, _exceeded(owner, MAX_DESCRIPTORS))
                        break
                    read += 1
                    if _devices_at(entry.name, table, self._keys):
                        read += _HELD_COST
                        held.append(entry.name)
        finally:
            self._read.update({owner: read, _HOST: read})
        return held


def _devices_at(descriptor: str, table: int, keys: DeviceKeys) -> list[str]:
    """Return the binder devices that a descriptor in the directory ``table`` refers to. Raises PermissionError."""
    try:
        status = os.stat(descriptor, dir_fd=table)
    except PermissionError:
        os.readlink(descriptor, dir_fd=table)  # succeeds if a user's FUSE file system denied the stat, not the kernel
        return []
    except OSError:
        return []  # closed, or on a file system that does not respond
    by_number = keys.get(status.st_rdev) if stat.S_ISCHR(status.st_mode) else None
    return by_number or keys.get((status.st_dev, status.st_ino), [])


def _is_usable(fdinfo: str) -> bool:
    """Return whether a descriptor reaches the driver. O_PATH descriptors, which runtimes keep for mounts, do not."""
    try:
        flags = Path(fdinfo).read_text(encoding="utf-8").partition("flags:")[2].split()[0]
    except FileNotFoundError:
        return False
    return not int(flags, 8) & os.O_PATH


def _describe(pid: int, directory: str) -> Holder:
    process = psutil.Process(pid)
    with process.oneshot():
        started = process.create_time()
        since_boot = round(started - psutil.boot_time(), 2)
        user = process.uids().effective
    return Holder("", pid, _command(directory), started, since_boot, user, *parse_cgroup(_cgroup(directory)))


def _owner(directory: str) -> str:
    """Return who is responsible for a process: its pod, else its container, else its user.

    The directory of a process belongs to its effective user, also if its files do not (fs/proc/base.c
    ``task_dump_owner``), so that no process can pretend to be one of root.
    """
    container, pod_uid = parse_cgroup(_cgroup(directory))
    if pod_uid:
        return f"pod {pod_uid}"
    return f"container {container}" if container else f"user {os.stat(directory).st_uid} outside containers"


def _exceeded(owner: str, limit: int) -> str:
    return f"more than {limit:,} file descriptors of {owner}"


def _example(pid: int, directory: str) -> str:
    try:
        return f"{pid} ({_command(directory)})"
    except OSError:
        return str(pid)  # it has exited, or its command line cannot be read either


def _cgroup(directory: str) -> str:
    return Path(directory, "cgroup").read_text(encoding="utf-8", errors="surrogateescape")


def _command(directory: str) -> str:
    """Return the command line of a process, of which no more is read than is reported. Raises OSError.

    A character has up to four bytes in UTF-8. psutil would read all of it, which may be megabytes; also for the name.
    """
    with open(f"{directory}/cmdline", "rb", buffering=0) as file:
        line = file.read(4 * MAX_COMMAND_LENGTH)
    text = line.replace(b"\0", b" ").strip(b" ").decode(errors="surrogateescape")
    if not text:
        text = f"[{Path(directory, 'comm').read_text(encoding='utf-8', errors='surrogateescape').strip()}]"
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_COMMAND_LENGTH])
