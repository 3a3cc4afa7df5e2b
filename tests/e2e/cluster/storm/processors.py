"""Processor time by program, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

PLUGIN: Final = "plugin"
BENCH: Final = "this benchmark"
OTHERS: Final = "kernel threads and processes outside the cluster"
_PROGRAMS: Final = {
    # The kernel keeps 15 characters of a program's name.
    "etcd": "etcd",
    "kube-apiserver": "kube-apiserver",
    "kube-controller": "kube-controller-manager",
    "kube-scheduler": "kube-scheduler",
    "kubelet": "kubelet",
    "containerd": "containerd",
    "containerd-shim": "shims of containerd",
    "busybox": "containers",
}
_CHILDREN: Final = {
    "containerd": "network plugins and starts of shims",
    "containerd-shim": "runc",
    "kubelet": "commands of the kubelet",
}
"""What the processes are that a program has started and waited for."""
_TICK: Final = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process, with processor times in ticks."""

    pid: int
    program: str
    own: int
    children: int
    """The time of its children that have ended, and of theirs."""


def read(plugin: int | None) -> dict[str, float]:
    """Return the seconds that each program has used so far; ``plugin`` is the plugin's process ID.

    Not counted is what a process has used whose parent ignores its end. Shims are such processes, so values can be
    compared only while all pods run.
    """
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            processes.append(parse_process(path.read_text()))
    used = by_program(processes, plugin, os.getpid())
    used[OTHERS] = parse_machine(Path("/proc/stat").read_text()) / _TICK - sum(used.values())
    return used


def parse_process(stat: str) -> Process:
    """Return a process from its /proc/PID/stat."""
    pid, _, rest = stat.partition(" (")
    program, _, rest = rest.rpartition(") ")
    fields = [int(field) for field in rest.split()[11:15]]
    return Process(int(pid), program, sum(fields[:2]), sum(fields[2:]))


def parse_machine(stat: str) -> int:
    """Return the ticks that all processors together have been busy, from /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in stat.split("\n", 1)[0].split()[1:8])
    return user + nice + system + irq + softirq


def by_program(processes: list[Process], plugin: int | None, bench: int) -> dict[str, float]:
    """Return the seconds of each program of the cluster, of the plugin and of this process."""
    used: dict[str, float] = defaultdict(float)
    for process in processes:
        if process.pid == plugin:
            used[PLUGIN] += (process.own + process.children) / _TICK
        elif process.pid == bench:
            used[BENCH] += (process.own + process.children) / _TICK
        elif title := _PROGRAMS.get(process.program):
            used[title] += process.own / _TICK
            if children := _CHILDREN.get(process.program):
                used[children] += process.children / _TICK
    return used
