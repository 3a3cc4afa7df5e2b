"""Phones by CDI. The kubelet passes a device name to the runtime, which finds it in a CDI spec file."""

import os
import stat
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.common.waiting import until
from tests.e2e.kubelet import versions
from tests.e2e.kubelet.node import Node, Placed, natural_sort
from tests.e2e.kubelet.phones import CONFIGURATION, PATHS, PHONE, PHONES, binder_devices_of
from tests.e2e.kubelet.runtime import Runtime

SPEC: Final = Path("/var/run/cdi/aosp.io_phone.json")
BY_FIELD: Final = f"{CONFIGURATION}device_list: [envvar, cdi-cri]\n"
BY_ANNOTATION: Final = f"{CONFIGURATION}device_list: [envvar, cdi-annotations]\n"
NULL, FULL = os.makedev(1, 3), os.makedev(1, 7)


def test_file(node: Node) -> None:
    """/var/run/cdi has a spec file of mode 0644 that lists all phones."""
    node.wait_allocatable(PHONES)
    assert stat.S_IMODE(SPEC.stat().st_mode) == 0o644
    content = yaml.safe_load(SPEC.read_text())
    assert (content["kind"], {device["name"] for device in content["devices"]}) == (PHONE, PHONES)


def test_by_field(node: Node) -> None:
    """The kubelet passes the phone's name in the CRI's field, without devices or mounts from the plugin."""
    phone, _ = node.phones
    requested = _requested(node, phone)
    assert [device["name"] for device in requested.get("CDI_devices", [])] == _qualified(phone)
    annotated = [] if node.kubelet.minor >= versions.CDI_BY_FIELD_ALONE else _qualified(phone)
    assert list(_annotations(requested).values()) == annotated
    _nothing_else(requested)


def test_by_annotation(node: Node) -> None:
    """The kubelet passes the phone's name in an annotation, without devices or mounts from the plugin."""
    phone, _ = node.phones
    requested = _requested(node, phone)
    assert list(_annotations(requested).values()) == _qualified(phone)
    assert not requested.get("CDI_devices")
    _nothing_else(requested)


def test_without_devices(node: Node) -> None:
    """Counter-example: kubelet or containerd without CDI, and the container starts without binder devices."""
    phone, _ = node.phones
    view = phone.view()
    assert (view.binder_devices, view.opened) == (set(), set())
    assert view.visible == binder_devices_of(phone.held())


def test_spec(node: Node) -> None:
    """The runtime adds the spec file's devices, with their permissions, and its mounts to the OCI runtime spec."""
    phone, _ = node.phones
    runtime_spec, members = node.runtime.spec(phone.container_id()), binder_devices_of(phone.held())
    devices = {device["path"]: (device["major"], device["minor"]) for device in runtime_spec["linux"]["devices"]}
    assert devices == {f"/dev/{name}": (1, 3) for name in members}
    rules = runtime_spec["linux"]["resources"]["devices"]
    allowed = [(rule["allow"], rule.get("major"), rule.get("minor"), rule["access"]) for rule in rules]
    assert allowed.count((True, 1, 3, "rw")) == len(members)
    mounts = {mount["destination"]: mount["source"] for mount in runtime_spec["mounts"]}
    assert [mounts.get(path) for path in PATHS] == [f"/dev/{name}" for name in members]


def test_recreated(node: Node) -> None:
    """A binder device recreated with another number has that number in the next container, at both of its paths."""
    with node.running_with(1) as pod:
        (held,) = pod.held()
        assert pod.view().number(held) == (1, 3)
    try:
        _recreate(held, FULL)
        with node.running_with(1) as pod:
            view = pod.view()
            assert pod.held() == {held}
            assert (view.number(held), view.number("binder")) == ((1, 7), (1, 7))
            assert {held, "binder"} <= view.opened
    finally:
        _recreate(held, NULL)


def test_away(node: Node) -> None:
    """A container that is killed while the plugin is stopped starts again, with the same phone."""
    with node.running_with(1) as pod:
        before, container, written = pod.view(), pod.container_id(), SPEC.read_bytes()
        node.stop_plugin()
        node.runtime.kill(container)
        until(lambda: pod.container_id() != container, "the container runs again")
        after = pod.view()
        assert (after.binder_devices, after.bound) == (before.binder_devices, before.bound)
        assert SPEC.read_bytes() == written
        node.plugin.start()
        node.wait_allocatable(PHONES)


def test_ends(node: Node) -> None:
    """SIGTERM ends the plugin, which leaves the spec file."""
    node.clear()
    written = SPEC.read_bytes()
    node.plugin.stop()
    assert SPEC.read_bytes() == written


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
    assert not requested.get("devices")
    mounts = {mount["container_path"] for mount in requested.get("mounts", [])}
    assert mounts <= {"/etc/hosts", "/dev/termination-log"}


def _recreate(name: str, number: int) -> None:
    """Atomically replace a device by one with another number, and wait until the plugin has updated the spec file."""
    before = SPEC.stat().st_ino
    os.mknod("/dev/recreated", stat.S_IFCHR, number)
    os.chmod("/dev/recreated", 0o666)
    os.rename("/dev/recreated", f"/dev/{name}")
    until(lambda: SPEC.stat().st_ino != before, "the plugin updates the spec file")
