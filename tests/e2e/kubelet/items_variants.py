"""Items: phones with recreation, a second resource, replicas or NUMA nodes. Each list belongs to a chapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_phones import CONFIGURATION, PATHS, PHONE, PHONES, SETS, binder_devices_of
from tests.e2e.kubelet.node import create_devices, names, natural_sort
from tests.e2e.kubelet.plugins import SHARING, sockets
from tests.e2e.kubelet.pods import container

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node

SIDECAR: Final = "aosp.io/sidecar"
SIDECAR_PREFIX: Final = "sidecar_binder"
SIDECARS: Final = {f"{SIDECAR_PREFIX}{number}" for number in range(3)}
RESOURCES: Final = f"""\
version: v1
resources:
  - resource_name: {PHONE}
    {SETS.replace("container_paths", "    container_paths").rstrip()}
  - resource_name: {SIDECAR}
    device_prefix: {SIDECAR_PREFIX}
    visible_devices_env: SIDECARS
{SHARING}"""
resources = Items()

TIMES: Final = 2
REPLICAS: Final = f"{CONFIGURATION}replicas: {TIMES}\n"
REPLICATED: Final = {f"{phone}::{number}" for phone in PHONES for number in range(TIMES)}
replicas = Items()

NUMA: Final = f"{CONFIGURATION}numa: {{'0-5': 0, '6-11': 1}}\n"
PLACES: Final = {phone: {int(phone in names(6, 9))} for phone in PHONES}
numa = Items()


def _sidecars(node: Node) -> None:
    """Create the second resource's binder devices, and wait until they are allocatable."""
    create_devices(len(SIDECARS), SIDECAR_PREFIX)
    if not node.plugin.running():
        node.plugin.start()
    node.wait_allocatable(PHONES)
    node.wait_allocatable(SIDECARS, SIDECAR)


@resources("One process registers two resources, each with its own devices and its own socket")
def registered(node: Node) -> None:
    _sidecars(node)
    assert len(sockets()) == 2, f"its sockets: {sockets()}"
    counts = node.status(), node.status(SIDECAR)
    assert counts == ((4, 4), (3, 3)), f"capacity and allocatable: {counts}"


@resources("A container that requests both resources has the devices and the variable of each: the answers are merged")
def merged(node: Node) -> None:
    _sidecars(node)
    requests = {"limits": {PHONE: 1, SIDECAR: 2}}
    with node.running(container("main", resources=requests)) as pod:
        view, members, sidecars = pod.view(), binder_devices_of(pod.held()), pod.held(resource=SIDECAR)
        assert (view.binder_devices, view.visible) == (set(members), members), (
            f"{view.binder_devices} {view.visible}, allocated: {members}"
        )
        assert len(sidecars) == 2, f"allocated: {sidecars}"
        assert view.named(SIDECAR_PREFIX) == sidecars, f"{view.devices}, allocated: {sidecars}"
        assert view.environment["SIDECARS"].split(",") == sorted(sidecars), view.environment["SIDECARS"]
        assert {*members, *sidecars} <= view.opened, f"opened: {view.opened}"
        assert [view.bound.get(path) for path in PATHS] == members, f"{view.bound}, allocated: {members}"
        assert view.mounts["/vendor/shared"].split(",")[0] == "ro", "the shared directory"


@replicas("A pod has each phone once, and a second pod shares one of them: both can open its binder devices")
def both_open(node: Node) -> None:
    with node.running_with(len(PHONES)) as first, node.running_with(1) as second:
        held, shared = ({device.split("::")[0] for device in pod.held()} for pod in (first, second))
        assert held == PHONES, f"{first.held()}"
        assert not first.held() & second.held(), f"{first.held()} {second.held()}"
        members = set(binder_devices_of(shared))
        assert members == second.view().binder_devices, f"{second.view().binder_devices}, allocated: {second.held()}"
        for pod in (first, second):
            assert members <= pod.view().opened, f"opened: {pod.view().opened}, shared: {members}"


@numa("GetAllocatableResources reports the NUMA node of each phone")
def topology(node: Node) -> None:
    node.wait_allocatable(PHONES)
    places = node.kubelet.numa_nodes(PHONE)
    assert places == PLACES, f"{places}"


@numa("Two phones of one container are on the same NUMA node, although a lower number is free on the other")
def near_each_other(node: Node) -> None:
    with node.running_with(1) as first, node.running_with(2) as second:
        taken, allocated = natural_sort(first.held()), natural_sort(second.held())
        assert (taken, allocated) == (["aosp_binder0"], ["aosp_binder6", "aosp_binder9"]), f"{taken} {allocated}"
