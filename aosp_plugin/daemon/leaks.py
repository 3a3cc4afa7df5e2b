"""Leaked nodes: processes that hold a node open and are in no pod that was given it.

The last tenant's process that outlived its pod, or a tool on the host: the next tenant would share a binder context
with it. ``find`` goes through /proc and compares with what ``owners_from`` reads in the kubelet's checkpoint;
``changes`` says what is new since the last round. When to look and whom to tell is the callers' business.

A descriptor is told by a stat, as its text is a name in another mount namespace: 0.1 s of processor time for 20,000
in 500 processes (more with a readlink before). It hangs where a network file system does: look in a thread.

Not seen: a mapping whose descriptor is closed (it keeps a manager in office; all maps would have to be read); what is
under way in a socket or in one thread's own table; a process whose main thread has ended (its /proc/PID/fd is empty).
The checkpoint is not written when a pod ends: what is left of it counts as its own until the next allocation.
"""

from __future__ import annotations

import itertools
import json
import operator
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from aosp_plugin.binder.discovery.binder_device import BinderDevice

    Owners = Mapping[str, Collection[str]]  # a node's name to the UIDs of the pods that were given it
    Wanted = Mapping[int | tuple[int, int], list[str]]  # st_rdev, or (st_dev, st_ino), to the names of nodes

CHECKPOINT = "kubelet_internal_checkpoint"
"""The file in the kubelet's plugin directory; root's alone (pkg/kubelet/cm/devicemanager/types.go)."""

