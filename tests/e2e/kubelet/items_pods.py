"""Items: the plugin registers, and pods get their nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.node import ALL, COUNT, natural_sort
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.pods import DONE, RESOURCE, container
from tests.e2e.kubelet.standalone import checkpoint
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node

item = Items()

ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds_count"
REGISTRATIONS = "kubelet_device_plugin_registration_total"


@item("The plugin registers, and within 30 s the kubelet can allocate every device")
def registers(node: Node) -> None:
    before = node.kubelet.metric(REGISTRATIONS, node.resource)
    node.plugin.start()
    node.wait_allocatable(node.devices)
    assert node.kubelet.metric(REGISTRATIONS, node.resource) == before + 1, "one Register, no more"
    assert len(sockets()) == 1, f"its sockets: {sockets()}"
    registered = until(lambda: set(checkpoint()["RegisteredDevices"][node.resource]), "the checkpoint has the resource")
    assert registered == node.devices, f"the checkpoint lists {registered}"


@item("The node's status has as many, as capacity and as allocatable")
def capacity(node: Node) -> None:
    status, count = node.status(), len(node.devices)
    assert status == (count, count), f"capacity and allocatable: {status}"


@item("A pod that asks for 3 runs and has exactly its three nodes in /dev, as character devices that open")
def own_devices(node: Node) -> None:
    phone, _ = node.phones
    view, held = phone.view(), phone.held()
    assert len(held) == 3, f"the kubelet gave it {held}"
    assert view.nodes == held, f"in /dev: {view.nodes}, given: {held}"
    assert view.opened == held, f"opened: {view.opened}, given: {held}"
    assert all(view.devices[name].startswith("crw-rw-rw-") for name in held), f"{view.devices}"


@item("Its environment names the same three in natural_sort order, and has Android's PATH")
def environment(node: Node) -> None:
    phone, _ = node.phones
    view = phone.view()
    assert view.visible == natural_sort(phone.held()), f"{view.visible}"
    assert view.environment["PATH"] == "/system/bin:/system/xbin", view.environment["PATH"]


@item("It has the shared directory read-only, and no other mount of the plugin's")
def mounts(node: Node) -> None:
    phone, _ = node.phones
    view = phone.view()
    assert view.mounts["/vendor/shared"].split(",")[0] == "ro", view.mounts["/vendor/shared"]
    plain = {"/dev/pts", "/dev/mqueue", "/dev/shm", "/dev/termination-log"}
    others = {path for path in view.mounts if path.startswith("/dev/")} - plain
    assert not others, f"mounts below /dev: {others}"


@item("List, Get, the pod's status and the checkpoint agree on who has which devices")
def records(node: Node) -> None:
    for phone in node.phones:
        held = phone.held()
        assert node.kubelet.held_by(phone.name, node.resource) == {"main": held}, "Get"
        assert node.health(phone) == dict.fromkeys(held, "Healthy"), f"status: {node.health(phone)}"
        uid = phone.pod["metadata"]["uid"]
        entries = [entry for entry in checkpoint()["PodDeviceEntries"] if entry["PodUID"] == uid]
        ids = {device for entry in entries for numa in entry["DeviceIDs"].values() for device in numa}
        assert ids == held, f"checkpoint: {ids}, List: {held}"


@item("A second pod gets three others, and both run at once")
def second_pod(node: Node) -> None:
    first, second = node.phones
    assert len(second.view().nodes) == 3, second.view().nodes
    assert not first.view().nodes & second.view().nodes, f"both have {first.view().nodes & second.view().nodes}"


@item("Three pods that come at the same moment get different nodes")
def at_once(node: Node) -> None:
    placed = [node.place(container("main", 2)) for _ in range(3)]
    try:
        for pod in placed:
            pod.wait_phase("Running")
        given = [name for pod in (*placed, *node.phones) for name in pod.view().nodes]
        assert sorted(given) == sorted(ALL), f"given: {sorted(given)}"
    finally:
        node.remove(*placed)


@item("Two containers of one pod get different nodes, each its own and an environment of its own")
def two_containers(node: Node) -> None:
    with node.running(container("main", 2), container("side", 1)) as pod:
        main, side = pod.view("main"), pod.view("side")
        assert (len(main.nodes), len(side.nodes)) == (2, 1), f"{main.nodes} {side.nodes}"
        assert not main.nodes & side.nodes, f"{main.nodes} {side.nodes}"
        assert set(side.visible) == side.nodes, f"{side.visible} {side.nodes}"


@item("A pod that asks for none gets none: no node, no variable, no mount")
def without(node: Node) -> None:
    with node.running(container("main")) as pod:
        view = pod.view()
        assert not view.nodes, f"{view.nodes}"
        assert "BINDER_VISIBLE_DEVICES" not in view.environment, f"{view.environment}"
        assert "/vendor/shared" not in view.mounts, "it has the shared directory"


@item("A sidecar takes over the init container's node; the app container gets another one")
def init_containers(node: Node) -> None:
    init = (container("init", 1, then=DONE), container("sidecar", 1, restartPolicy="Always"))
    with node.running(container("main", 1), init=init) as pod:
        first, sidecar, main = (pod.view(name).nodes for name in ("init", "sidecar", "main"))
        assert first == sidecar, f"init: {first}, sidecar: {sidecar}"
        assert len(main) == 1, f"main: {main}"
        assert not main & sidecar, f"main: {main}, sidecar: {sidecar}"


@item("A pod that asks for too many is refused, in the kubelet's words")
def too_many(node: Node) -> None:
    free = COUNT - sum(len(phone.held()) for phone in node.phones)
    text = f"requested number of devices unavailable for {RESOURCE}. Requested: {free + 1}, Available: {free}"
    node.refuse(free + 1, f"Allocate failed due to {text}, which is unexpected")


@item("A container that restarts has the same nodes, and the plugin is not asked again")
def container_restart(node: Node) -> None:
    phone, _ = node.phones
    before, asked = phone.view(), node.kubelet.metric(ALLOCATIONS, node.resource)
    phone.restart_container()
    after = phone.view()
    assert (after.nodes, after.environment) == (before.nodes, before.environment), f"{before} {after}"
    assert (after.mounts, after.bound) == (before.mounts, before.bound), f"{before} {after}"
    assert node.kubelet.metric(ALLOCATIONS, node.resource) == asked, "Allocate was called"


@item("The kubelet calls Allocate once for a container that asks")
def allocate_once(node: Node) -> None:
    assert node.phones
    asked = node.kubelet.metric(ALLOCATIONS, node.resource)
    with node.asking(1):
        assert node.kubelet.metric(ALLOCATIONS, node.resource) == asked + 1, f"it was {asked}"


@item("What a pod had that finished is given out again")
def finished(node: Node) -> None:
    free = COUNT - sum(len(phone.held()) for phone in node.phones)
    done = node.place(container("main", free, then=DONE), restartPolicy="Never")
    try:
        done.wait_phase("Succeeded")
        until(lambda: not done.held(), "List no longer gives it devices")
        with node.running(container("main", free)) as pod:
            assert pod.view().nodes == done.view().nodes, f"{pod.view().nodes}, before: {done.view().nodes}"
    finally:
        node.remove(done)


@item("What a pod had that was removed is given out again: one pod gets all, named in natural_sort order")
def removed(node: Node) -> None:
    assert node.phones
    node.clear()
    with node.running(container("main", COUNT)) as pod:
        assert pod.view().nodes == ALL, f"{pod.view().nodes}"
        assert pod.view().visible == natural_sort(ALL), f"{pod.view().visible}"
