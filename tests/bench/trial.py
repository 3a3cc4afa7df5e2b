"""One contestant at work: its process, a kubelet and a directory of nodes of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

import psutil

from tests.bench.kubelet import Kubelet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.contestants import Contestant

PREFIX = "aosp_binder"


class Memory(NamedTuple):
    """Megabytes (10^6 bytes)."""

    resident: float
    proportional: float


class Trial:
    """A contestant in directories of its own; its process is started and ended as often as a measure wants."""

    def __init__(self, contestant: Contestant, directory: str) -> None:
        self.contestant = contestant
        self.nodes = Nodes(os.path.join(directory, "dev"))
        plugins = os.path.join(directory, "plugins")
        os.makedirs(plugins)
        self.kubelet = Kubelet(plugins)
        self._log = os.path.join(directory, "log")
        self._process: psutil.Popen | None = None

    @property
    def process(self) -> psutil.Popen:
        """The running plugin."""
        if self._process is None:
            raise RuntimeError("the plugin is not running")
        return self._process

    def start(self) -> float:
        """Start the plugin; return when."""
        arguments = self.contestant.arguments(self.nodes.directory, self.kubelet.directory, self.nodes.kind)
        with open(self._log, "ab") as log:
            started = time.perf_counter()
            self._process = psutil.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return started

    def stop(self) -> float:
        """End the plugin with SIGTERM; return the seconds until it had ended."""
        asked = time.perf_counter()
        self.process.terminate()
        self.process.wait(30)
        return time.perf_counter() - asked

    def processor_seconds(self) -> float:
        """Return what the plugin has used of the processors: nanoseconds are known, where /proc/PID/stat has ticks.

        The clock is that of clock_getcpuclockid(3), which Python doesn't have: the PID's complement, and 2 for the
        scheduler's clock of a process (include/linux/posix-timers_types.h, CPUCLOCK_SCHED).
        """
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def memory(self) -> Memory:
        """Return what the plugin has in memory."""
        full = self.process.memory_full_info()
        return Memory(full.rss / 1e6, full.pss / 1e6)

    def close(self) -> None:
        """End whatever runs."""
        self.kubelet.stop()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """Return the end of the plugin's log."""
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return log.read()[-2000:]


class Nodes:
    """A directory of stand-in nodes: character devices (1, 3) for root, files for others."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self.directory = directory
        self.kind = "char" if os.geteuid() == 0 else "file"

    def path(self, number: int) -> str:
        """Return the path of a node."""
        return os.path.join(self.directory, f"{PREFIX}{number}")

    def make(self, number: int) -> float:
        """Make one; return when it was there."""
        make_node(self.path(number), self.kind)
        return time.perf_counter()

    def remove(self, number: int) -> float:
        """Remove one; return when it was gone."""
        os.unlink(self.path(number))
        return time.perf_counter()

    def fill(self, count: int) -> None:
        """Have those from 0 to ``count`` and no other."""
        there = set(os.listdir(self.directory))
        wanted = {f"{PREFIX}{number}" for number in range(count)}
        for name in there - wanted:
            os.unlink(os.path.join(self.directory, name))
        for name in wanted - there:
            make_node(os.path.join(self.directory, name), self.kind)

    def burst(self, count: int) -> float:
        """Make those from 0 to ``count`` as fast as can be, in another process; return when the last was there."""
        made = subprocess.run(  # noqa: S603 - our own
            [sys.executable, "-m", "tests.bench.trial", self.directory, str(count), self.kind],
            check=True,
            capture_output=True,
            text=True,
        )
        return float(made.stdout)


def make_node(path: str, kind: str) -> None:
    """Make a stand-in node."""
    if kind == "char":
        os.mknod(path, 0o20666, os.makedev(1, 3))
    else:
        with open(path, "x", encoding="ascii"):
            pass


@contextlib.contextmanager
def trial(contestant: Contestant) -> Iterator[Trial]:
    """Have a trial with a temporary directory, and end it. A failure is told with the plugin's log."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        running = Trial(contestant, directory)
        try:
            yield running
        except Exception as error:
            error.add_note(f"{contestant.name} wrote:\n{running.said()}")
            raise
        finally:
            running.close()


if __name__ == "__main__":
    _nodes = Nodes(sys.argv[1])
    for _number in range(int(sys.argv[2])):
        make_node(_nodes.path(_number), sys.argv[3])
    print(time.perf_counter())  # noqa: T201 - for burst
