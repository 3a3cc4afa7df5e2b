"""What an uninstalled plugin must not leave behind: objects in the API server, files and mounts on a node."""

from typing import Final

from tests.e2e.cluster import plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.machine import Machine
from tests.e2e.common.report import say
from tests.e2e.common.waiting import PATIENCE, until

_TRANSIENT: Final = frozenset({"events", "events.events.k8s.io", "leases.coordination.k8s.io"})
"""Kinds that expire."""
_DIRECTORIES: Final = (
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/run/cdi",
    "/run/aosp-binderfs",
)
_OF_OTHERS: Final = "^/run/(containerd|disk|netns|pods-network)(/|$)|_pods_state$|/kubelet_internal_checkpoint$"
"""Files of containerd, the network plugin and the guest's disk, and those that a kubelet has since its first pod."""
_KUBELET: Final = frozenset({"kubelet.sock", "kubelet_internal_checkpoint"})
"""The kubelet's own files in its plugin directory."""
_RECORDS: Final = "/var/lib/kubelet/device-plugins/aosp-plugin/"
"""The records of devices stay, as docs/deploy.md says: a later plugin knows by them which devices pods have."""


def objects(cluster: Cluster) -> list[str]:
    """Return the plugin's objects of all kinds and namespaces in the API server."""
    kinds = set(cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()) - _TRANSIENT
    listed = cluster.kubectl("get", ",".join(sorted(kinds)), "--all-namespaces", "--output=name")
    return [line for line in listed.splitlines() if plugin.NAME in line]


def files(machine: Machine) -> list[str]:
    """Return the plugin's files and mounts on a machine. Empty directories do not count."""
    script = f"find -H {' '.join(_DIRECTORIES)} ! -type d 2>/dev/null || :"
    found = [
        path
        for path in machine.run("sh", "-c", script).split()
        if path.rpartition("/")[2] not in _KUBELET and not path.startswith(_RECORDS)
    ]
    mounts = machine.run("cat", "/proc/mounts").splitlines()
    return found + [line for line in mounts if any(directory in line for directory in _DIRECTORIES)]


def require_none(cluster: Cluster) -> None:
    """Check that nothing remains. The controllers delete what the DaemonSet owned shortly after it."""
    until(lambda: not objects(cluster), "no object of the plugin remains", seconds=2 * PATIENCE)
    until(lambda: not plugin.pods(cluster), "no pod of the plugin remains")
    for machine in cluster.machines:
        left = files(machine)
        assert not left, f"on {machine.name}: {left}"


def record(cluster: Cluster, machine: Machine) -> set[str]:
    """Return files and all mounts of a machine, and what its Node object says about it, as lines."""
    files = f"find -H /etc /run /var/lib/kubelet /var/run/cdi 2>/dev/null | grep -Ev '{_OF_OTHERS}'"
    files += "; find /dev/char -type l 2>/dev/null"
    lines = machine.run("sh", "-c", f"{files}; awk '{{print $2, $3, $1}}' /proc/mounts", seconds=SLOW).splitlines()
    node = cluster.api.get(f"{CORE}/nodes/{machine.name}")
    fields = {name: node["metadata"].get(name, {}) for name in ("labels", "annotations")}
    fields |= {name: node["status"][name] for name in ("capacity", "allocatable")}
    return {*lines, *(f"{name} {key}={value}" for name, found in fields.items() for key, value in found.items())}


def require_as_before(cluster: Cluster, machine: Machine, before: set[str], documented: set[str]) -> None:
    """Check and print what was added since a record. The kubelet has the capacity of a resource for 5 minutes."""

    def as_documented() -> bool:
        found = record(cluster, machine) ^ before
        assert found == documented, "; ".join(sorted(found ^ documented))
        return True

    until(as_documented, "files, mounts and the Node object are as before", seconds=2 * SLOW)
    say("\n# ".join(["# Added since before the installation, and nothing else:", *sorted(documented)]))
