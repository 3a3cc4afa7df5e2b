"""containerd with its own configuration, root directory and socket, its containers, and what CRI-O shares with it."""

import abc
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from tests.e2e.common.images import BUSYBOX
from tests.e2e.common.processes import Daemon, EnteredDaemon, run
from tests.e2e.common.waiting import PATIENCE, until

# containerd 2.x reads this file too: it converts version 2 to version 3. 1.6 ignores the settings for CDI.
_CONFIG: Final = """\
version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{directory}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # On machines that refuse negative values of oom_score_adj, runc fails without a message.
  restrict_oom_score_adj = true
  # Has no effect on machines without a policy of SELinux.
  enable_selinux = true
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{oci_runtime}"
        SystemdCgroup = {systemd}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{directory}/cni"
"""

BRIDGE: Final = "pods0"
"""The network device of a node to which its pods are connected."""


def network(subnet: str) -> dict[str, Any]:
    """Return the configuration of the pods' network: a bridge, and addresses from a range."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/pods-network",
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


_OCI_STATES: Final = "/run/containerd/runc/k8s.io"
"""Where containerd's shim lets the OCI runtime keep the states of containers, whichever OCI runtime it is."""
_NUMBERS: Final = itertools.count(1)


class Restartable(abc.ABC):
    """A container runtime with its own configuration, directories and socket."""

    socket: str
    daemon: Daemon
    scopes: str
    """How the names of the scopes of containers begin, with the systemd cgroup driver."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the runtime, and wait until it serves the CRI."""

    @abc.abstractmethod
    def signal(self, container_id: str, number: signal.Signals) -> None:
        """Send a signal to a container's first process."""

    @abc.abstractmethod
    def remove_containers(self) -> None:
        """Stop and remove all containers, sandboxes too."""

    def kill(self, container_id: str) -> None:
        """Kill a container's first process."""
        self.signal(container_id, signal.SIGKILL)

    def set_cpu_shares(self, container_id: str) -> None:
        """Give a container 512 CPU shares, as the kubelet does when a pod is resized in place (crictl update)."""
        shares = b"\x18\x80\x04"  # LinuxContainerResources.cpu_shares
        request = b"\x0a" + bytes([len(container_id)]) + container_id.encode() + b"\x12" + bytes([len(shares)]) + shares
        with _cri(self.socket) as channel:
            method = "/runtime.v1.RuntimeService/UpdateContainerResources"
            channel.unary_unary(method, None, None)(request, timeout=PATIENCE)

    def restart(self) -> None:
        """Restart the runtime; containers keep running."""
        self.daemon.end()
        self.start()

    def crash(self) -> None:
        """Remove all containers and restart the runtime, as after a loss of power.

        The CRI service has records of its own, and without a restart reports the containers as running for seconds.
        """
        self.remove_containers()
        self.daemon.end(signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        """Stop all containers, and the runtime."""
        self.remove_containers()
        self.daemon.end()


class Runtime(Restartable):
    """containerd, and operations on containers without the kubelet's knowledge."""

    scopes = "cri-containerd"

    def __init__(
        self,
        directory: Path,
        programs: Path | None = None,
        *,
        oci_runtime: str = "runc",
        enter: Sequence[str] = (),
        subnet: str = "198.51.100.0/24",
        systemd: bool = False,
    ) -> None:
        """Write the configuration. ``programs`` is the directory of containerd, its shim and ctr; default: Debian's.

        ``oci_runtime`` is the program that runs containers, a path or a name. ``enter`` are the words that run
        containerd in other namespaces, in which the directory has the same path. ``subnet`` is the range of the pods'
        addresses. ``systemd`` is whether systemd makes the cgroups of containers.
        """
        (directory / "cni").mkdir(parents=True, exist_ok=True)
        (directory / "cni/pods.conflist").write_text(json.dumps(network(subnet)))
        config = directory / "config.toml"
        snapshotter = "overlayfs" if can_overlay(directory) else "native"
        values = {"directory": directory, "snapshotter": snapshotter, "pause": BUSYBOX, "oci_runtime": oci_runtime}
        config.write_text(_CONFIG.format(**values, systemd=str(systemd).lower()))
        self._oci_runtime = oci_runtime
        self.socket = f"{directory}/containerd.sock"
        prefix = f"{programs}/" if programs else ""
        self._client = f"{prefix}ctr"
        # containerd searches the path for its shim.
        environment = {"PATH": f"{prefix}:{os.environ['PATH']}"} if programs else {}
        command = [*enter, f"{prefix}containerd", "--config", str(config)]
        kind = EnteredDaemon if enter else Daemon
        self.daemon = kind("containerd", command, directory / "containerd.log", environment)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of containerd and of the OCI runtime, as they report them."""
        server = self._ctr("version").split("Server:")[1].split()
        return {"containerd": server[1].removeprefix("v")} | oci_version(self._oci_runtime)

    def start(self, *, seconds: float = PATIENCE) -> None:
        """Start containerd, and wait for its CRI service too, which starts later. A kubelet does not wait for it."""
        self.daemon.start()
        until(lambda: self._ctr("version"), "containerd answers", seconds=seconds)
        until(self._serves_cri, "containerd serves the CRI", seconds=seconds)

    def _serves_cri(self) -> bool:
        return serves_cri(self.socket)

    def load(self, archive: Path, target: str = "") -> None:
        """Import an image from an archive; ``target`` is its architecture, by default this machine's."""
        # containerd itself unpacks images for its own machine alone.
        options = ("--local", f"--platform=linux/{target}") if target else ()
        self._ctr("images", "import", *options, str(archive), seconds=10 * PATIENCE)

    def tag(self, image: str, name: str) -> None:
        """Give an image one more name."""
        self._ctr("images", "tag", "--force", image, name)

    def images(self) -> list[str]:
        """Return the names of the images."""
        return self._ctr("images", "list", "--quiet").split()

    def remove(self, image: str) -> None:
        """Remove an image if it is there."""
        self._ctr("images", "remove", "--sync", image)

    def execute(self, container_id: str, *words: str, detach: bool = False, user: str = "", seconds: float = 30) -> str:
        """Run a program in a container, and return its output; "" with ``detach``. Default: the container's user."""
        options = (*(("--detach",) if detach else ()), *(("--user", user) if user else ()))
        exec_id = f"exec-{next(_NUMBERS)}"
        return self._ctr("tasks", "exec", *options, "--exec-id", exec_id, container_id, *words, seconds=seconds)

    def signal(self, container_id: str, number: signal.Signals) -> None:
        """Send a signal to a container's first process."""
        self._ctr("tasks", "kill", "--signal", number.name, container_id)

    def process_status(self, container_id: str) -> dict[str, str]:
        """Return /proc/PID/status of a container's first process."""
        rows = [line.split() for line in self._ctr("tasks", "list").splitlines()]
        pid = next(row[1] for row in rows if row[0] == container_id)
        return process_status(pid)

    def running(self) -> set[str]:
        """Return the IDs of the running containers."""
        rows = [line.split() for line in self._ctr("tasks", "list").splitlines()[1:]]
        return {row[0] for row in rows if row[2] == "RUNNING"}

    def spec(self, container_id: str) -> dict[str, Any]:
        """Return a container's OCI runtime spec."""
        spec: dict[str, Any] = json.loads(self._ctr("containers", "info", "--spec", container_id))
        return spec

    def oci_state(self, container_id: str) -> dict[str, Any]:
        """Return a container's state from the OCI runtime. Raises AssertionError if that has not started it."""
        state: dict[str, Any] = json.loads(run(self._oci_runtime, "--root", _OCI_STATES, "state", container_id))
        return state

    def requested(self, container_id: str) -> dict[str, Any]:
        """Return the ContainerConfig of the kubelet's CreateContainer request."""
        info = json.loads(self._ctr("containers", "info", container_id))
        metadata = json.loads(base64.b64decode(info["Extensions"]["io.cri-containerd.container.metadata"]["value"]))
        config: dict[str, Any] = metadata["Metadata"]["Config"]
        return config

    def remove_containers(self) -> None:
        """Stop and remove all containers, sandboxes too."""
        for container in self._ctr("containers", "list", "--quiet").split():
            with contextlib.suppress(AssertionError):
                self._ctr("tasks", "delete", "--force", container)
            with contextlib.suppress(AssertionError):
                self._ctr("containers", "delete", container)

    def _ctr(self, *words: str, seconds: float = 30) -> str:
        return run(self._client, "--address", self.socket, "--namespace", "k8s.io", *words, seconds=seconds)


def serves_cri(address: str) -> bool:
    """Return whether a containerd answers requests of a kubelet; ``address`` is its socket's path."""
    with _cri(address) as channel:
        try:
            channel.unary_unary("/runtime.v1.RuntimeService/Version", None, None)(b"", timeout=5)
        except grpc.RpcError:
            return False
    return True


def _cri(address: str) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{address}", [("grpc.default_authority", "localhost")])


def can_overlay(directory: Path) -> bool:
    """Return whether overlayfs works on a directory's file system; if not, containerd copies each layer."""
    names = {name: directory / f"overlay-{name}" for name in ("lower", "upper", "work", "merged")}
    for path in names.values():
        path.mkdir()
    options = f"lowerdir={names['lower']},upperdir={names['upper']},workdir={names['work']}"
    try:
        run("mount", "-t", "overlay", "overlay", "-o", options, str(names["merged"]))
        run("umount", str(names["merged"]))
    except AssertionError:
        return False
    finally:
        for path in names.values():
            shutil.rmtree(path, ignore_errors=True)
    return True


def without_scheme(container_id: str) -> str:
    """Return the runtime's ID of a container from that in a pod's status, such as ``containerd://ID``."""
    return container_id.rpartition("://")[2]


def process_status(pid: int | str) -> dict[str, str]:
    """Return /proc/PID/status by field."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def oci_version(program: str) -> dict[str, str]:
    """Return the version of an OCI runtime by its name, as it reports both."""
    words = run(program, "--version").split()
    assert words[1].lower().rstrip(":") == "version", f"{program} --version: {words}"
    return {words[0]: words[2]}
