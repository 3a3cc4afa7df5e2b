"""A machine of the cluster: namespaces with a containerd and a kubelet, which can reboot and lose its network."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.cluster import boot
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.network import BRIDGE
from tests.e2e.common.device_tool import COMMAND
from tests.e2e.common.processes import Daemon, EnteredDaemon, children, run
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.standalone import common_configuration

_UNSHARE: Final = ("--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
_NAMESPACES: Final = ("--mount", "--pid", "--net", "--uts", "--ipc")
DEVICES: Final = 12
"""Binder devices of a new machine; stand-ins, three of which form a phone."""
RENDER_NODE: Final = "/dev/dri/renderD128"
_FIRST: Final = 20
"""The last byte of the address before the first machine's."""


class Machine:
    """A host that is a node of the cluster."""

    def __init__(self, number: int, control_plane: ControlPlane, directory: Path, cgroups: str, programs: Path) -> None:
        """Prepare machine ``number`` (from 1); ``cgroups`` is the name of the run's directory of cgroups.

        ``programs`` is the directory of containerd. :meth:`boot` starts the machine.
        """
        directory.mkdir(parents=True)
        self.name = f"node-{number}"
        self.address = f"203.0.113.{_FIRST + number}"
        self.subnet = f"10.244.{number}.0/24"
        self._control_plane = control_plane
        self.directory = directory
        """The machine's files that survive a reboot, as seen from outside and inside."""
        self._process: subprocess.Popen[str] | None = None
        self._pid = 0
        self.connected = True
        self.configuration: dict[str, Any] = self._kubelet_configuration(f"/{cgroups}/{self.name}")
        """The kubelet's configuration, which tests may change; it is read at the kubelet's next start."""
        self.labels = {"aosp.io/binder": "true"}
        self._containerd = programs

    @property
    def root(self) -> Path:
        """The machine's file tree, as seen from outside."""
        return Path(f"/proc/{self._pid}/root")

    @property
    def running(self) -> bool:
        """Whether the machine has been booted and not been shut down."""
        return self._process is not None

    @property
    def containerd(self) -> Daemon:
        """The process of containerd."""
        return self.runtime.daemon

    def boot(self, programs: Path, before_kubelet: Callable[[], object] = lambda: None) -> None:
        """Create the namespaces, and start containerd and the kubelet of the directory ``programs``.

        ``before_kubelet`` is called before the kubelet starts, in place of what the host's init starts earlier.
        """
        self._enter_namespaces()
        runtime = self.directory / "runtime"
        shutil.rmtree(runtime / "state", ignore_errors=True)  # on a host it is in /run
        self.runtime = Runtime(runtime, self._containerd, enter=self.enter(), subnet=self.subnet)
        self.runtime.start()
        self.use(programs)
        before_kubelet()
        self.start_kubelet()

    def use(self, programs: Path) -> None:
        """Use the kubelet of another directory from its next start on. No kubelet may be running."""
        command = [*self.enter(), *self._kubelet_command(programs)]
        self.kubelet: Daemon = EnteredDaemon("kubelet", command, self.directory / "kubelet.log")

    def start_kubelet(self) -> None:
        """Write the configuration and start the kubelet; it registers the Node object if that does not exist."""
        self._configure_kubelet()
        self.kubelet.start()

    def replace_kubelet(self, programs: Path) -> None:
        """Restart the kubelet with the program of another directory, on the same files."""
        self.kubelet.end()
        self.use(programs)
        self.start_kubelet()

    def enter(self) -> list[str]:
        """Return the words that run a command in the machine's namespaces."""
        return ["nsenter", "--target", str(self._pid), *_NAMESPACES]

    def run(self, *words: str, seconds: float = 60) -> str:
        """Run a command on the machine and return its output. Raises AssertionError if it fails."""
        return run(*self.enter(), *words, seconds=seconds)

    def device_tool(self, *words: str) -> str:
        """Run hack/binder_devices.py on the machine."""
        return self.run(*COMMAND, *words)

    def create_devices(self, count: int = DEVICES) -> None:
        """Create the missing ones of so many stand-ins for binder devices."""
        self.device_tool("create", "--stand-ins", "--count", str(count))

    def create_render_node(self) -> None:
        """Create a stand-in for the device of a GPU unless there is one."""
        self.run("sh", "-ec", f"mkdir -p /dev/dri; [ -c {RENDER_NODE} ] || mknod {RENDER_NODE} c 1 3")

    def shut_down(self) -> None:
        """End all processes at once, as at a loss of power; files in memory are lost."""
        assert self._process is not None, f"{self.name} does not run"
        os.kill(self._pid, signal.SIGKILL)
        self._process.communicate(timeout=PATIENCE)
        for daemon in (self.kubelet, self.runtime.daemon):
            daemon.wait(PATIENCE)
        self._process = None

    def disconnect(self) -> None:
        """Cut the machine off from the control plane and from other machines."""
        run("ip", "link", "set", self._device, "down")
        self.connected = False

    def connect(self) -> None:
        """End :meth:`disconnect`."""
        run("ip", "link", "set", self._device, "up")
        self.connected = True

    @property
    def _device(self) -> str:
        return f"veth-{self.name}"

    def _kubelet_command(self, programs: Path) -> list[str]:
        labels = ",".join(f"{name}={value}" for name, value in self.labels.items())
        return [
            str(programs / "kubelet"),
            f"--config={self.directory}/kubelet.yaml",
            f"--kubeconfig={self.directory}/kubelet.kubeconfig",
            f"--cert-dir={self.directory}/pki",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels={labels}",
            "--v=2",
        ]

    def _configure_kubelet(self) -> None:
        (self.directory / "kubelet.yaml").write_text(yaml.safe_dump(self.configuration))

    def _enter_namespaces(self) -> None:
        boot_it = ("-m", "tests.e2e.cluster.boot", self.name, self.address, str(self.directory))
        with (self.directory / "boot.log").open("a") as log:
            self._process = subprocess.Popen(
                ["unshare", *_UNSHARE, sys.executable, *boot_it],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,  # unshare complains if its child is killed
                text=True,
                cwd=PROJECT,
            )
        pid = self._process.pid
        self._pid = until(lambda: children(pid), f"the first process of {self.name}")[0]
        peer = ("peer", "name", boot.LINK, "netns", str(self._pid))
        run("ip", "link", "add", self._device, "type", "veth", *peer)
        run("ip", "link", "set", self._device, "master", BRIDGE, "up")
        run("ip", "route", "replace", self.subnet, "via", self.address)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer == boot.READY, f"{self.name} did not boot: {(self.directory / 'boot.log').read_text()[-500:]}"

    def _kubelet_configuration(self, cgroups: str) -> dict[str, Any]:
        plane = self._control_plane
        user, group = f"system:node:{self.name}", "system:nodes"
        kubeconfig = plane.authority.kubeconfig(self.name, plane.server, user, [group])
        shutil.copy(kubeconfig, self.directory / "kubelet.kubeconfig")
        server = plane.authority.issue(f"{self.name}-server", user, groups=[group], addresses=[self.address])
        common = common_configuration(f"{self.directory}/runtime/containerd.sock")
        common["featureGates"]["DRAExtendedResource"] = True
        return common | {
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(plane.authority.root.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(server.certificate),
            "tlsPrivateKeyFile": str(server.key),
            "cgroupRoot": cgroups,
            "clusterDomain": "cluster.local",
            "maxPods": 250,
        }
