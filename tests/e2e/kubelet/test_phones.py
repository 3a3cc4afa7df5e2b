"""A phone is a set of three binder devices, which a container has at Android's paths."""

from tests.e2e.common.waiting import holds
from tests.e2e.kubelet.node import Node, create_devices, natural_sort, remove_devices
from tests.e2e.kubelet.phones import PATHS, PHONE, PHONES, SIZE, binder_devices_of
from tests.e2e.kubelet.plugins import unhealthy_by_reason
from tests.e2e.kubelet.pods import PREFIX


def test_three_paths(node: Node) -> None:
    """A pod that requests a phone has three binder devices, at Android's paths by number, and can open them."""
    phone, _ = node.phones
    view, members = phone.view(), binder_devices_of(phone.held())
    assert (len(members), view.binder_devices) == (SIZE, set(members))
    places = {path.removeprefix("/dev/") for path in PATHS}
    assert view.opened == {*members, *places}
    assert all(view.devices[name].startswith("crw-rw-rw-") for name in (*members, *places)), f"{view.devices}"
    assert [view.bound.get(path) for path in PATHS] == members == view.visible


def test_second_phone(node: Node) -> None:
    """A second pod has another phone, at the same paths."""
    first, second = (phone.view() for phone in node.phones)
    assert not first.binder_devices & second.binder_devices
    assert [second.bound.get(path) for path in PATHS] == natural_sort(second.binder_devices)


def test_two_phones(node: Node) -> None:
    """A container with two phones has the first one at Android's paths, and both under their own names."""
    with node.running_with(2) as pod:
        view, members = pod.view(), binder_devices_of(pod.held())
        assert (len(members), view.binder_devices, view.visible) == (2 * SIZE, set(members), members)
        assert [view.bound.get(path) for path in PATHS] == members[:SIZE]


def test_incomplete(node: Node) -> None:
    """A binder device of a running pod's phone is deleted and created again: only this phone is lost; no pod ends."""
    phone, _ = node.phones
    container, held = phone.container_id(), phone.held()
    remove_devices(int(min(held).removeprefix(PREFIX)) + 1)
    node.wait_allocatable(PHONES - held)
    assert node.status() == (len(PHONES), len(PHONES) - 1)
    assert unhealthy_by_reason(PHONE) == {"incomplete": 1}
    holds(lambda: phone.container_id() == container, "the pod runs on", seconds=2)
    create_devices()
    node.wait_allocatable(PHONES)
    assert phone.container_id() == container
