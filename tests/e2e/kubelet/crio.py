"""CRI-O with its own configuration, directories and socket, and its containers by the OCI runtime that it uses."""

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.e2e.common.images import BUSYBOX
from tests.e2e.common.processes import Daemon, run
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kubelet.runtime import (
    Restartable,
    Runtime,
    can_overlay,
    network,
    oci_version,
    process_status,
    serves_cri,
)
from tests.e2e.kubelet.runtimes import CRI_O

_CONFIG: Final = """\
[crio]
root = "{directory}/root"
runroot = "{directory}/runroot"
storage_driver = "{storage}"
log_dir = "{directory}/log"
version_file = "{directory}/version"
clean_shutdown_file = ""
[crio.api]
listen = "{socket}"
[crio.runtime]
cgroup_manager = "{cgroups}"
conmon_cgroup = "pod"
pinns_path = "{programs}/pinns"
namespaces_dir = "{directory}/namespaces"
container_exits_dir = "{directory}/exits"
container_attach_socket_dir = "{directory}/attach"
hooks_dir = []
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
default_runtime = "oci"
disable_hostport_mapping = true
[crio.runtime.runtimes.oci]
runtime_path = "{directory}/oci-runtime"
runtime_root = "{directory}/oci"
runtime_type = "oci"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{pause}"
pause_command = "/bin/busybox sleep 2147483647"
signature_policy = "{directory}/policy.json"
signature_policy_dir = "{directory}/policies"
[crio.network]
network_dir = "{directory}/cni"
plugin_dirs = ["/usr/lib/cni"]
[crio.nri]
enable_nri = false
"""
# runc fails on machines that refuse negative values of oom_score_adj, and on those where the hugetlb controller is not
# mounted. containerd has settings for both.
_OCI_RUNTIME: Final = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
if "--bundle" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    spec["process"]["oomScoreAdj"] = max(spec["process"].get("oomScoreAdj", 0), 0)
    spec["linux"]["resources"].pop("hugepageLimits", None)
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv("{oci_runtime}", ["{oci_runtime}", *words])
"""
_ANY_IMAGE: Final = {"default": [{"type": "insecureAcceptAnything"}]}


class Crio(Restartable):
    """CRI-O, and operations on containers without the kubelet's knowledge."""

    scopes = "crio"

    def __init__(self, directory: Path, programs: Path, *, oci_runtime: str, systemd: bool = False) -> None:
        """Write the configuration. ``programs`` is the directory of CRI-O and pinns."""
        (directory / "cni").mkdir(parents=True, exist_ok=True)
        (directory / "cni/pods.conflist").write_text(json.dumps(network("198.51.100.0/24")))
        (directory / "oci").mkdir()  # runc does not list the containers of a missing directory
        (directory / "policy.json").write_text(json.dumps(_ANY_IMAGE))
        self.socket = f"{directory}/crio.sock"
        self._storage = "overlay" if can_overlay(directory) else "vfs"
        self._directory = directory
        self._program = f"{programs}/crio"
        self._oci_runtime = oci_runtime
        values = {"directory": directory, "socket": self.socket, "storage": self._storage, "programs": programs}
        config = directory / "crio.conf"
        config.write_text(_CONFIG.format(**values, pause=BUSYBOX, cgroups="systemd" if systemd else "cgroupfs"))
        program = directory / "oci-runtime"
        program.write_text(_OCI_RUNTIME.format(python=sys.executable, oci_runtime=shutil.which(oci_runtime)))
        program.chmod(0o755)
        command = [self._program, "--config", str(config), "--config-dir", ""]
        self.daemon = Daemon("CRI-O", command, directory / "crio.log")

    @property
    def versions(self) -> dict[str, str]:
        """The versions of CRI-O and of the OCI runtime, as they report them."""
        return {"CRI-O": run(self._program, "--version").split()[2]} | oci_version(self._oci_runtime)

    def start(self) -> None:
        """Start CRI-O, and wait until it serves the CRI. Raises AssertionError with its log if it ends."""
        self.daemon.start()
        until(lambda: serves_cri(self.socket) or not self.daemon.running, "CRI-O serves the CRI")
        assert self.daemon.running, f"CRI-O ended:\n{self.daemon.tail()}"

    def load(self, archive: Path) -> None:
        """Import an image from an archive."""
        store = ("--root", f"{self._directory}/root", "--runroot", f"{self._directory}/runroot")
        pull = ("pull", "--quiet", "--signature-policy", f"{self._directory}/policy.json", f"docker-archive:{archive}")
        run("buildah", *store, "--storage-driver", self._storage, *pull, seconds=10 * PATIENCE)

    def execute(self, container_id: str, *words: str, detach: bool = False, user: str = "", seconds: float = 30) -> str:
        """Run a program in a container, and return its output; "" with ``detach``. Default: the container's user."""
        options = (*(("--detach",) if detach else ()), *(("--user", user) if user else ()))
        return self._oci("exec", *options, container_id, *words, seconds=seconds)

    def signal(self, container_id: str, number: signal.Signals) -> None:
        """Send a signal to a container's first process."""
        os.kill(self.oci_state(container_id)["pid"], number)

    def process_status(self, container_id: str) -> dict[str, str]:
        """Return /proc/PID/status of a container's first process."""
        return process_status(self.oci_state(container_id)["pid"])

    def running(self) -> set[str]:
        """Return the IDs of the running containers."""
        running = set()
        for container_id in self._containers():
            with contextlib.suppress(AssertionError):  # it was removed meanwhile
                if self.oci_state(container_id)["status"] == "running":
                    running.add(container_id)
        return running

    def spec(self, container_id: str) -> dict[str, Any]:
        """Return a container's OCI runtime spec."""
        spec: dict[str, Any] = json.loads(Path(self.oci_state(container_id)["bundle"], "config.json").read_text())
        return spec

    def oci_state(self, container_id: str) -> dict[str, Any]:
        """Return a container's state from the OCI runtime. Raises AssertionError if that has not started it."""
        state: dict[str, Any] = json.loads(self._oci("state", container_id))
        return state

    def _containers(self) -> list[str]:
        return self._oci("list", "--quiet").split()

    def remove_containers(self) -> None:
        """Stop and remove all containers, sandboxes too."""
        for container_id in self._containers():
            self._oci("delete", "--force", container_id)

    def _oci(self, *words: str, seconds: float = 30) -> str:
        return run(self._oci_runtime, "--root", f"{self._directory}/oci", *words, seconds=seconds)


ContainerRuntime: TypeAlias = Runtime | Crio


def container_runtime(
    directory: Path, name: str, programs: str, oci_runtime: str, *, systemd: bool = False
) -> ContainerRuntime:
    """Return the container runtime of a combination; its programs are those that ``runtime_parts`` returns."""
    if name.startswith(CRI_O):
        return Crio(directory, Path(programs), oci_runtime=oci_runtime, systemd=systemd)
    return Runtime(directory, Path(programs) if programs else None, oci_runtime=oci_runtime, systemd=systemd)
