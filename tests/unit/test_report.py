"""The status report: device states, counts, allocations and leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aosp_plugin.daemon.leaks import Holder, Leaks
from aosp_plugin.daemon.report import NodeStatus, Report, ResourceReport, ResourceStatus, report
from aosp_plugin.framework.inventory import Device, Snapshot
from aosp_plugin.framework.podresources_client import Allocations, Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

RESOURCE = "aosp.io/binder"
PHONE = Owner("games", "phone-1", "android")
OTHER = Owner("games", "phone-2", "android")
HOLDER = Holder("n1", 4711, "adbd --root", 1700000000.5, 12.25, 2000, "c" * 64, "uid-1")


def leaks(*found: Holder, undecided: tuple[Holder, ...] = (), unreadable: int = 0, whole: bool = True) -> Leaks:
    return Leaks(found, undecided, unreadable, whole)


def made(
    devices: list[Device],
    *,
    owners: Mapping[str, tuple[Owner, ...]] | None = None,
    allocations: Allocations | None = None,
    found: Leaks | None = None,
    nodes: dict[str, tuple[str, ...]] | None = None,
    revision: int = 1,
    limit: int = 4096,
    unready: str = "",
    unhealthy: str = "",
) -> Report:
    """Return the report of one resource."""
    snapshot = Snapshot(revision, devices, limit)
    seen = ResourceStatus(RESOURCE, snapshot, unready, unhealthy, found if found is not None else leaks())
    told = allocations or Allocations("", {RESOURCE: owners or {}})
    named = nodes if nodes is not None else {device.id: (device.id,) for device in devices}
    status = NodeStatus("inotify", told, (seen,), leak_detection=True)
    return report(status, [named], version="1.2.3", node="here", started=1700000000.0)


def of_resource(devices: list[Device], **more: Any) -> ResourceReport:
    return made(devices, **more).resources[0]


def states(one: ResourceReport) -> dict[str, str]:
    return {device.id: str(device.state) for device in one.devices}


def test_a_device_is_in_the_first_state_that_holds() -> None:
    """Leaked before unhealthy before allocated before free."""
    every = {f"n{number}": (PHONE,) for number in (1, 2, 3)}
    devices = [Device("n1", "missing"), Device("n2", "missing"), Device("n3"), Device("n4")]
    one = of_resource(devices, owners=every, found=leaks(HOLDER))
    assert states(one) == {"n1": "leaked", "n2": "unhealthy", "n3": "allocated", "n4": "free"}
    assert (one.counts.total, one.counts.leaked, one.counts.unhealthy) == (4, 1, 1)
    assert (one.counts.allocated, one.counts.free, one.counts.unknown) == (1, 1, 0)


def test_who_has_a_device_is_told_whatever_its_state() -> None:
    """A leak and a missing node are of some pod's concern."""
    devices = [Device("n1", "missing"), Device("n2", "missing")]
    one = of_resource(devices, owners={"n1": (PHONE,), "n2": (PHONE, OTHER)}, found=leaks(HOLDER))
    assert [[(pod.namespace, pod.name, pod.container) for pod in device.pods] for device in one.devices] == [
        [("games", "phone-1", "android")],
        [("games", "phone-1", "android"), ("games", "phone-2", "android")],
    ]


def test_a_device_with_several_nodes_leaks_with_any_of_them() -> None:
    """And all replicas of it do; the others don't."""
    nodes = {"a::0": ("n0", "n1"), "a::1": ("n0", "n1"), "b": ("n2",)}
    one = of_resource([Device(device_id) for device_id in nodes], nodes=nodes, found=leaks(HOLDER))
    assert states(one) == {"a::0": "leaked", "a::1": "leaked", "b": "free"}
    assert one.devices[0].nodes == ("n0", "n1")


def test_the_holder_of_a_node_is_told() -> None:
    """With all that is known of the process."""
    (leak,) = of_resource([Device("n1")], found=leaks(HOLDER)).leaks
    assert msgspec.to_builtins(leak) == {
        "node": "n1",
        "pid": 4711,
        "command": "adbd --root",
        "container": "c" * 64,
        "pod_uid": "uid-1",
        "user": 2000,
        "started": 1700000000.5,
    }


def test_without_the_kubelet_s_word_nothing_is_called_free() -> None:
    """A healthy device is in a state of its own, and why is told."""
    told = made([Device("n1"), Device("n2", "missing")], allocations=Allocations("no socket"))
    assert (told.allocations.known, told.allocations.problem) == (False, "no socket")
    assert states(told.resources[0]) == {"n1": "unknown", "n2": "unhealthy"}
    assert (told.resources[0].counts.unknown, told.resources[0].counts.free) == (1, 0)


def test_with_it_nothing_is_unknown() -> None:
    """Also where no pod has anything."""
    told = made([Device("n1")], allocations=Allocations("", {}))
    assert (told.allocations.known, told.allocations.problem) == (True, "")
    assert states(told.resources[0]) == {"n1": "free"}


