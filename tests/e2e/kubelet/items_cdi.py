"""Items: phones by CDI. The kubelet passes a device name to the runtime, which finds it in a CDI spec file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.kubelet import versions
from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.items_phones import CONFIGURATION, PATHS, PHONE, PHONES, binder_devices_of
from tests.e2e.kubelet.node import natural_sort
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node, Placed

SPEC: Final = Path("/var/run/cdi/aosp.io_phone.json")
BY_FIELD: Final = f"{CONFIGURATION}device_list: [envvar, cdi-cri]\n"
BY_ANNOTATION: Final = f"{CONFIGURATION}device_list: [envvar, cdi-annotations]\n"
NULL, FULL = os.makedev(1, 3), os.makedev(1, 7)

item = Items()
unknown = Items()


@item("/var/run/cdi has a spec file of mode 0644 that lists all phones")
def file(node: Node) -> None:
    node.wait_allocatable(PHONES)
    mode = stat.S_IMODE(SPEC.stat().st_mode)
    assert mode == 0o644, f"{mode:o}"
    content = yaml.safe_load(SPEC.read_text())
    listed = content["kind"], {device["name"] for device in content["devices"]}
    assert listed == (PHONE, PHONES), f"{listed}"


@item("The kubelet passes the phone's name in the CRI's field, without devices or mounts from the plugin")
def by_field(node: Node) -> None:
    phone, _ = node.phones
    requested = _requested(node, phone)
    assert [device["name"] for device in requested.get("CDI_devices", [])] == _qualified(phone), f"{requested}"
    annotated = [] if node.kubelet.minor >= versions.CDI_BY_FIELD_ALONE else _qualified(phone)
    assert list(_annotations(requested).values()) == annotated, f"{requested['annotations']}"
    _nothing_else(requested)


@item("The kubelet passes the phone's name in an annotation, without devices or mounts from the plugin")
def by_annotation(node: Node) -> None:
    phone, _ = node.phones
    requested = _requested(node, phone)
    assert list(_annotations(requested).values()) == _qualified(phone), f"{requested}"
    assert not requested.get("CDI_devices"), f"{requested['CDI_devices']}"
    _nothing_else(requested)


@unknown("Counter-example: kubelet or containerd without CDI, and the container starts without binder devices")
def without_devices(node: Node) -> None:
    phone, _ = node.phones
    view, held = phone.view(), phone.held()
    assert (view.binder_devices, view.opened) == (set(), set()), f"in /dev: {view.binder_devices}"
    assert view.visible == binder_devices_of(held), f"{view.visible}"


@item("The runtime adds the spec file's devices, with their permissions, and its mounts to the OCI runtime spec")
def spec(node: Node) -> None:
    phone, _ = node.phones
    runtime_spec, members = node.runtime.spec(phone.container_id()), binder_devices_of(phone.held())
    devices = {device["path"]: (device["major"], device["minor"]) for device in runtime_spec["linux"]["devices"]}
    assert devices == {f"/dev/{name}": (1, 3) for name in members}, f"{devices}"
    rules = runtime_spec["linux"]["resources"]["devices"]
    allowed = [
        rule["access"] for rule in rules if (rule["allow"], rule.get("major"), rule.get("minor")) == (True, 1, 3)
    ]
    assert allowed.count("rw") == len(members), f"{rules}"
    mounts = {mount["destination"]: mount["source"] for mount in runtime_spec["mounts"]}
    sources = [mounts.get(path) for path in PATHS]
    assert sources == [f"/dev/{name}" for name in members], f"{PATHS} are {sources}"


@item("A binder device recreated with another number has that number in the next container, at both of its paths")
def recreated(node: Node) -> None:
    with node.running_with(1) as pod:
        before, (held,) = pod.view(), pod.held()
        assert before.number(held) == (1, 3), f"{before.devices}"
    try:
        _recreate(held, FULL)
        with node.running_with(1) as pod:
            view = pod.view()
            assert pod.held() == {held}, f"{pod.held()}, before: {held}"
            numbers = {name: view.number(name) for name in (held, "binder")}
            assert numbers == {held: (1, 7), "binder": (1, 7)}, f"{numbers}"
            assert {held, "binder"} <= view.opened, f"opened: {view.opened}"
    finally:
        _recreate(held, NULL)


@item("A container that is killed while the plugin is stopped starts again, with the same phone")
def away(node: Node) -> None:
    with node.running_with(1) as pod:
        before, container, written = pod.view(), pod.container_id(), SPEC.read_bytes()
        node.stop_plugin()
        node.runtime.kill(container)
        until(lambda: pod.container_id() != container, "the container runs again")
        after = pod.view()
        assert (after.binder_devices, after.bound) == (before.binder_devices, before.bound), (
            f"{after}, before: {before}"
        )
        assert SPEC.read_bytes() == written, "the spec file has changed"
        node.plugin.start()
        node.wait_allocatable(PHONES)


@item("SIGTERM ends the plugin, which leaves the spec file")
def ends(node: Node) -> None:
    node.clear()
    written = SPEC.read_bytes()
    node.plugin.stop()
    assert SPEC.read_bytes() == written, "the spec file has changed"


def _requested(node: Node, phone: Placed) -> dict[str, Any]:
    assert isinstance(node.runtime, Runtime), "only containerd keeps the kubelet's request"
    return node.runtime.requested(phone.container_id())


def _qualified(phone: Placed) -> list[str]:
    return [f"{PHONE}={device}" for device in natural_sort(phone.held())]


def _annotations(requested: dict[str, Any]) -> dict[str, str]:
    """Return the annotations of CDI."""
    return {key: value for key, value in requested.get("annotations", {}).items() if key.startswith("cdi.k8s.io/")}


def _nothing_else(requested: dict[str, Any]) -> None:
    """Check that the request has the kubelet's own mounts and no others."""
    assert not requested.get("devices"), f"devices: {requested['devices']}"
    mounts = {mount["container_path"] for mount in requested.get("mounts", [])}
    assert mounts <= {"/etc/hosts", "/dev/termination-log"}, f"mounts: {mounts}"


def _recreate(name: str, number: int) -> None:
    """Atomically replace a device by one with another number, and wait until the plugin has updated the spec file."""
    before = SPEC.stat().st_ino
    os.mknod("/dev/recreated", stat.S_IFCHR, number)
    os.chmod("/dev/recreated", 0o666)
    os.rename("/dev/recreated", f"/dev/{name}")
    until(lambda: SPEC.stat().st_ino != before, "the plugin updates the spec file")
