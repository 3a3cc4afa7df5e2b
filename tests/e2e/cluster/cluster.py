"""A cluster: a control plane, machines, and the clients that people use."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.cluster.api import CORE, Api, is_ready
from tests.e2e.cluster.control_plane import NODE_GRACE, ControlPlane
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.parts import Parts
from tests.e2e.common.images import busybox_image
from tests.e2e.common.processes import run
from tests.e2e.common.waiting import PATIENCE, until


class Cluster:
    """A control plane in this sandbox, and machines in namespaces of their own."""

    def __init__(self, parts: Parts, directory: Path, cgroups: str) -> None:
        """``directory`` gets all files, ``cgroups`` is the name of the run's directory of cgroups."""
        self.parts = parts
        self.directory = directory
        # The clock of a guest of another architecture is late if the machine is busy.
        late = parts.guest is not None and not parts.guest.architecture.native
        grace = 10 * PATIENCE if late else NODE_GRACE
        self.control_plane = ControlPlane(parts.kubernetes, directory / "control-plane", grace=grace)
        self.machines: list[Machine] = []
        self._cgroups = cgroups
        self._busybox = directory / "busybox.tar"
        busybox_image(self._busybox)
        self.programs = directory / "programs"
        """The directory of what people run, which the path begins with."""
        self.programs.mkdir()
        for program in (parts.kubernetes / "kubectl", parts.helm, parts.kustomize):
            (self.programs / program.name).symlink_to(program)
        path = f"{self.programs}:{os.environ['PATH']}"
        # Helm and kubectl keep files below the home directory.
        os.environ.update(KUBECONFIG=str(self.kubeconfig), HOME=str(directory), PATH=path)

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

    def start(self) -> None:
        """Start what does not run: the control plane, and a machine, whose node is Ready."""
        self.control_plane.start()
        self.grow(1)

    def grow(self, machines: int) -> None:
        """Boot machines until there are so many nodes, which are Ready."""
        while len(self.machines) < machines:
            number = len(self.machines) + 1
            directory = self.directory / "machines" / str(number)
            machine = Machine(number, self.control_plane, directory, self._cgroups, self.parts.containerd)
            self.machines.append(machine)
            machine.boot(self.parts.kubernetes)
            machine.create_devices()
            for image in (self._busybox, self.parts.image):
                machine.runtime.load(image)
            self.wait_node(machine)

    def upgrade(self, programs: Path) -> None:
        """Use the control plane and the kubelets of another directory, and wait until the nodes are Ready."""
        if self.control_plane.programs != programs:
            self.control_plane.replace(programs)
        version = f"v1.{self.control_plane.minor}."
        for machine in self.machines:
            path = f"{CORE}/nodes/{machine.name}"

            def is_new(path: str = path) -> bool:
                return version in self.api.get(path)["status"]["nodeInfo"]["kubeletVersion"]

            if not is_new():
                machine.replace_kubelet(programs)
            until(is_new, f"the kubelet of {machine.name} has {version}")
            self.wait_node(machine)

    def wait_node(self, machine: Machine, *, ready: bool = True, seconds: float = 4 * PATIENCE) -> None:
        """Wait until a machine's node is Ready, or no longer Ready."""
        what = f"{machine.name} is {'Ready' if ready else 'not Ready'}"
        path = f"{CORE}/nodes/{machine.name}"
        until(lambda: is_ready(self.api.find(path) or {}) is ready, what, seconds=seconds)

    def kubectl(self, *words: str, text: str | None = None, seconds: float = 120) -> str:
        """Run kubectl as the administrator, and return its output. Raises AssertionError if it fails."""
        return run("kubectl", *words, text=text, seconds=seconds)

    def helm(self, *words: str) -> str:
        """Run Helm as the administrator, and return its output. Raises AssertionError if it fails."""
        return run("helm", *words, seconds=20 * PATIENCE)

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
        for machine in filter(lambda machine: machine.running, self.machines):
            for daemon in (machine.containerd, machine.kubelet):
                yield f"{daemon.name} of {machine.name}", daemon.tail()
