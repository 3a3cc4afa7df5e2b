"""Items: the plugin registers, and pods get binder devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.node import COUNT, natural_sort
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.pods import DONE, container
from tests.e2e.kubelet.standalone import checkpoint
from tests.e2e.kubelet.versions import GET, HEALTH, SIDECARS
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node

item = Items()

ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds_count"
REGISTRATIONS = "kubelet_device_plugin_registration_total"


@item("The plugin registers once, and the kubelet can allocate all devices within 30 s")
def registers(node: Node) -> None:
    before = node.kubelet.metric(REGISTRATIONS, node.resource)
    node.plugin.start()
    node.wait_allocatable(node.devices)
    assert node.kubelet.metric(REGISTRATIONS, node.resource) == before + 1, "exactly one Register"
    assert len(sockets()) == 1, f"sockets: {sockets()}"
    registered = until(lambda: set(checkpoint()["RegisteredDevices"][node.resource]), "the checkpoint has the resource")
    assert registered == node.devices, f"the checkpoint lists {registered}"
    status, count = node.status(), len(node.devices)
    assert status == (count, count), f"capacity and allocatable of the node's status: {status}"


@item("A pod that requests 3 devices has exactly these 3 binder devices in /dev, and can open them")
def own_devices(node: Node) -> None:
    phone, _ = node.phones
    view, held = phone.view(), phone.held()
    assert len(held) == 3, f"allocated: {held}"
    assert view.binder_devices == held, f"in /dev: {view.binder_devices}, allocated: {held}"
    assert view.opened == held, f"opened: {view.opened}, allocated: {held}"
    assert all(view.devices[name].startswith("crw-rw-rw-") for name in held), f"{view.devices}"


@item("Its environment lists them in natural order; it has the shared directory read-only, and no other mount")
def environment(node: Node) -> None:
    phone, _ = node.phones
    view = phone.view()
    assert view.visible == natural_sort(phone.held()), f"{view.visible}"
    assert view.environment["PATH"] == "/system/bin:/system/xbin", view.environment["PATH"]
    assert view.mounts["/vendor/shared"].split(",")[0] == "ro", view.mounts["/vendor/shared"]
    plain = {"/dev/pts", "/dev/mqueue", "/dev/shm", "/dev/termination-log"}
    unexpected = {path for path in view.mounts if path.startswith("/dev/")} - plain
    assert not unexpected, f"mounts below /dev: {unexpected}"


@item("The OCI runtime that the run names has started the container: it knows the container's state")
def oci_runtime(node: Node) -> None:
    phone, _ = node.phones
    state = node.runtime.oci_state(phone.container_id())
    assert state["status"] == "running", f"{state}"


@item("Get returns the same devices of a pod as List", GET.required)
def get(node: Node) -> None:
    for phone in node.phones:
        assert node.kubelet.held_by(phone.name, node.resource) == {"main": phone.held()}, f"List: {phone.held()}"


@item("The pod's status reports each container's devices as Healthy", HEALTH.required)
def status(node: Node) -> None:
    for phone in node.phones:
        expected = dict.fromkeys(phone.held(), "Healthy")
        until(lambda phone=phone, expected=expected: node.health(phone) == expected, f"{expected}")  # type: ignore[misc]


@item("A second pod gets 3 other devices while the first one runs")
def second_pod(node: Node) -> None:
    first, second = node.phones
    assert len(second.view().binder_devices) == 3, second.view().binder_devices
    assert not first.view().binder_devices & second.view().binder_devices, (
        f"both have {first.view().binder_devices & second.view().binder_devices}"
    )


@item("Two containers of one pod get different devices, and each environment lists its container's devices")
def two_containers(node: Node) -> None:
    with node.running(container("main", 2), container("side", 1)) as pod:
        main, side = pod.view("main"), pod.view("side")
        assert (len(main.binder_devices), len(side.binder_devices)) == (2, 1), (
            f"{main.binder_devices} {side.binder_devices}"
        )
        assert not main.binder_devices & side.binder_devices, f"{main.binder_devices} {side.binder_devices}"
        assert set(side.visible) == side.binder_devices, f"{side.visible} {side.binder_devices}"


@item("A pod that requests no devices gets no binder device, no variable and no mount")
def without(node: Node) -> None:
    with node.running(container("main")) as pod:
        view = pod.view()
        assert not view.binder_devices, f"{view.binder_devices}"
        assert "BINDER_VISIBLE_DEVICES" not in view.environment, f"{view.environment}"
        assert "/vendor/shared" not in view.mounts, "it has the shared directory"


@item("A sidecar reuses the init container's device; the app container gets another one", SIDECARS.required)
def init_containers(node: Node) -> None:
    init = (container("init", 1, then=DONE), container("sidecar", 1, restartPolicy="Always"))
    with node.running(container("main", 1), init=init) as pod:
        first, sidecar, main = (pod.view(name).binder_devices for name in ("init", "sidecar", "main"))
        assert first == sidecar, f"init: {first}, sidecar: {sidecar}"
        assert len(main) == 1, f"main: {main}"
        assert not main & sidecar, f"main: {main}, sidecar: {sidecar}"


@item("A container that restarts keeps its devices, without another Allocate")
def container_restart(node: Node) -> None:
    phone, _ = node.phones
    before, calls = phone.view(), node.kubelet.metric(ALLOCATIONS, node.resource)
    phone.restart_container()
    after = phone.view()
    assert (after.binder_devices, after.environment) == (before.binder_devices, before.environment), f"{before} {after}"
    assert (after.mounts, after.bound) == (before.mounts, before.bound), f"{before} {after}"
    assert node.kubelet.metric(ALLOCATIONS, node.resource) == calls, "Allocate was called"
    # A later restart of the kubelet might kill it: see the README.
    node.retire(phone)


@item("The devices of a finished pod are allocated again")
def finished(node: Node) -> None:
    free = COUNT - sum(len(phone.held()) for phone in node.phones)
    done = node.place(container("main", free, then=DONE), restartPolicy="Never")
    try:
        done.wait_phase("Succeeded")
        # Before 1.32, List reports the pod that was admitted last until another one is checked, even a rejected one.
        node.status()
        until(lambda: not done.held(), "List no longer reports its devices")
        with node.running(container("main", free)) as pod:
            assert pod.view().binder_devices == done.view().binder_devices, (
                f"{pod.view().binder_devices}, before: {done.view().binder_devices}"
            )
    finally:
        node.remove(done)