def test_a_device_that_a_pod_has_and_the_plugin_no_longer_is_told() -> None:
    """In natural order, behind all others."""
    owners = {"n10": (PHONE,), "n9": (OTHER,), "n1": (PHONE,)}
    one = of_resource([Device("n1")], owners=owners)
    assert [(device.id, str(device.state), device.reason) for device in one.devices] == [
        ("n1", "allocated", ""),
        ("n9", "unhealthy", "gone"),
        ("n10", "unhealthy", "gone"),
    ]
    assert one.devices[1].pods[0].name == "phone-2"
    assert one.counts.total == 3


def test_before_the_first_look_no_device_is_called_gone() -> None:
    """Nothing is known of any yet."""
    assert of_resource([], owners={"n1": (PHONE,)}, revision=0).devices == ()


def test_devices_that_the_kubelet_is_not_told_of_are_not_free() -> None:
    """Those that don't fit into the message have a reason; one that is ill keeps its own."""
    devices = [Device("n0"), Device("n1"), Device("n2", "missing")]
    room = len(Snapshot(1, devices[:1]).message) + 2
    one = of_resource(devices, limit=room)
    assert one.truncated == 2
    assert [(str(device.state), device.reason) for device in one.devices] == [
        ("free", ""),
        ("unhealthy", "truncated"),
        ("unhealthy", "missing"),
    ]


def test_problems_of_a_resource_are_told_together() -> None:
    """Registered is what the kubelet knows; the other problem is whether the devices are right."""
    assert (of_resource([]).registered, of_resource([]).problem) == (True, "")
    one = of_resource([], unready="no kubelet", unhealthy="can't look")
    assert (one.registered, one.problem) == (False, "no kubelet; can't look")
    one = of_resource([], unhealthy="can't look")
    assert (one.registered, one.problem) == (True, "can't look")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (leaks(), ""),
        (leaks(unreadable=1), "leak detection is incomplete: missing hostPID, SYS_PTRACE or DAC_READ_SEARCH"),
        (leaks(whole=False), "leak detection is incomplete: missing hostPID, SYS_PTRACE or DAC_READ_SEARCH"),
        (leaks(undecided=(HOLDER,)), "leak detection is incomplete: the pods of 1 process are unknown"),
    ],
)
def test_incomplete_leak_detection_is_reported(found: Leaks, problem: str) -> None:
    resource = of_resource([], found=found)
    assert (resource.leaks_known, resource.leaks_problem) == (True, problem)


@pytest.mark.parametrize(
    ("leak_detection", "problem"),
    [(True, "no leak scan has completed yet"), (False, "leak detection is off (leak_scan_interval: 0)")],
)
def test_leaks_are_unknown_without_a_leak_scan(leak_detection: bool, problem: str) -> None:  # noqa: FBT001
    status = ResourceStatus(RESOURCE, Snapshot(1, []), "", "", None)
    node = NodeStatus("polling", Allocations(), (status,), leak_detection=leak_detection)
    made = report(node, [{}], version="", node="", started=0.0)
    assert (made.resources[0].leaks_known, made.resources[0].leaks_problem) == (False, problem)
    assert made.watching == "polling"


def test_as_json_the_fields_are_what_they_are_called() -> None:
    """Others read it: none of these names may change."""
    devices = [Device("n1", "not-binder", (0, 1), "not-binder: n1 is a disk")]
    told = msgspec.json.decode(msgspec.json.encode(made(devices, owners={"n1": (PHONE,)}, revision=7)))
    resources = told.pop("resources")
    assert told == {
        "version": "1.2.3",
        "node": "here",
        "started": 1700000000.0,
        "watching": "inotify",
        "allocations": {"known": True, "problem": ""},
    }
    assert resources == [
        {
            "name": RESOURCE,
            "registered": True,
            "problem": "",
            "revision": 7,
            "truncated": 0,
            "counts": {"total": 1, "free": 0, "allocated": 0, "unhealthy": 1, "leaked": 0, "unknown": 0},
            "devices": [
                {
                    "id": "n1",
                    "state": "unhealthy",
                    "reason": "not-binder",
                    "detail": "not-binder: n1 is a disk",
                    "numa": [0, 1],
                    "nodes": ["n1"],
                    "pods": [{"namespace": "games", "name": "phone-1", "container": "android"}],
                }
            ],
            "leaks": [],
            "leaks_known": True,
            "leaks_problem": "",
        }
    ]


def test_every_resource_has_its_own_owners_leaks_and_nodes() -> None:
    """Two may have devices of the same name."""
    one = ResourceStatus("x.io/a", Snapshot(1, [Device("d")]), "", "", leaks(HOLDER))
    other = ResourceStatus("x.io/b", Snapshot(1, [Device("d")]), "", "", leaks())
    told = report(
        NodeStatus("inotify", Allocations("", {"x.io/b": {"d": (PHONE,)}}), (one, other), leak_detection=True),
        [{"d": ("n1",)}, {"d": ("n1",)}],
        version="",
        node="",
        started=0.0,
    )
    assert [states(resource) for resource in told.resources] == [{"d": "leaked"}, {"d": "allocated"}]
