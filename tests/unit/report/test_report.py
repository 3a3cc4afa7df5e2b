"""The status report: device states, counts and allocations."""

from collections.abc import Mapping
from typing import Any

from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.report.document import Counts, ResourceReport
from aosp_plugin.report.status import resource_report
from tests.reports import resource_status
from tests.support import RESOURCE

PHONE = Owner("games", "phone-1", "android")
OTHER = Owner("games", "phone-2", "android")


def reported(
    devices: list[Device],
    *,
    owners: Mapping[str, tuple[Owner, ...]] | None = None,
    allocations: Allocations | None = None,
    revision: int = 1,
    limit: int = 4096,
    **status: Any,
) -> ResourceReport:
    """Return the report of a resource whose devices are binder devices of the same name."""
    names = {device.id: (device.id,) for device in devices}
    return resource_report(
        resource_status(Snapshot(revision, devices, limit), binder_devices=names, **status),
        allocations or Allocations("", {RESOURCE: owners or {}}),
    )


def states(resource: ResourceReport) -> dict[str, str]:
    return {device.id: str(device.state) for device in resource.devices}


def test_device_reports_the_first_state_that_applies() -> None:
    """Health comes before allocation. Pods are reported, and counted, in every state."""
    owners = {"n1": (PHONE,), "n2": (PHONE, OTHER), "n3": (PHONE,)}
    devices = [Device("n1", "missing"), Device("n2", "missing"), Device("n3"), Device("n4")]
    resource = reported(devices, owners=owners)
    assert states(resource) == {"n1": "unhealthy", "n2": "unhealthy", "n3": "allocated", "n4": "free"}
    assert resource.counts == Counts(total=4, healthy=2, unhealthy=2, allocated=3, free=1, unknown=0, gone=0)
    pods = [[pod.name for pod in device.pods] for device in resource.devices]
    assert pods == [["phone-1"], ["phone-1", "phone-2"], ["phone-1"], []]


def test_healthy_device_is_free_only_if_allocations_of_its_resource_are_known() -> None:
    """Two resources may have devices of the same name."""
    devices = [Device("n1"), Device("n2", "missing")]
    for allocations, state in (
        (Allocations("", {}), "free"),
        (Allocations("", {"x.io/b": {"n1": (PHONE,)}}), "free"),
        (Allocations("", {RESOURCE: {"n1": (PHONE,)}}), "allocated"),
        (Allocations("no socket"), "unknown"),
    ):
        resource = reported(devices, allocations=allocations)
        assert states(resource) == {"n1": state, "n2": "unhealthy"}
        assert (resource.counts.unknown, resource.counts.free) == (state == "unknown", state == "free")


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
    assert (resource.counts.total, resource.counts.allocated, resource.counts.gone) == (1, 3, 2)
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


def test_ages_and_the_spread_devices_are_those_of_the_device() -> None:
    listed = Device("n1", "not-binder", (0, 1), "not-binder: n1 is a disk")
    report = reported([listed], since={"n1": 3.0}, spread_devices={"/dev/dri/renderD128": ["n1"]})
    (device,) = report.devices
    assert (report.registered, report.since) == (True, 1.0)
    assert (device.since, device.spread_devices) == (3.0, ("/dev/dri/renderD128",))
    assert (device.numa, device.detail) == ((0, 1), "not-binder: n1 is a disk")