LONGEST_COMMAND = 120
"""Characters of a command line that are told."""
_MEM_MAJOR = 1
"""The major of /dev/null and its like (include/uapi/linux/major.h)."""
_UID = r"[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
"""A UUID, or the MD5 sum that is a static pod's (pkg/kubelet/config/common.go ``applyDefaults``)."""
_POD = re.compile(rf"[/-]pod({_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER = re.compile(r"[/:](?:(?:cri-containerd|crio|docker|libpod|nerdctl)-)?([0-9a-f]{64})(?:\.scope)?(?=[/:]|$)")


class Holder(NamedTuple):
    """One process that holds one node open."""

    node: str
    pid: int
    """As that /proc numbers it."""
    command: str
    """Its command line, or its name in brackets where it has none; printable, and cut."""
    started: float
    """Seconds since the epoch."""
    since_boot: float
    """The same since the host's start: tells it from later processes with its PID, even where the clock is set."""
    user: int
    """Its effective user ID: names differ between the host, this image and the holder's."""
    container: str
    """The container's ID; empty outside any."""
    pod_uid: str
    """Empty outside any pod, and where its cgroup does not tell."""


class Leaks(NamedTuple):
    """What one round found, by node in natural order, then PID. Nothing found says little where not all was seen."""

    found: tuple[Holder, ...]
    undecided: tuple[Holder, ...]
    """Where it can't be told: see ``judge``."""
    unreadable: int
    """Processes that could not be looked at: that takes CAP_SYS_PTRACE, and CAP_DAC_READ_SEARCH for other users'."""
    whole: bool
    """Whether all processes of this kernel were there; not so in a PID namespace other than the host's."""

    @property
    def leaked_devices(self) -> int:
        """Number of leaked binder devices."""
        return len({holder.node for holder in self.found})


class Changes(NamedTuple):
    """What became of the leaks since the last round; all that have appeared and are not gone are ``told``."""

    appeared: tuple[Holder, ...]
    gone: tuple[Holder, ...]
    told: tuple[Holder, ...]


def find(nodes: Iterable[BinderDevice], owners: Callable[[], Owners | None], proc: str = "/proc") -> Leaks:
    """Return the leaks of ``nodes``, as ``judge`` has it; never this process. Raises OSError where ``proc`` is none.

    ``owners`` is called after the look, as a pod is in the checkpoint before its processes start; what it raises is
    not caught. ``psutil.PROCFS_PATH`` is ``proc`` meanwhile, for all threads.
    """
    before, psutil.PROCFS_PATH = psutil.PROCFS_PATH, proc
    try:
        holders, unreadable = _look(_wanted(nodes), proc)
        whole = _is_whole()
    finally:
        psutil.PROCFS_PATH = before
    known = owners()
    found = tuple(holder for holder in holders if judge(holder, known))
    undecided = tuple(holder for holder in holders if judge(holder, known) is None)
    return Leaks(found, undecided, unreadable, whole)


def judge(holder: Holder, owners: Owners | None) -> bool | None:
    """Say whether ``holder`` is a leak; None where that can't be told. ``owners`` is None where they aren't known.

    In no container is in no pod. A container whose pod is unknown (a runtime's beside the kubelet's, or the kubelet
    has ``cgroupsPerQOS: false``) is a leak if nobody was given the node, and undecided if somebody was.
    """
    if not holder.container and not holder.pod_uid:
        return True
    if owners is None:
        return None
    given = owners.get(holder.node, ())
    return None if given and not holder.pod_uid else holder.pod_uid not in given


def changes(told: Iterable[Holder], leaks: Leaks) -> Changes:
    """Compare with what the last round said is ``told``: a leak appears once, and is gone once; undecided is no end."""
    key = operator.attrgetter("node", "pid", "since_boot")
    before = {key(holder): holder for holder in told}
    there = {key(holder) for holder in (*leaks.found, *leaks.undecided)}
    appeared = tuple(holder for holder in leaks.found if key(holder) not in before)
    gone = tuple(holder for holder in before.values() if key(holder) not in there)
    return Changes(appeared, gone, (*(holder for holder in before.values() if key(holder) in there), *appeared))


def container_of(cgroup: str) -> tuple[str, str]:
    """Return the container's ID and the pod's UID from the text of /proc/PID/cgroup; empty where it does not tell.

    The kubelet's are pod<UID>, with systemd kubepods-burstable-pod<UID, _ for ->.slice (pkg/kubelet/cm,
    cgroup_manager_linux.go), the runtime's in them <ID> or <runtime>-<ID>.scope. The outermost of nested ones counts.
    To a reader in a cgroup namespace what both have in common is ``..``, so that its own pod is not told.
    """
    outside_pods = ""
    for line in cgroup.splitlines():
        pod = _POD.search(line)
        container = _CONTAINER.search(line, pod.end() if pod else 0)
        identifier = container[1] if container else ""
        if pod:
            return identifier, pod[1].replace("_", "-")
        outside_pods = outside_pods or identifier
    return outside_pods, ""


def owners_from(checkpoint: bytes, resources: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the UIDs of the pods that have each device ID of ``resources``. Raises HostError if it is no checkpoint.

    IDs are listed by NUMA node since 1.20 (pkg/kubelet/cm/devicemanager/checkpoint). The file is replaced as a whole,
    and there from when the kubelet first lists a plugin: where it is missing, owners are unknown, not none.
    """
    owners: dict[str, frozenset[str]] = {}
    try:
        for entry in json.loads(checkpoint)["Data"]["PodDeviceEntries"] or ():
            devices = itertools.chain.from_iterable(entry["DeviceIDs"].values())
            for device in devices if entry["ResourceName"] in resources else ():
                owners[device] = owners.get(device, frozenset()) | {entry["PodUID"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(f"{CHECKPOINT} is not what a kubelet from 1.20 on writes: {error!r}") from error
    return owners


def _is_whole() -> bool:
    """Look for the kernel's mother of threads: only the first PID namespace has it, and seeing it takes no right."""
    try:
        second = psutil.Process(2)
        return second.name() == "kthreadd" and second.ppid() == 0
    except psutil.Error:
        return False


def _wanted(nodes: Iterable[BinderDevice]) -> Wanted:
    """Key nodes by their number where any copy of it opens; a stand-in with that of /dev/null by its inode."""
    wanted: dict[int | tuple[int, int], list[str]] = {}
    for name, _, kind, identity, _ in nodes:
        if identity is None or kind is Kind.OTHER:
            continue
        copies = kind in {Kind.CDEV, Kind.STAND_IN} and os.major(identity.number) != _MEM_MAJOR
        wanted.setdefault(identity.number if copies else (identity.device, identity.inode), []).append(name)
    return wanted


def _look(wanted: Wanted, proc: str) -> tuple[list[Holder], int]:
    """Return who holds ``wanted``, and how many processes could not be looked at."""
    own = os.readlink(f"{proc}/self")
    holders: list[Holder] = []
    unreadable = 0
    for pid in psutil.pids():
        try:
            holders += _holders(pid, f"{proc}/{pid}", wanted) if str(pid) != own else ()
        except (PermissionError, psutil.AccessDenied):
            unreadable += 1
        except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
            continue  # it has ended
    return sorted(holders, key=lambda holder: natural_key(holder.node)), unreadable


def _holders(pid: int, directory: str, wanted: Wanted) -> list[Holder]:
    """Look at one process, and again once it is described: by then a probe is over, and a PID may be another's."""
    table = os.open(f"{directory}/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        held = [descriptor for descriptor in os.listdir(table) if _nodes_at(descriptor, table, wanted)]
        if not held:
            return []
        holder = _describe(pid, directory)
        usable = [descriptor for descriptor in held if _is_usable(f"{directory}/fdinfo/{descriptor}")]
        names = {name for descriptor in usable for name in _nodes_at(descriptor, table, wanted)}
        return [holder._replace(node=name) for name in names]
    finally:
        os.close(table)


def _nodes_at(descriptor: str, table: int, wanted: Wanted) -> list[str]:
    """Return which nodes a descriptor in the open directory ``table`` leads to. Raises PermissionError."""
    try:
        seen = os.stat(descriptor, dir_fd=table)
    except PermissionError:
        os.readlink(descriptor, dir_fd=table)  # if this is allowed, it was a file on a user's FUSE that refused
        return []
    except OSError:
        return []  # closed, or on a file system that does not answer
    by_number = wanted.get(seen.st_rdev) if stat.S_ISCHR(seen.st_mode) else None
    return by_number or wanted.get((seen.st_dev, seen.st_ino), [])


def _is_usable(fdinfo: str) -> bool:
    """Say whether the driver can be reached through it: one of O_PATH, as runtimes have of what they mount, can't."""
    try:
        flags = Path(fdinfo).read_text(encoding="utf-8").partition("flags:")[2].split()[0]
    except FileNotFoundError:
        return False
    return not int(flags, 8) & os.O_PATH


def _describe(pid: int, directory: str) -> Holder:
    process = psutil.Process(pid)
    with process.oneshot():
        started = process.create_time()
        command = " ".join(process.cmdline()) or f"[{process.name()}]"
        since_boot = round(started - psutil.boot_time(), 2)
        user = process.uids().effective
    printable = "".join(character if character.isprintable() else "?" for character in command)
    cgroup = Path(directory, "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    return Holder("", pid, printable[:LONGEST_COMMAND], started, since_boot, user, *container_of(cgroup))
