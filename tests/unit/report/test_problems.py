"""The problems of a report: which ones there are, their order, and what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import DISABLED, Allocations, Owner
from aosp_plugin.report import catalog
from aosp_plugin.report.document import DriverReport, Known, Problem, ResourceReport, State
from aosp_plugin.report.history import Since
from aosp_plugin.report.problems import NAMED_DEVICES, problems
from aosp_plugin.report.resource_report import GONE, TRUNCATED, resource_report
from tests.reports import resource_status
from tests.support import RESOURCE

PHONE = Owner("games", "phone-1", "android")
KNOWN = Known(known=True, problem="")


def resource(
    *devices: Device, owners: dict[str, tuple[Owner, ...]] | None = None, since: Since | None = None, **fields: Any
) -> ResourceReport:
    """Return the report of a registered resource, with some of its fields replaced."""
    status = resource_status(Snapshot(1, devices or (Device("n1"),)), since=since or Since(registered=True))
    return msgspec.structs.replace(resource_report(status, Allocations("", {RESOURCE: owners or {}})), **fields)


def found(*resources: ResourceReport, allocations: Known = KNOWN, watching: str = "inotify") -> list[tuple[str, str]]:
    """Return severity and kind of each problem."""
    return [(str(it.severity), it.kind) for it in problems(resources, allocations, watching)]


def only(report: ResourceReport) -> Problem:
    (problem,) = problems([report], KNOWN, "inotify")
    return problem


def test_healthy_node_has_no_problem() -> None:
    """Neither leak detection nor the podresources API has to be on."""
    assert found(resource()) == []
    assert found(resource(), allocations=Known(known=False, problem=DISABLED.problem)) == []


def test_resource_has_the_problem_of_its_fields() -> None:
    cases: list[tuple[dict[str, Any], tuple[str, str] | None]] = [
        ({"registered": False, "problem": "no kubelet.sock"}, ("error", "not-registered")),
        ({"kubelet_allocatable": 0, "kubelet_published": 1, "problem": "0 of 1"}, ("error", "kubelet-disagrees")),
        ({"kubelet_allocatable": 0, "kubelet_published": 1}, None),  # in one round
        ({"kubelet_allocatable": 1, "kubelet_published": 1}, None),
        ({"problem": "the scan hangs"}, ("error", "outdated")),
        ({"driver": DriverReport("a.b", 2, 1, 0)}, ("error", "slices-missing")),
        ({"driver": DriverReport("a.b", 2, 2, 0), "notice": "1 claim"}, ("warning", "claims-not-repaired")),
        ({"notice": "Another plugin"}, ("warning", "second-plugin")),
        ({"expected": 2}, ("warning", "too-few-devices")),
        ({"devices": ()}, ("warning", "no-devices")),
        ({"devices": (), "revision": 0}, None),
        ({"leak_detection": "failing"}, ("warning", "leak-detection-failing")),
        ({"leak_detection": "incomplete"}, ("warning", "leak-detection-incomplete")),
    ]
    for fields, expected in cases:
        assert found(resource(**fields)) == ([expected] if expected else [])


def test_node_has_the_problems_of_all_resources() -> None:
    unknown = Known(known=False, problem="the kubelet has not answered yet")
    assert found(resource(), allocations=unknown, watching="polling") == [
        ("warning", "allocations-unknown"),
        ("notice", "polling"),
    ]


def test_urgent_problems_come_first() -> None:
    devices = (Device("n1", "surplus"), Device("n2", "missing"), Device("n3"))
    lost = resource(*devices, registered=False)
    assert found(lost) == [("error", "not-registered"), ("warning", "missing"), ("notice", "surplus")]


def test_devices_are_one_problem_for_each_reason() -> None:
    """It has the earliest time, and names devices and pods up to a limit."""
    ids = [f"n{number}" for number in range(NAMED_DEVICES + 2)]
    owners: dict[str, tuple[Owner, ...]] = {device_id: (Owner("shop", device_id, "android"),) for device_id in ids}
    owners |= {ids[0]: (PHONE,), ids[1]: (PHONE,)}
    since = Since(registered=True, unhealthy={ids[0]: 20.0, ids[3]: 10.0})
    problem = only(resource(Device("ok"), *[Device(i, "missing") for i in ids], owners=owners, since=since))
    assert (problem.severity, problem.kind, problem.since) == ("warning", "missing", 10.0)
    assert problem.summary == "12 devices missing: the file does not exist"
    assert (problem.count, problem.devices) == (12, tuple(ids[:10]))
    assert problem.pods == ("games/phone-1", *(f"shop/{device_id}" for device_id in ids[2:11]))
    assert problem.more_pods == 1


def test_node_without_a_healthy_device_is_an_error() -> None:
    assert found(resource(Device("n1", "missing"))) == [("error", "missing")]


def test_leaked_devices_are_an_error() -> None:
    report = resource(Device("n1"), Device("n2"))
    leaked = msgspec.structs.replace(report.devices[0], state=State.LEAKED)
    assert found(msgspec.structs.replace(report, devices=(leaked, report.devices[1]))) == [("error", "leaked")]


def test_the_catalog_has_all_reasons_in_their_order_and_refers_to_headings_of_the_runbook() -> None:
    assert [*catalog.REASONS] == [*Reason]
    assert {GONE, TRUNCATED, "leaked"} <= catalog.PROBLEMS.keys()
    runbook = (Path(__file__).resolve().parents[3] / "docs/runbook.md").read_text()
    headings = re.findall(r"^#+ (.*)$", runbook, re.MULTILINE)
    fragments = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    entries = [catalog.entry(kind) for kind in (*catalog.PROBLEMS, *catalog.REASONS, "another")]
    assert {it.runbook for it in entries} <= fragments
