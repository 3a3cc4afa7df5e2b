"""A machine of the cluster with a real binder driver: a guest in QEMU, with Debian's kernel and a disk.

The guest sees the host's files, read-only and at the same paths, below a file system in memory. What a node keeps over
a reboot is on the disk. :mod:`tests.e2e.cluster.remote` runs containerd, the kubelet and all other commands in it.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.guest_start import kept_at
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.network import ADDRESS, BRIDGE
from tests.e2e.cluster.parts import GuestParts
from tests.e2e.common.processes import EnteredDaemon, run
from tests.e2e.common.report import say
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kernel import initrd
from tests.e2e.kernel.machine import CLOCK, EMULATION, Guest
from tests.e2e.kubelet.runtime import Runtime

SLOW: Final = 10 * PATIENCE
"""Seconds: the limit for what emulated programs do."""
_NUMBER: Final = 9
"""The machine's number, which gives it name and addresses; other machines count from 1."""
_MEMORY: Final = 4096
_DISK: Final = 8 << 30
ENVIRONMENT: Final = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
    "GRPC_VERBOSITY": "ERROR",
}
_CRI: Final = "import sys; from tests.e2e.kubelet import runtime; sys.exit(not runtime.serves_cri(sys.argv[1]))"


class GuestMachine(Machine):
    """A guest that is a node of the cluster, with two NUMA nodes."""

    processors = 1
    """Emulation of several can deadlock while the kernel patches its code."""

    def __init__(
        self, parts: GuestParts, control_plane: ControlPlane, directory: Path, images: Sequence[Path], containerd: Path
    ) -> None:
        """Prepare the guest, and a disk with archives of images; ``directory`` gets all files.

        ``containerd`` is the directory of one for this machine.
        """
        super().__init__(_NUMBER, control_plane, directory, "", containerd)
        self._parts = parts
        del self.configuration["cgroupRoot"]
        # Its default of two minutes is too short for the start of a container on a busy machine.
        self.configuration["runtimeRequestTimeout"] = f"{SLOW:.0f}s"
        self.labels["aosp.io/e2e"] = "guest"
        runtime = directory / "runtime"
        self._make_disk(runtime, images)
        run("ip", "tuntap", "add", self._device, "mode", "tap")
        run("ip", "link", "set", self._device, "master", BRIDGE, "up")
        run("ip", "route", "replace", self.subnet, "via", self.address)
        kept = ("/var/lib/kubelet", "/var/log", str(runtime / "root"))
        start = (parts.tree.python, "-m", "tests.e2e.cluster.guest_start")
        script = self._start_script([*start, self.name, self.address, ADDRESS, *kept])
        initrd.build(directory / "initrd", script, parts.kernel.modules, parts.tree.root)

    def _start_script(self, command: Sequence[str]) -> str:
        return initrd.start_script(command, str(PROJECT), ENVIRONMENT, architecture=self._parts.architecture)

    def _make_disk(self, directory: Path, images: Sequence[Path]) -> None:
        """Make a disk with a containerd's root directory: in the guest, images would be unpacked for minutes."""
        runtime = Runtime(directory, self._containerd)
        runtime.start()
        for image in images:
            runtime.load(image, self._parts.architecture.target)
        runtime.stop()
        content = self.directory / "content"
        content.mkdir()
        (directory / "root").rename(kept_at(str(directory / "root"), content))
        disk = self.directory / "disk"
        with disk.open("wb") as file:
            file.truncate(_DISK)
        # Without a journal of the initialization, which would be written while the node starts.
        run("mkfs.ext4", "-q", "-d", str(content), "-E", "lazy_itable_init=1,lazy_journal_init=1", str(disk))
        shutil.rmtree(content)

    def boot(self, programs: Path, before_kubelet: Callable[[], object] = lambda: None) -> None:
        """Start the guest, containerd and the kubelet of the directory ``programs``, as in other machines."""
        self._power_on(programs)
        self.runtime.start(seconds=SLOW)
        before_kubelet()
        self.start_kubelet()

    def enter(self) -> list[str]:
        """Return the words that run a command in the guest."""
        return [sys.executable, "-I", str(PROJECT / "tests/e2e/cluster/remote.py"), self.address]

    def shut_down(self) -> None:
        """End the guest at once, as at a loss of power."""
        assert self._process is not None, f"{self.name} does not run"
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None
        for daemon in (self.kubelet, self.runtime.daemon):
            if daemon.running:
                daemon.end(signal.SIGKILL)  # the program that stands for it

    def discard(self) -> None:
        """Remove the disk and the network device of a guest that does not run; it cannot boot again."""
        run("ip", "link", "delete", self._device)
        shutil.rmtree(self.directory)

    def _power_on(self, programs: Path) -> None:
        """Start the guest, and wait until it runs commands."""
        runtime = self.directory / "runtime"
        self.runtime = GuestRuntime(
            runtime, self._parts, enter=self.enter(), subnet=self.subnet, containerd=self._containerd
        )
        self.use(programs if self._parts.architecture.native else self._parts.kubernetes)
        self._start_guest()
        until(lambda: self.run("true") == "", f"{self.name} runs commands", seconds=SLOW)

    def _start_guest(self) -> None:
        half = _MEMORY // 2
        options = (
            *("-netdev", f"tap,id=net,ifname={self._device},script=no,downscript=no"),
            *("-device", "virtio-net-pci,netdev=net"),
            # Written to the host's memory: only the guest loses power.
            *("-drive", f"file={self.directory}/disk,format=raw,if=virtio,cache=unsafe"),
            *("-smp", str(self.processors)),
            *(option for number in (0, 1) for option in _numa_node(number, half, self.processors)),
            *(() if self._parts.architecture.native else CLOCK),
        )
        directory, tree = self.directory, self._parts.tree
        files = (self._parts.kernel.image, directory / "initrd", directory / "console")
        # Android's service managers ask the driver for the context of each caller; udev must not rename the device.
        guest = Guest(
            *(*files, _MEMORY, options),
            parameters="security=selinux net.ifnames=0",
            architecture=self._parts.architecture,
            root=tree.root,
            # The run's files are there.
            shared=(*tree.shared, Path(tempfile.gettempdir())) if tree.shared else (),
        )
        self._process = subprocess.Popen(
            guest.command(EMULATION),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        threading.Thread(target=_print, args=(self._process.stdout,), daemon=True).start()


class GuestRuntime(Runtime):
    """containerd in the guest, with the handler of deploy/examples/tenant.yaml, which this machine's cgroups refuse."""

    def __init__(
        self, directory: Path, parts: GuestParts, *, enter: Sequence[str], subnet: str, containerd: Path
    ) -> None:
        programs = parts.containerd
        super().__init__(directory, programs, enter=enter, subnet=subnet)
        self._enter, self._python = enter, parts.tree.python
        # The environment of the host's program does not reach the guest.
        path = f"PATH={programs}:{ENVIRONMENT['PATH']}"
        file = directory / "config.toml"
        # The example's lines are of version 3.
        migrated = run(str(containerd / "containerd"), "--config", str(file), "config", "migrate")
        file.write_text(migrated + _handler().replace("SystemdCgroup = true", "SystemdCgroup = false"))
        self.command = ["/usr/bin/env", path, str(programs / "containerd"), "--config", str(file)]
        self.daemon = EnteredDaemon("containerd", [*enter, *self.command], directory / "containerd.log")

    def _serves_cri(self) -> bool:
        return run(*self._enter, self._python, "-c", _CRI, self.socket, seconds=SLOW) == ""

    def _ctr(self, *words: str, seconds: float = SLOW) -> str:
        command = (self._client, "--address", self.socket, "--namespace", "k8s.io")
        return run(*self._enter, *command, *words, seconds=max(seconds, SLOW))


def _handler() -> str:
    """Return the lines for containerd in the comment of deploy/examples/tenant.yaml."""
    lines = (PROJECT / "deploy/examples/tenant.yaml").read_text().splitlines(keepends=True)
    return "".join(line.removeprefix("#     ") for line in lines if line.startswith("#     "))


def _numa_node(number: int, memory: int, processors: int) -> tuple[str, ...]:
    """Return QEMU's options for a NUMA node; the first one has all processors."""
    cpus = f",cpus=0-{processors - 1}" if number == 0 else ""
    return (
        *("-object", f"memory-backend-ram,id=memory{number},size={memory}M"),
        *("-numa", f"node,nodeid={number},memdev=memory{number}{cpus}"),
    )


def _print(output: IO[str]) -> None:
    with output:
        for line in output:
            say(f"# guest: {line.strip()}")
