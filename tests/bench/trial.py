"""A running contestant: its process, a kubelet and a device directory."""

import contextlib
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator

import psutil

from tests.bench.contestants import Contestant
from tests.bench.kubelet import Kubelet
from tests.support import free_port

PREFIX = "aosp_binder"


class Trial:
    """A contestant with its own directories, whose process measures start and stop."""

    def __init__(self, contestant: Contestant, directory: str) -> None:
        self.contestant = contestant
        self.devices = DeviceDirectory(os.path.join(directory, "dev"))
        plugins = os.path.join(directory, "plugins")
        os.makedirs(plugins)
        self.kubelet = Kubelet(plugins, os.path.join(directory, "pod-resources.sock"))
        self._port = 0
        self._log = os.path.join(directory, "log")
        self._process: psutil.Popen | None = None

    @property
    def process(self) -> psutil.Popen:
        """The running plugin."""
        if self._process is None:
            raise RuntimeError("the plugin is not running")
        return self._process

    def start(self) -> float:
        """Start the plugin; return the time."""
        self._port = free_port()
        environment, arguments = self.contestant.command_line(
            {
                "devices": self.devices.directory,
                "kubelet": self.kubelet.directory,
                "pod_resources": self.kubelet.pod_resources,
                "verify": self.devices.kind,
                "port": str(self._port),
            }
        )
        with open(self._log, "ab") as log:
            # Python keeps compiled modules, as those of an installed package.
            own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | environment
            started = time.perf_counter()
            self._process = psutil.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own)
        return started

    def exercise(self) -> str:
        """Wait until the plugin has queried the podresources API, and scrape it, if it does so at all.

        Return its metrics. Its memory is then that of a plugin in use. Raises TimeoutError or OSError.
        """
        if "{pod_resources}" in self.contestant.command:
            self.kubelet.queried()
        if "{port}" in self.contestant.command:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as response:
                return str(response.read(), "utf-8")
        return ""

    def stop(self) -> None:
        """Stop the plugin with SIGTERM, and wait for its end."""
        self.process.terminate()
        self.process.wait(30)

    def processor_seconds(self) -> float:
        """Return the plugin's CPU time in seconds, with nanoseconds instead of the ticks of /proc/PID/stat.

        The clock is that of clock_getcpuclockid(3), which Python doesn't have: the PID's complement, and 2 for the
        scheduler's clock of a process (include/linux/posix-timers_types.h, CPUCLOCK_SCHED).
        """
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def resident(self) -> float:
        """Return the plugin's resident memory in megabytes (10^6 bytes)."""
        return float(self.process.memory_info().rss) / 1e6

    def close(self) -> None:
        """Stop kubelet and plugin if they run."""
        self.kubelet.stop()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """Return the plugin's log."""
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return log.read()


class DeviceDirectory:
    """A directory of stand-ins: character devices (1, 3) for root, files for other users."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory)
        self.directory = directory
        self.kind = "char" if os.geteuid() == 0 else "file"

    def make(self, number: int) -> float:
        """Create a device; return the time."""
        path = os.path.join(self.directory, f"{PREFIX}{number}")
        if self.kind == "char":
            os.mknod(path, 0o20666, os.makedev(1, 3))
        else:
            os.mknod(path)
        return time.perf_counter()

    def remove(self, number: int) -> float:
        """Delete a device; return the time."""
        os.unlink(os.path.join(self.directory, f"{PREFIX}{number}"))
        return time.perf_counter()

    def fill(self, count: int) -> None:
        """Create and delete devices so that exactly ``count`` exist."""
        existing = {int(name.removeprefix(PREFIX)) for name in os.listdir(self.directory)}
        for number in existing - {*range(count)}:
            self.remove(number)
        for number in {*range(count)} - existing:
            self.make(number)


@contextlib.contextmanager
def trial(contestant: Contestant) -> Iterator[Trial]:
    """Create a trial in a temporary directory, and end it. An exception gets the plugin's log as a note."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        running = Trial(contestant, directory)
        try:
            yield running
        except Exception as error:
            error.add_note(f"{contestant.name} wrote:\n{running.log()[-2000:]}")
            raise
        finally:
            running.close()
