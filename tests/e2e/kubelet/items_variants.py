"""Items: phones with one key more: clean nodes, a second resource, sharing, NUMA. Each list is a chapter of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_phones import CONFIGURATION, PATHS, PHONE, PHONES, SETS, nodes_of
from tests.e2e.kubelet.items_pods import REGISTRATIONS
from tests.e2e.kubelet.node import create_devices, names, natural_sort
from tests.e2e.kubelet.plugins import SHARING, ill, sockets
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.standalone import checkpoint
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node

RECREATE: Final = f"{CONFIGURATION}recreate: on-start\n"
recreate = Items()

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


def _registered(node: Node) -> None:
    """Have the plugin registered, which no healthy device shows."""
    if not node.plugin.running():
        before = node.kubelet.metric(REGISTRATIONS, PHONE)
        node.plugin.start()
        until(lambda: node.kubelet.metric(REGISTRATIONS, PHONE) == before + 1, "it registers")
    until(lambda: ill(PHONE) == {"not-recreated": len(PHONES)}, "the plugin calls all of them not-recreated")


@recreate("Nodes that are of no binderfs can't be made anew: every phone is told Unhealthy, as not-recreated")
def not_recreated(node: Node) -> None:
    _registered(node)
    status = node.status()
    assert status == (len(PHONES), 0), f"capacity and allocatable: {status}"


@recreate("A pod that asks for a phone is refused, in the kubelet's words")
def no_phone(node: Node) -> None:
    _registered(node)
    text = f"no healthy devices present; cannot allocate unhealthy devices {PHONE}"
    node.refuse(1, f"Allocate failed due to {text}, which is unexpected")


def _sidecars(node: Node) -> None:
    """Have the second resource's nodes, and the kubelet know them."""
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


@resources("A container that asks for both has both: the answers are merged, each with its nodes and its variable")
def merged(node: Node) -> None:
    _sidecars(node)
    asking = {"limits": {PHONE: 1, SIDECAR: 2}}
    with node.running(container("main", resources=asking)) as pod:
        view, nodes, sidecars = pod.view(), nodes_of(pod.held()), pod.held(resource=SIDECAR)
        assert (view.nodes, view.visible) == (set(nodes), nodes), f"{view.nodes} {view.visible}, given: {nodes}"
        assert len(sidecars) == 2, f"given: {sidecars}"
        assert view.named(SIDECAR_PREFIX) == sidecars, f"{view.devices}, given: {sidecars}"
        assert view.environment["SIDECARS"].split(",") == sorted(sidecars), view.environment["SIDECARS"]
        assert {*nodes, *sidecars} <= view.opened, f"opened: {view.opened}"
        assert [view.bound.get(path) for path in PATHS] == nodes, f"{view.bound}, given: {nodes}"
        assert view.mounts["/vendor/shared"].split(",")[0] == "ro", "the directory that both have"


@replicas("A pod has each phone once, and a second one shares one of them: its nodes open in both")
def both_open(node: Node) -> None:
    with node.asking(len(PHONES)) as first, node.asking(1) as second:
        held, again = ({one.split("::")[0] for one in pod.held()} for pod in (first, second))
        assert held == PHONES, f"{first.held()}"
        assert not first.held() & second.held(), f"{first.held()} {second.held()}"
        nodes = set(nodes_of(again))
        assert nodes == second.view().nodes, f"{second.view().nodes}, given: {second.held()}"
        for pod in (first, second):
            assert nodes <= pod.view().opened, f"opened: {pod.view().opened}, shared: {nodes}"


@numa("GetAllocatableResources has the NUMA node of each phone")
def topology(node: Node) -> None:
    node.wait_allocatable(PHONES)
    places = node.kubelet.numa_nodes(PHONE)
    assert places == PLACES, f"{places}"


@numa("List has it for a pod's phones, and the checkpoint keeps them by NUMA node")
def topology_of_a_pod(node: Node) -> None:
    with node.asking(1) as pod:
        (phone,) = pod.held()
        told = node.kubelet.numa_nodes_held(pod.name, PHONE)
        assert told == {phone: PLACES[phone]}, f"{told}, expected: {PLACES[phone]}"
        entries = [one for one in checkpoint()["PodDeviceEntries"] if one["PodUID"] == pod.pod["metadata"]["uid"]]
        kept = {device: {int(place)} for one in entries for place, ids in one["DeviceIDs"].items() for device in ids}
        assert kept == told, f"checkpoint: {kept}"


@numa("Two phones of one container are of one NUMA node, though a lower one is free on the other")
def near_each_other(node: Node) -> None:
    with node.asking(1) as first, node.asking(2) as second:
        taken, given = natural_sort(first.held()), natural_sort(second.held())
        assert (taken, given) == (["aosp_binder0"], ["aosp_binder6", "aosp_binder9"]), f"{taken} {given}"
