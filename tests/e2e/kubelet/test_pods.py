"""The plugin registers, and pods get binder devices."""

import pytest

from tests.e2e.common.waiting import until
from tests.e2e.kubelet.node import COUNT, Node, natural_sort
from tests.e2e.kubelet.plugins import sockets
from tests.e2e.kubelet.pods import DONE, container
from tests.e2e.kubelet.standalone import checkpoint
from tests.e2e.kubelet.versions import GET, HEALTH, SIDECARS

ALLOCATIONS = "kubelet_device_plugin_alloc_duration_seconds_count"


def test_registers(node: Node) -> None:
    """The plugin registers once, and the kubelet can allocate all devices within 30 s."""
    before = node.kubelet.registrations(node.resource)
    node.plugin.start()
    node.wait_allocatable(node.devices)
    assert node.kubelet.registrations(node.resource) == before + 1
    assert len(sockets()) == 1
    registered = until(lambda: set(checkpoint()["RegisteredDevices"][node.resource]), "the checkpoint has the resource")
    assert registered == node.devices
    assert node.status() == (len(node.devices), len(node.devices))


def test_own_devices(node: Node) -> None:
    """A pod that requests 3 devices has exactly these 3 binder devices in /dev, and can open them."""
    phone, _ = node.phones
    view, held = phone.view(), phone.held()
    assert len(held) == 3
    assert view.binder_devices == held
    assert view.opened == held
    assert all(view.devices[name].startswith("crw-rw-rw-") for name in held), f"{view.devices}"


def test_environment(node: Node) -> None:
    """Its environment lists them in natural order; it has the shared directory read-only, and no other mount."""
    phone, _ = node.phones
    view = phone.view()
    assert view.visible == natural_sort(phone.held())
    assert view.environment["PATH"] == "/system/bin:/system/xbin"
    assert view.mounts["/vendor/shared"].split(",")[0] == "ro"
    plain = {"/dev/pts", "/dev/mqueue", "/dev/shm", "/dev/termination-log"}
    assert {path for path in view.mounts if path.startswith("/dev/")} <= plain


def test_oci_runtime(node: Node) -> None:
    """The OCI runtime that the run names has started the container: it knows the container's state."""
    phone, _ = node.phones
    assert node.runtime.oci_state(phone.container_id())["status"] == "running"


@pytest.mark.requires(GET.required)
def test_get(node: Node) -> None:
    """Get returns the same devices of a pod as List."""
    for phone in node.phones:
        assert node.kubelet.held_by(phone.name, node.resource) == {"main": phone.held()}


@pytest.mark.requires(HEALTH.required)
def test_status(node: Node) -> None:
    """The pod's status reports each container's devices as Healthy."""
    expected = [dict.fromkeys(phone.held(), "Healthy") for phone in node.phones]
    until(lambda: [node.health(phone) for phone in node.phones] == expected, f"the status reports {expected}")


def test_second_pod(node: Node) -> None:
    """A second pod gets 3 other devices while the first one runs."""
    first, second = node.phones
    assert len(second.view().binder_devices) == 3
    assert not first.view().binder_devices & second.view().binder_devices


def test_two_containers(node: Node) -> None:
    """Two containers of one pod get different devices, and each environment lists its container's devices."""
    with node.running(container("main", 2), container("side", 1)) as pod:
        main, side = pod.view("main"), pod.view("side")
        assert (len(main.binder_devices), len(side.binder_devices)) == (2, 1)
        assert not main.binder_devices & side.binder_devices
        assert set(side.visible) == side.binder_devices


def test_without(node: Node) -> None:
    """A pod that requests no devices gets no binder device, no variable and no mount."""
    with node.running(container("main")) as pod:
        view = pod.view()
        assert not view.binder_devices
        assert "BINDER_VISIBLE_DEVICES" not in view.environment
        assert "/vendor/shared" not in view.mounts


@pytest.mark.requires(SIDECARS.required)
def test_init_containers(node: Node) -> None:
    """A sidecar reuses the init container's device; the app container gets another one."""
    init = (container("init", 1, then=DONE), container("sidecar", 1, restartPolicy="Always"))
    with node.running(container("main", 1), init=init) as pod:
        first, sidecar, main = (pod.view(name).binder_devices for name in ("init", "sidecar", "main"))
        assert first == sidecar
        assert len(main) == 1
        assert not main & sidecar


def test_container_restart(node: Node) -> None:
    """A container that restarts keeps its devices, without another Allocate."""
    phone, _ = node.phones
    before, calls = phone.view(), node.kubelet.metric(ALLOCATIONS, node.resource)
    phone.restart_container()
    after = phone.view()
    assert (after.binder_devices, after.environment) == (before.binder_devices, before.environment)
    assert (after.mounts, after.bound) == (before.mounts, before.bound)
    assert node.kubelet.metric(ALLOCATIONS, node.resource) == calls
    # A later restart of the kubelet might kill it: see the README.
    node.retire(phone)


def test_finished(node: Node) -> None:
    """The devices of a finished pod are allocated again."""
    free = COUNT - sum(len(phone.held()) for phone in node.phones)
    done = node.place(container("main", free, then=DONE), restartPolicy="Never")
    try:
        done.wait_phase("Succeeded")
        # Before 1.32, List reports the pod that was admitted last until another one is checked, even a rejected one.
        node.status()
        until(lambda: not done.held(), "List no longer reports its devices")
        with node.running(container("main", free)) as pod:
            assert pod.view().binder_devices == done.view().binder_devices
    finally:
        node.remove(done)
