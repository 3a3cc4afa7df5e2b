"""A cluster: a control plane, machines, and the clients that people use."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.machine import Machine
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.cluster.api import Api
    from tests.e2e.cluster.parts import Parts

DEVICES: Final = 12
"""Binder devices of a new machine; stand-ins, three of which form a phone."""


class Cluster:
    """A control plane in this sandbox, and machines in namespaces of their own."""

    def __init__(self, parts: Parts, directory: Path, cgroups: str) -> None:
        """``directory`` gets all files, ``cgroups`` is the name of the run's directory of cgroups."""
        self.parts = parts
        self.directory = directory
        self.control_plane = ControlPlane(parts.kubernetes, directory / "control-plane")
        self.machines: list[Machine] = []
        self._cgroups = cgroups
        self._busybox = directory / "busybox.tar"
        busybox_image(self._busybox)
        # Helm and kubectl keep files below these directories.
        os.environ["KUBECONFIG"] = str(self.kubeconfig)
        os.environ["HOME"] = str(directory)
        for name in ("CACHE", "CONFIG", "DATA"):
            os.environ[f"HELM_{name}_HOME"] = str(directory / "helm")

    @property
    def api(self) -> Api:
        """The administrator's requests to the API server."""
        return self.control_plane.api

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.control_plane.kubeconfig

    @property
    def machine(self) -> Machine:
        """The first machine."""
        return self.machines[0]

    def start(self, machines: int = 1) -> None:
        """Start the control plane and machines, and wait until the nodes are Ready."""
        with ThreadPoolExecutor() as executor:
            started = [executor.submit(self._boot, self._new_machine()) for _ in range(machines)]
            self.control_plane.start()
            for future in started:
                future.result()
        for machine in self.machines:
            self.wait_node(machine)

    def grow(self, machines: int) -> None:
        """Boot machines until there are so many nodes, which are Ready."""
        while len(self.machines) < machines:
            machine = self._new_machine()
            self._boot(machine)
            self.wait_node(machine)

    def _new_machine(self) -> Machine:
        number = len(self.machines) + 1
        directory = self.directory / "machines" / str(number)
        machine = Machine(number, self.control_plane, directory, self._cgroups, self.parts.containerd)
        self.machines.append(machine)
        return machine

    def _boot(self, machine: Machine) -> None:
        machine.boot(self.parts.kubernetes)
        machine.device_tool("create", "--stand-ins", "--count", str(DEVICES))
        for image in (self._busybox, self.parts.image):
            machine.runtime.load(image)

    def wait_node(self, machine: Machine, *, ready: bool = True, seconds: float = 4 * PATIENCE) -> None:
        """Wait until a machine's node is Ready, or no longer Ready."""
        what = f"{machine.name} is {'Ready' if ready else 'not Ready'}"
        until(lambda: self.node_ready(machine) is ready, what, seconds=seconds)

    def node_ready(self, machine: Machine) -> bool:
        """Return whether the API server reports the node as Ready."""
        node = self.api.find(f"{CORE}/nodes/{machine.name}") or {}
        conditions = node.get("status", {}).get("conditions", [])
        return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

    def kubectl(self, *words: str, text: str | None = None, seconds: float = 120) -> str:
        """Run kubectl as the administrator, and return its output. Raises AssertionError if it fails."""
        return run(str(self.parts.kubernetes / "kubectl"), *words, text=text, seconds=seconds)

    def helm(self, *words: str, seconds: float = 300) -> str:
        """Run Helm as the administrator, and return its output. Raises AssertionError if it fails."""
        return run(str(self.parts.helm), *words, seconds=seconds)

    def stop(self) -> None:
        """End all machines and the control plane."""
        for machine in self.machines:
            if machine.running:
                machine.shut_down()
        self.control_plane.stop()
        shutil.rmtree(self.directory / "machines", ignore_errors=True)

    def tails(self) -> Iterator[tuple[str, str]]:
        """Yield name and end of the log of each process."""
        yield from self.control_plane.tails()
        for machine in self.machines:
            for daemon in (machine.containerd, machine.kubelet):
                yield f"{daemon.name} of {machine.name}", daemon.tail()
