"""Which phone each pod has: as its container sees it, and as the kubelet says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.framework.api import podresources_pb2 as pb
from tests.e2e.cluster import phones
from tests.e2e.cluster.plugin import PHONE, SIZE, VALUES
from tests.e2e.kubelet.node import natural_sort
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.standalone import POD_RESOURCES, ask, devices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine
    from tests.e2e.kubelet.pods import ContainerView

PATHS: Final[Sequence[str]] = VALUES["config"]["container_paths"]


def phone_of(view: ContainerView) -> str:
    """Return the device ID of a container's only phone. Raises AssertionError if it does not have a whole one.

    The names at the container's paths are those that the mount table has for the host's files.
    """
    members = natural_sort(view.binder_devices)
    first = int(members[0].removeprefix(PREFIX)) if members else 0
    expected = [f"{PREFIX}{number}" for number in range(first, first + SIZE)]
    assert first % SIZE == 0, f"no phone begins with {members}"
    assert members == expected, f"in /dev: {members}"
    assert view.visible == expected, f"in the environment: {view.visible}, in /dev: {members}"
    bound = [view.bound.get(path) for path in PATHS]
    assert bound == expected, f"{PATHS} are {bound}, in /dev: {members}"
    opened = {*expected, *(path.removeprefix("/dev/") for path in PATHS)}
    assert view.opened == opened, f"opened: {view.opened}, expected: {opened}"
    return expected[0]


def owners(
    cluster: Cluster,
    pods: Sequence[dict[str, Any]],
    held: Callable[[Machine, dict[str, Any]], set[str]] | None = None,
) -> dict[str, tuple[str, str]]:
    """Return node and device ID of the phone that each pod has, by the pod's name.

    Raises AssertionError if a pod does not have a whole phone, if two have the same one, or if ``held``, by default the
    kubelet, says that a pod has another one.
    """
    machines = {machine.name: machine for machine in cluster.machines}
    found: dict[str, tuple[str, str]] = {}
    for pod in pods:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        seen = phone_of(phones.view(cluster, pod))
        given = (held or _devices_held)(machines[node], pod)
        assert given == {seen}, f"{name} sees {seen}, and the kubelet says {given}"
        found[name] = node, seen
    assert len(set(found.values())) == len(found), f"two pods have the same phone: {found}"
    return found


def healthy(machine: Machine) -> set[str]:
    """Return the healthy devices that a machine's kubelet knows, allocated or not, without the delay of its reports."""
    return devices_of(ask(_socket(machine), "GetAllocatableResources", pb.AllocatableResourcesRequest()), PHONE)


def _devices_held(machine: Machine, pod: dict[str, Any]) -> set[str]:
    """Return the phones that a pod's containers have according to the kubelet of its machine."""
    metadata = pod["metadata"]
    request = pb.GetPodResourcesRequest(pod_name=metadata["name"], pod_namespace=metadata["namespace"])
    answer = ask(_socket(machine), "Get", request)
    return set().union(*(devices_of(container, PHONE) for container in answer.pod_resources.containers))


def _socket(machine: Machine) -> str:
    return f"{machine.root}{POD_RESOURCES}"
