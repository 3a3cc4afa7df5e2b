"""The status report: device states, counts, allocations and leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aosp_plugin.daemon.leaks import Holder, Leaks
from aosp_plugin.daemon.report import Counts, Report, ResourceReport, ResourceStatus, resource_report
from aosp_plugin.framework.inventory import Device, Snapshot
from aosp_plugin.framework.podresources_client import Allocations, Owner

if TYPE_CHECKING:
    from collections.abc import Mapping

RESOURCE = "aosp.io/binder"
PHONE = Owner("games", "phone-1", "android")
OTHER = Owner("games", "phone-2", "android")
HOLDER = Holder("n1", 4711, "adbd --root", 1700000000.5, 12.25, 2000, "c" * 64, "uid-1")


def leaks(*leaked: Holder, undecided: tuple[Holder, ...] = (), unreadable: int = 0, all_visible: bool = True) -> Leaks:
    return Leaks(leaked, undecided, unreadable, all_visible)


def reported(
    devices: list[Device],
    *,
    owners: Mapping[str, tuple[Owner, ...]] | None = None,
    allocations: Allocations | None = None,
    binder_devices: dict[str, tuple[str, ...]] | None = None,
    revision: int = 1,
    limit: int = 4096,
    **status: Any,
) -> ResourceReport:
    """Return the report of a resource whose devices are binder devices of the same name."""
    names = binder_devices if binder_devices is not None else {device.id: (device.id,) for device in devices}
    fields: dict[str, Any] = {"name": RESOURCE, "unready": "", "unhealthy": "", "leaks": leaks()} | status
    return resource_report(
        ResourceStatus(snapshot=Snapshot(revision, devices, limit), binder_devices=lambda: names, **fields),
        allocations or Allocations("", {RESOURCE: owners or {}}),
    )


def states(resource: ResourceReport) -> dict[str, str]:
    return {device.id: str(device.state) for device in resource.devices}


def test_device_reports_the_first_state_that_applies() -> None:
    """Leaks come before health, health before allocation. Pods are reported in every state."""
    owners = {"n1": (PHONE,), "n2": (PHONE, OTHER), "n3": (PHONE,)}
    devices = [Device("n1", "missing"), Device("n2", "missing"), Device("n3"), Device("n4")]
    resource = reported(devices, owners=owners, leaks=leaks(HOLDER))
    assert states(resource) == {"n1": "leaked", "n2": "unhealthy", "n3": "allocated", "n4": "free"}
    assert resource.counts == Counts(total=4, free=1, allocated=1, unhealthy=1, leaked=1, unknown=0)
    pods = [[pod.name for pod in device.pods] for device in resource.devices]
    assert pods == [["phone-1"], ["phone-1", "phone-2"], ["phone-1"], []]


def test_device_set_is_leaked_if_one_of_its_binder_devices_is() -> None:
    """All replicas of the device set are leaked then; other device sets are not."""
    names = {"a::0": ("n0", "n1"), "a::1": ("n0", "n1"), "b": ("n2",)}
    resource = reported([Device(device_id) for device_id in names], binder_devices=names, leaks=leaks(HOLDER))
    assert states(resource) == {"a::0": "leaked", "a::1": "leaked", "b": "free"}
    assert resource.devices[0].binder_devices == ("n0", "n1")


def test_healthy_device_is_free_only_if_allocations_are_known() -> None:
    devices = [Device("n1"), Device("n2", "missing")]
    assert states(reported(devices, allocations=Allocations("", {}))) == {"n1": "free", "n2": "unhealthy"}
    resource = reported(devices, allocations=Allocations("no socket"))
    assert states(resource) == {"n1": "unknown", "n2": "unhealthy"}
    assert (resource.counts.unknown, resource.counts.free) == (1, 0)


def test_allocated_device_that_no_longer_exists_is_gone() -> None:
    """Such devices come last, in natural order; before the first scan there are none."""
    owners = {"n10": (PHONE,), "n9": (OTHER,), "n1": (PHONE,)}
    resource = reported([Device("n1")], owners=owners)
    assert [(device.id, str(device.state), device.reason) for device in resource.devices] == [
        ("n1", "allocated", ""),
        ("n9", "unhealthy", "gone"),
        ("n10", "unhealthy", "gone"),
    ]
    assert resource.devices[1].pods[0].name == "phone-2"
    assert resource.counts.total == 3
    assert reported([], owners=owners, revision=0).devices == ()


def test_device_beyond_the_message_limit_is_truncated() -> None:
    """An unhealthy one keeps its own reason."""
    devices = [Device("n0"), Device("n1"), Device("n2", "missing")]
    resource = reported(devices, limit=len(Snapshot(1, devices[:1]).message) + 2)
    assert resource.truncated == 2
    assert [(str(device.state), device.reason) for device in resource.devices] == [
        ("free", ""),
        ("unhealthy", "truncated"),
        ("unhealthy", "missing"),
    ]


@pytest.mark.parametrize("unready", ["", "no kubelet"])
def test_problem_joins_registration_and_scan(unready: str) -> None:
    resource = reported([], unready=unready, unhealthy="scan failed")
    assert resource.registered is not bool(unready)
    assert resource.problem == "; ".join(filter(None, [unready, "scan failed"]))


MISSING_RIGHTS = "leak detection is incomplete: missing hostPID, SYS_PTRACE or DAC_READ_SEARCH"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (leaks(), ""),
        (leaks(unreadable=1), MISSING_RIGHTS),
        (leaks(all_visible=False), MISSING_RIGHTS),
        (leaks(undecided=(HOLDER,)), "leak detection is incomplete: the pods of 1 process are unknown"),
        (None, "no leak scan has completed yet"),
    ],
)
def test_incomplete_leak_detection_is_reported(found: Leaks | None, problem: str) -> None:
    resource = reported([], leaks=found)
    assert (resource.leaks_known, resource.leaks_problem) == (found is not None, problem)


def test_json_has_these_fields() -> None:
    """Other programs read them: the names must not change."""
    devices = [Device("n1", "not-binder", (0, 1), "not-binder: n1 is a disk")]
    report = reported(devices, owners={"n1": (PHONE,)}, revision=7, leaks=leaks(HOLDER._replace(binder_device="n9")))
    assert msgspec.to_builtins(report) == {
        "name": RESOURCE,
        "registered": True,
        "problem": "",
        "revision": 7,
        "truncated": 0,
        "counts": {"total": 1, "free": 0, "allocated": 0, "unhealthy": 1, "leaked": 0, "unknown": 0},
        "devices": (
            {
                "id": "n1",
                "state": "unhealthy",
                "reason": "not-binder",
                "detail": "not-binder: n1 is a disk",
                "numa": (0, 1),
                "binder_devices": ("n1",),
                "pods": ({"namespace": "games", "name": "phone-1", "container": "android"},),
            },
        ),
        "leaks": (
            {
                "binder_device": "n9",
                "pid": 4711,
                "command": "adbd --root",
                "container": "c" * 64,
                "pod_uid": "uid-1",
                "user": 2000,
                "started": 1700000000.5,
            },
        ),
        "leaks_known": True,
        "leaks_problem": "",
    }
    assert Report.__struct_fields__ == ("version", "node", "started", "watching", "allocations", "resources")


def test_owners_are_those_of_the_same_resource() -> None:
    """Two resources may have devices of the same name."""
    allocations = Allocations("", {"x.io/b": {"d": (PHONE,)}})
    devices = [Device("d")]
    assert states(reported(devices, name="x.io/a", allocations=allocations)) == {"d": "free"}
    assert states(reported(devices, name="x.io/b", allocations=allocations)) == {"d": "allocated"}
