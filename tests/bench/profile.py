"""Where this project's plugin spends its start, its memory and its calls: modules, and threads by CPU time."""

from __future__ import annotations

import collections
import json
import os
import random
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from tests.bench import caller, contestants
from tests.bench.kubelet import allocate
from tests.bench.report import markdown
from tests.bench.trial import own_environment, trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.bench.trial import Trial

CALLS = 5_000
ROWS = 25
"""The rows of a table of modules."""


class Import(NamedTuple):
    """An imported module."""

    module: str
    microseconds: int
    """Of the module itself, without those that it imports."""


def profile(devices: int, sampler: str = "") -> str:
    """Return all tables, for a plugin with this number of devices.

    ``sampler`` is a command that runs while Allocate is called; {pid} stands for the plugin's process.
    """
    command = contestants.PLUGIN.command.replace(" -m aosp_plugin", " -X importtime -m aosp_plugin")
    with trial(contestants.PLUGIN._replace(command=command)) as running:
        start(running, devices)
        running.exercise()
        imported = imports(running.log())
        running.stop()
    with trial(contestants.PLUGIN) as running:
        start(running, devices)
        running.exercise()
        threads = thread_seconds(running, CALLS)
        if sampler:
            sample(running, sampler)
        running.stop()
    sizes = memory([entry.module for entry in imported])
    return "\n\n".join([module_table(imported, sizes), thread_table(threads, CALLS)])


def sample(running: Trial, sampler: str) -> None:
    """Call Allocate of three devices until the command has ended. Raises CalledProcessError if it fails."""
    command = [part.replace("{pid}", str(running.process.pid)) for part in shlex.split(sampler)]
    with subprocess.Popen(command) as process:  # noqa: S603 - given by the user
        while process.poll() is None:
            caller.call(caller.program(), running.kubelet.plugin_socket, "Allocate", requests(running, 1000))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def start(running: Trial, devices: int) -> None:
    """Start the plugin, and wait until it has listed the devices."""
    running.devices.fill(devices)
    running.kubelet.start()
    running.start()
    running.kubelet.has(devices)


def imports(log: str) -> list[Import]:
    """Return the modules in the output of ``-X importtime``, in the order in which their imports ended."""
    lines = re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", log, re.MULTILINE)
    return [Import(module, int(microseconds)) for microseconds, module in lines]


def memory(modules: Sequence[str]) -> dict[str, int]:
    """Return the resident bytes that each import adds in a new process, in this order."""
    command = [sys.executable, "-m", "tests.bench.import_memory"]
    result = subprocess.run(  # noqa: S603 - our own
        command, input="\n".join(modules), check=True, capture_output=True, text=True, env=own_environment()
    )
    sizes: dict[str, int] = json.loads(result.stdout)
    return sizes


def module_table(imported: Iterable[Import], sizes: Mapping[str, int]) -> str:
    """Return the packages with the longest imports: modules, time and memory."""
    times: collections.Counter[str] = collections.Counter()
    kilobytes: collections.Counter[str] = collections.Counter()
    modules: collections.Counter[str] = collections.Counter()
    for module, microseconds in imported:
        for name in (package(module), "all"):
            times[name] += microseconds
            kilobytes[name] += sizes.get(module, 0) // 1000
            modules[name] += 1
    rows = [
        [name, str(modules[name]), f"{time / 1e3:.1f}", f"{kilobytes[name]:,}"]
        for name, time in times.most_common(ROWS)
    ]
    return markdown(["package", "modules", "import, ms (slowed down by importtime)", "memory, kB"], rows)


def package(module: str) -> str:
    """Return the package that a module is counted for: two levels of this project, one of others."""
    levels = module.split(".")
    return ".".join(levels[: 2 if levels[0] == "aosp_plugin" else 1])


def thread_seconds(running: Trial, calls: int) -> dict[str, float]:
    """Call Allocate of three devices; return the seconds of CPU time of each thread that has used any."""
    before = _thread_seconds(running.process.pid)
    caller.call(caller.program(), running.kubelet.plugin_socket, "Allocate", requests(running, calls))
    after = _thread_seconds(running.process.pid)
    used = {thread: seconds - before.get(thread, 0) for thread, seconds in after.items()}
    return {thread: seconds for thread, seconds in used.items() if seconds > 0}


def requests(running: Trial, count: int) -> list[bytes]:
    """Return requests for three random devices each."""
    rng = random.Random(11)  # noqa: S311 - which devices
    ids = [device.ID for device in running.kubelet.messages[-1].devices]
    return [allocate(rng.sample(ids, 3)) for _ in range(count)]


def _thread_seconds(pid: int) -> dict[str, float]:
    """Return the CPU time of each thread (Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat)."""
    seconds = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with (
            open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as stat,
            open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as name,
        ):
            seconds[f"{name.read().strip()} {int(thread) - pid}"] = int(stat.read().split()[0]) / 1e9
    return seconds


def thread_table(threads: Mapping[str, float], calls: int) -> str:
    """Return the CPU time of each thread for each call."""
    rows = [
        [name, f"{seconds / calls * 1e6:.1f}"] for name, seconds in sorted(threads.items(), key=lambda item: -item[1])
    ]
    rows.append(["all", f"{sum(threads.values()) / calls * 1e6:.1f}"])
    return markdown(["thread", "CPU time of an Allocate, us"], rows)
