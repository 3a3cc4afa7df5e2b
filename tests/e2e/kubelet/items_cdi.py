"""Items: the phone reaches the container by CDI. The kubelet hands a name on, and the runtime finds it in a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_phones import CONFIGURATION, PATHS, PHONE, PHONES, nodes_of
from tests.e2e.kubelet.node import natural_sort
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node, Placed

SPEC: Final = Path("/var/run/cdi/aosp.io_phone.json")
BY_FIELD: Final = f"{CONFIGURATION}device_list: [envvar, cdi-cri]\n"
BY_ANNOTATION: Final = f"{CONFIGURATION}device_list: [envvar, cdi-annotations]\n"
NULL, FULL = os.makedev(1, 3), os.makedev(1, 7)

item = Items()
unknown = Items()


@item("/var/run/cdi has a file of mode 0644 that names every phone")
def file(node: Node) -> None:
    node.wait_allocatable(PHONES)
    mode = stat.S_IMODE(SPEC.stat().st_mode)
    assert mode == 0o644, f"{mode:o}"
    content = yaml.safe_load(SPEC.read_text())
    told = content["kind"], {one["name"] for one in content["devices"]}
    assert told == (PHONE, PHONES), f"{told}"


@item("The kubelet hands on the phone's name by the CRI's field, and no device or mount of the plugin's")
def by_field(node: Node) -> None:
    phone, _ = node.phones
    asked = node.runtime.requested(phone.container_id())
    assert [one["name"] for one in asked.get("CDI_devices", [])] == _qualified(phone), f"{asked}"
    assert not _annotations(asked), f"{asked['annotations']}"
    _nothing_else(asked)


@item("The kubelet hands on the phone's name by an annotation, and no device or mount of the plugin's")
def by_annotation(node: Node) -> None:
    phone, _ = node.phones
    asked = node.runtime.requested(phone.container_id())
    assert list(_annotations(asked).values()) == _qualified(phone), f"{asked}"
    assert not asked.get("CDI_devices"), f"{asked['CDI_devices']}"
    _nothing_else(asked)


@unknown("Counter-proof: a containerd without CDI starts the container without a node, and all call the phone Healthy")
def without_nodes(node: Node) -> None:
    phone, _ = node.phones
    view, held = phone.view(), phone.held()
    assert (view.nodes, view.opened) == (set(), set()), f"in /dev: {view.nodes}"
    assert view.visible == nodes_of(held), f"{view.visible}"
    assert node.health(phone) == dict.fromkeys(held, "Healthy"), f"{node.health(phone)}"


@item("The runtime puts the file's devices, with their rights, and its mounts into the OCI spec")
def spec(node: Node) -> None:
    phone, _ = node.phones
    made, nodes = node.runtime.spec(phone.container_id()), nodes_of(phone.held())
    devices = {one["path"]: (one["major"], one["minor"]) for one in made["linux"]["devices"]}
    assert devices == {f"/dev/{name}": (1, 3) for name in nodes}, f"{devices}"
    rules = made["linux"]["resources"]["devices"]
    allowed = [one["access"] for one in rules if (one["allow"], one.get("major"), one.get("minor")) == (True, 1, 3)]
    assert allowed.count("rw") == len(nodes), f"{rules}"
    mounts = {one["destination"]: one["source"] for one in made["mounts"]}
    there = [mounts.get(path) for path in PATHS]
    assert there == [f"/dev/{name}" for name in nodes], f"{PATHS} are {there}"


@item("Two phones in one container are refused, in the plugin's words: by CDI both would be at the same paths")
def two_phones(node: Node) -> None:
    taken: set[str] = set().union(*(phone.held() for phone in node.phones))
    free = ", ".join(natural_sort(PHONES - taken))
    why = f"devices {free} can't be in one container by CDI: more than one has a mount at {PATHS[0]}"
    text = f"rpc error: code = InvalidArgument desc = {why}"
    node.refuse(2, f"Allocate failed due to {text}, which is unexpected")


@item("A node that was made anew with another number has that number in the next container, at its path and its name")
def recreated(node: Node) -> None:
    with node.asking(1) as pod:
        before, (held,) = pod.view(), pod.held()
        assert before.number(held) == (1, 3), f"{before.devices}"
    try:
        _make(held, FULL)
        with node.asking(1) as pod:
            view = pod.view()
            assert pod.held() == {held}, f"{pod.held()}, before: {held}"
            numbers = {name: view.number(name) for name in (held, "binder")}
            assert numbers == {held: (1, 7), "binder": (1, 7)}, f"{numbers}"
            assert {held, "binder"} <= view.opened, f"opened: {view.opened}"
    finally:
        _make(held, NULL)


@item("While the plugin is away its names are, too: a container that restarts waits, and then has the same phone")
def away(node: Node) -> None:
    with node.asking(1) as pod:
        before, container, log = pod.view(), pod.container_id(), node.kubelet.daemon.log
        told = log.stat().st_size
        node.away()
        node.runtime.kill(container)
        until(lambda: b"unresolvable CDI devices" in log.read_bytes()[told:], "the runtime finds no such name")
        assert "running" not in pod.container()["state"], f"{pod.container()['state']}"
        node.plugin.start()
        node.wait_allocatable(PHONES)
        until(lambda: pod.container_id() != container, "the container runs again")
        after = pod.view()
        assert (after.nodes, after.bound) == (before.nodes, before.bound), f"{after}, before: {before}"


@item("SIGTERM ends the plugin, and the file is gone")
def ends(node: Node) -> None:
    node.clear()
    node.plugin.stop()
    left = os.listdir(SPEC.parent)
    assert not left, f"left: {left}"


def _qualified(phone: Placed) -> list[str]:
    return [f"{PHONE}={device}" for device in natural_sort(phone.held())]


def _annotations(asked: dict[str, Any]) -> dict[str, str]:
    """Return those that are CDI's."""
    return {key: value for key, value in asked.get("annotations", {}).items() if key.startswith("cdi.k8s.io/")}


def _nothing_else(asked: dict[str, Any]) -> None:
    """Check that what the kubelet asks for beside that is its own: nothing in /dev but the termination log."""
    assert not asked.get("devices"), f"devices: {asked['devices']}"
    mounts = {one["container_path"] for one in asked.get("mounts", [])}
    assert mounts <= {"/etc/hosts", "/dev/termination-log"}, f"mounts: {mounts}"


def _make(name: str, number: int) -> None:
    """Put a node with another number in a node's place, without a moment between, and wait until the plugin knows."""
    before = SPEC.stat().st_ino
    os.mknod("/dev/made-anew", stat.S_IFCHR, number)
    os.chmod("/dev/made-anew", 0o666)
    os.rename("/dev/made-anew", f"/dev/{name}")
    until(lambda: SPEC.stat().st_ino != before, "the plugin writes the file again")
