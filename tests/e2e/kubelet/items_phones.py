"""Items: a phone is a set of three nodes, which a container has at Android's paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.node import COUNT, create_devices, names, natural_sort, remove_devices
from tests.e2e.kubelet.plugins import SHARING, ill
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tests.e2e.kubelet.node import Node

item = Items()

PHONE: Final = "aosp.io/phone"
SIZE: Final = 3
PHONES: Final = names(*range(0, COUNT, SIZE))
PATHS: Final = ("/dev/binder", "/dev/hwbinder", "/dev/vndbinder")
SETS: Final = f"sets: {{size: {SIZE}}}\ncontainer_paths: [{', '.join(PATHS)}]\n"
CONFIGURATION: Final = f"version: v1\nresource_name: {PHONE}\n{SETS}{SHARING}"


def nodes_of(phones: AbstractSet[str]) -> list[str]:
    """Return the names of phones' nodes, in the order of numbers."""
    firsts = [int(phone.removeprefix(PREFIX)) for phone in phones]
    return natural_sort(names(*(number for first in firsts for number in range(first, first + SIZE))))


@item("A pod that asks for one phone has three nodes, at Android's paths by number; all are devices that open")
def three_paths(node: Node) -> None:
    phone, _ = node.phones
    view, nodes = phone.view(), nodes_of(phone.held())
    assert (len(nodes), view.nodes) == (SIZE, set(nodes)), f"in /dev: {view.nodes}, given: {nodes}"
    places = {path.removeprefix("/dev/") for path in PATHS}
    assert view.opened == {*nodes, *places}, f"opened: {view.opened}"
    assert all(view.devices[name].startswith("crw-rw-rw-") for name in (*nodes, *places)), f"{view.devices}"
    there = [view.bound.get(path) for path in PATHS]
    assert there == nodes, f"{PATHS} are {there}, given: {nodes}"


@item("Its environment names the three in that order, and it has the shared directory read-only")
def environment(node: Node) -> None:
    phone, _ = node.phones
    view = phone.view()
    assert view.visible == nodes_of(phone.held()), f"{view.visible}"
    assert view.environment["PATH"] == "/system/bin:/system/xbin", view.environment["PATH"]
    assert view.mounts["/vendor/shared"].split(",")[0] == "ro", view.mounts["/vendor/shared"]


@item("A second pod has another phone, at the same paths")
def second_phone(node: Node) -> None:
    first, second = (phone.view() for phone in node.phones)
    assert not first.nodes & second.nodes, f"both have {first.nodes & second.nodes}"
    there = [second.bound.get(path) for path in PATHS]
    assert there == natural_sort(second.nodes), f"{PATHS} are {there}"


@item("A container with two phones has the first one at the paths, and the second one's nodes by their names")
def two_phones(node: Node) -> None:
    with node.asking(2) as pod:
        view, nodes = pod.view(), nodes_of(pod.held())
        assert (len(nodes), view.nodes, view.visible) == (2 * SIZE, set(nodes), nodes), f"{view.nodes} {view.visible}"
        there = [view.bound.get(path) for path in PATHS]
        assert there == nodes[:SIZE], f"{PATHS} are {there}, given: {nodes}"


@item(
    "A node of a running pod's phone vanishes: that phone alone is Unhealthy, and Healthy once it is back; no pod ends"
)
def incomplete(node: Node) -> None:
    phone, other = node.phones
    container, held = phone.container_id(), phone.held()
    number = int(min(held).removeprefix(PREFIX)) + 1
    remove_devices(number)
    node.wait_allocatable(PHONES - held)
    assert node.status() == (len(PHONES), len(PHONES) - 1), f"capacity and allocatable: {node.status()}"
    assert ill(PHONE) == {"incomplete": 1}, f"the plugin says {ill(PHONE)}"
    until(lambda: node.health(phone) == dict.fromkeys(held, "Unhealthy"), "the pod's status calls the phone Unhealthy")
    assert node.health(other) == dict.fromkeys(other.held(), "Healthy"), f"the other pod's: {node.health(other)}"
    holds(lambda: phone.container_id() == container, "the pod goes on", seconds=2)
    create_devices()
    node.wait_allocatable(PHONES)
    until(lambda: node.health(phone) == dict.fromkeys(held, "Healthy"), "the pod's status calls it Healthy")
    assert phone.container_id() == container, "the container is the same"


@item("While the plugin is away, a container that restarts has the same phone: the kubelet has the answer still")
def away(node: Node) -> None:
    with node.asking(1) as pod:
        before = pod.view()
        node.away()
        pod.restart_container()
        after = pod.view()
        assert (after.nodes, after.bound) == (before.nodes, before.bound), f"{after}, before: {before}"
        node.plugin.start()
        node.wait_allocatable(PHONES)


@item("A pod that asks for five of four phones is refused, in the kubelet's words")
def too_many(node: Node) -> None:
    count, free = len(PHONES) + 1, len(PHONES) - sum(len(phone.held()) for phone in node.phones)
    text = f"requested number of devices unavailable for {PHONE}. Requested: {count}, Available: {free}"
    node.refuse(count, f"Allocate failed due to {text}, which is unexpected")
