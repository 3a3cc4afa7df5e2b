"""Items: a phone is a set of three binder devices, which a container has at Android's paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.node import COUNT, create_devices, names, natural_sort, remove_devices
from tests.e2e.kubelet.plugins import SHARING, unhealthy_by_reason
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import holds

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tests.e2e.kubelet.node import Node, Placed

item = Items()

PHONE: Final = "aosp.io/phone"
SIZE: Final = 3
PHONES: Final = names(*range(0, COUNT, SIZE))
PATHS: Final = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
SETS: Final = f"sets: {{size: {SIZE}}}\ncontainer_paths: [{', '.join(PATHS)}]\n"
CONFIGURATION: Final = f"version: v1\nresource_name: {PHONE}\n{SETS}{SHARING}"


def binder_devices_of(phones: AbstractSet[str]) -> list[str]:
    """Return the names of the phones' binder devices, by number."""
    firsts = [int(phone.removeprefix(PREFIX)) for phone in phones]
    return natural_sort(names(*(number for first in firsts for number in range(first, first + SIZE))))


@item("A pod that requests a phone has three binder devices, at Android's paths by number, and can open them")
def three_paths(node: Node) -> None:
    phone, _ = node.phones
    view, members = phone.view(), binder_devices_of(phone.held())
    assert (len(members), view.binder_devices) == (SIZE, set(members)), (
        f"in /dev: {view.binder_devices}, allocated: {members}"
    )
    places = {path.removeprefix("/dev/") for path in PATHS}
    assert view.opened == {*members, *places}, f"opened: {view.opened}"
    assert all(view.devices[name].startswith("crw-rw-rw-") for name in (*members, *places)), f"{view.devices}"
    bound = [view.bound.get(path) for path in PATHS]
    assert bound == members == view.visible, f"{PATHS} are {bound}, allocated: {members}, listed: {view.visible}"


@item("A second pod has another phone, at the same paths")
def second_phone(node: Node) -> None:
    first, second = (phone.view() for phone in node.phones)
    assert not first.binder_devices & second.binder_devices, f"both have {first.binder_devices & second.binder_devices}"
    bound = [second.bound.get(path) for path in PATHS]
    assert bound == natural_sort(second.binder_devices), f"{PATHS} are {bound}"


@item("A container with two phones has the first one at Android's paths, and both under their own names")
def two_phones(node: Node) -> None:
    with node.running_with(2) as pod:
        view, members = pod.view(), binder_devices_of(pod.held())
        assert (len(members), view.binder_devices, view.visible) == (2 * SIZE, set(members), members), (
            f"{view.binder_devices} {view.visible}"
        )
        bound = [view.bound.get(path) for path in PATHS]
        assert bound == members[:SIZE], f"{PATHS} are {bound}, allocated: {members}"


@item("A binder device of a running pod's phone is deleted and created again: only this phone is lost; no pod ends")
def incomplete(node: Node) -> None:
    phone, _ = node.phones
    container, held = phone.container_id(), phone.held()
    remove_devices(_second_of(phone))
    node.wait_allocatable(PHONES - held)
    assert node.status() == (len(PHONES), len(PHONES) - 1), f"capacity and allocatable: {node.status()}"
    assert unhealthy_by_reason(PHONE) == {"incomplete": 1}, f"reported reasons: {unhealthy_by_reason(PHONE)}"
    holds(lambda: phone.container_id() == container, "the pod runs on", seconds=2)
    create_devices()
    node.wait_allocatable(PHONES)
    assert phone.container_id() == container, "the container is the same"


def _second_of(phone: Placed) -> int:
    """Return the number of the second binder device of a pod's phone."""
    return int(min(phone.held()).removeprefix(PREFIX)) + 1
