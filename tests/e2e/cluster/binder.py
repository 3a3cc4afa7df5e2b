"""The machine with a real binder driver, and phones on it in which Android's own binder software runs.

That machine is in software emulation (:mod:`tests.e2e.cluster.guest`), so all limits are generous.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.guest import SLOW, GuestMachine
from tests.e2e.common.images import tree_image
from tests.e2e.common.report import say
from tests.e2e.kernel import aosp
from tests.e2e.kernel.phones import DIRECTORY, SOURCE

APP: Final = "binder-phone"
COUNT: Final = 3
"""Phones of the Deployment."""
VERSIONS: Final = {
    "machine": "architecture",
    "Linux": "kernelVersion",
    "kubelet": "kubeletVersion",
    "containerd": "containerRuntimeVersion",
}
"""The versions that the node reports, by the names of its fields."""


@dataclass
class BinderPhone:
    """A pod in which service managers and a service with its name run."""

    cluster: Cluster
    machine: GuestMachine
    pod: dict[str, Any]
    name: str
    """The name of the pod."""

    @property
    def container(self) -> tuple[str, int]:
        """The ID and the restarts of its container."""
        return phones.container_of(self.pod)

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""
        identifier = self.container[0].removeprefix("containerd://")
        return self.machine.runtime.execute(identifier, *words, user=f"{user}:{user}")

    def log(self) -> list[str]:
        """Return what the container's last run has printed after its report about itself."""
        path = f"{phones.collection('Pod')}/{self.name}/log"
        lines = self.cluster.api.text("GET", path, seconds=SLOW).splitlines()
        return lines[lines.index("--- end") + 1 :]

    def phone(self) -> str:
        """Return the ID of its phone, the only one that it sees."""
        return self.execute(0, "/bin/busybox", "ls", DIRECTORY).strip()


def node(cluster: Cluster, kind: type[GuestMachine] = GuestMachine) -> GuestMachine:
    """Return the machine with the binder driver; boot one of this kind if there is none."""
    for machine in cluster.machines:
        if isinstance(machine, GuestMachine):
            return machine
    parts, directory = cluster.parts.guest, cluster.directory / "machines" / "guest"
    assert parts is not None
    files, image = cluster.directory / "phone", cluster.directory / "phone.tar"
    if not image.exists():
        aosp.assemble(files, parts.android, parts.tree.root)
        tree_image(image, files, parts.architecture.debian)
    machine = kind(parts, cluster.control_plane, directory, [image, parts.image], cluster.parts.containerd)
    cluster.machines.append(machine)
    machine.boot(cluster.control_plane.programs)
    cluster.wait_node(machine, seconds=SLOW)
    info = cluster.api.get(f"{CORE}/nodes/{machine.name}")["status"]["nodeInfo"]
    for name, field in VERSIONS.items():
        say(f"# version {name}: {info[field]}")
    return machine


def remove_node(cluster: Cluster) -> None:
    """End the machine with the binder driver, and remove its node and its files."""
    machine = node(cluster)
    machine.kubelet.end()  # without its end, the API server would wait for it at its own
    machine.shut_down()
    machine.discard()
    cluster.machines.remove(machine)
    cluster.api.delete(f"{CORE}/nodes/{machine.name}")


def install(cluster: Cluster, values: dict[str, Any]) -> None:
    """Install or upgrade the plugin."""
    plugin.install(cluster, values, f"--timeout={SLOW:.0f}s", seconds=SLOW)


def running(cluster: Cluster) -> list[BinderPhone]:
    """Wait until all phones of the Deployment run, and return them, of which each sees one phone, that no other has."""
    pods = phones.wait_running(cluster, APP, COUNT, seconds=SLOW)
    found = [BinderPhone(cluster, node(cluster), pod, pod["metadata"]["name"]) for pod in pods]
    seen = [phone.phone() for phone in found]
    assert len({*seen}) == COUNT, f"they have {seen}"
    return found


def check_all(found: Sequence[BinderPhone]) -> None:
    """Check that Android's tools in each phone, which is new, find its services and none of the next one; run tests."""
    for phone, other in zip(found, (*found[1:], found[0]), strict=True):
        aosp.works(phone, other.name, seconds=SLOW)
    aosp.run_tests(found[0], aosp.QUICK)


def check_undisturbed(found: Sequence[BinderPhone], before: Sequence[BinderPhone]) -> None:
    """Check that phones are in the same containers, and that their service managers still know their services."""
    assert [phone.container for phone in found] == [phone.container for phone in before], "phones have restarted"
    for phone in found:
        aosp.alone(phone)


def mounted(machine: GuestMachine, source: str = SOURCE) -> dict[str, str]:
    """Return the phones that the node has mounted, with the device number of the file system.

    ``source`` is that of the mounts: each API has its own.
    """
    rows = [line.split() for line in machine.run("cat", "/proc/self/mountinfo").splitlines()]
    return {row[4].removeprefix(f"{DIRECTORY}/"): row[2] for row in rows if source in row}


def values(mode: str = "plugin", **config: Any) -> dict[str, Any]:
    """Return the chart's values for phones with a binderfs each."""
    return {
        "image": plugin.VALUES["image"],
        "nodeSelector": {"aosp.io/e2e": "guest"},
        "provision": {"mode": mode},
        "config": {"version": "v1", "verify": "binder", "phones": {"count": COUNT}} | config,
    }
