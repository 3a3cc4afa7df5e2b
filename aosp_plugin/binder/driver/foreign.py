"""Which pods have mounted binderfs of their own, for the error when no minor number is left.

All binderfs of a host share 2^20 minor numbers (drivers/android/binderfs.c ``binderfs_minors``), and a process that may
mount file systems, also in a user namespace of its own, can have all of them. Its mounts are in a mount namespace that
only a process with the host's PID namespace and CAP_SYS_PTRACE can see.

Not found: a binderfs without a mount in the namespace of a process, such as one that fsopen(2) made and a descriptor
keeps.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from aosp_plugin.binder.driver.cgroup import parse_cgroup

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = "grep -c ' - binder ' /proc/[0-9]*/mountinfo | sort -t: -nk2 | tail -3"
"""The command on the host that names the processes with the most binderfs."""

_MOST_MOUNTS = 1_000_000
"""Mounts of other mount namespaces that are read, within seconds. A namespace has up to ``fs.mount-max``, 100,000 by
default; each app of an Android container has a namespace of its own, with some hundred mounts."""
_NAMED = 3
_SECONDS = 60


def foreign_binderfs() -> str:
    """Return which pods have the most binderfs of their own, as of the last minute: many starts may fail at once."""
    return _of_minute(int(time.monotonic() // _SECONDS))


@functools.lru_cache(maxsize=1)
def _of_minute(_minute: int) -> str:
    return find("/proc")


def find(proc: str, most_mounts: int = _MOST_MOUNTS) -> str:
    """Return which pods, containers and other processes in ``proc`` have the most binderfs that this process has not.

    The mounts of each mount namespace are read once, until ``most_mounts`` are read. Never raises.
    """
    counts: Counter[str] = Counter()
    try:
        own = {device for device, is_binderfs in _mounts(f"{proc}/self") if is_binderfs}
        seen = {os.readlink(f"{proc}/self/ns/mnt")}
        for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
            # It has ended, or is not this process's to inspect.
            with contextlib.suppress(OSError):
                namespace = os.readlink(f"{proc}/{pid}/ns/mnt")
                if namespace in seen or most_mounts <= 0:
                    continue
                seen.add(namespace)
                count = 0
                for device, is_binderfs in _mounts(f"{proc}/{pid}"):
                    most_mounts -= 1
                    count += is_binderfs and device not in own
                    if most_mounts <= 0:
                        break
                if count:
                    counts[_owner(proc, pid)] += count
    except OSError as error:
        return f"unknown who has them ({error}): on the host, {COMMAND}"
    if len(seen) == 1:
        return (
            "unknown who has them: without hostPID and CAP_SYS_PTRACE the plugin cannot see other mount namespaces; on "
            f"the host, {COMMAND}"
        )
    most = ", ".join(f"{count} in {owner}" for owner, count in counts.most_common(_NAMED))
    more = f", and in {len(counts) - _NAMED} others" if len(counts) > _NAMED else ""
    part = f" (not all mount namespaces were read; on the host, {COMMAND})" if most_mounts <= 0 else ""
    return f"mounts of foreign binderfs: {most or 'none'}{more}{part}"


def _mounts(process: str) -> Iterator[tuple[bytes, bool]]:
    """Yield the device number of each mount of a process, and whether it is a binderfs."""
    with open(f"{process}/mountinfo", "rb") as file:
        for line in file:
            yield line.split(b" ", 3)[2], b" - binder " in line


def _owner(proc: str, pid: int) -> str:
    with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
        container, pod = parse_cgroup(file.read())
    names = [f"pod {pod}" if pod else "", f"container {container[:12]}" if container else ""]
    return " ".join(filter(None, names)) or f"process {pid}"
