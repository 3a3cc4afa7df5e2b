"""The problems of a report: which ones there are, their order, and what they say."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from aosp_plugin.backend.catalog import RESTRICTED
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.conditions import NOT_REGISTERED, TRUNCATED, Condition
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.report.document import Problem, ResourceReport
from aosp_plugin.report.status import NAMED_DEVICES, fragment, problems, resource_report
from tests.reports import kinds, resource_status
from tests.support import RESOURCE

PHONE = Owner("games", "phone-1", "android")


def resource(
    *devices: Device,
    owners: dict[str, tuple[Owner, ...]] | None = None,
    since: Mapping[str, float] = MappingProxyType({}),
    **fields: Any,
) -> ResourceReport:
    """Return the report of a registered resource, with some of its fields replaced."""
    status = resource_status(Snapshot(1, devices or (Device("n1"),)), since=since)
    return msgspec.structs.replace(resource_report(status, Allocations("", {RESOURCE: owners or {}})), **fields)


def only(report: ResourceReport, *conditions: Condition) -> Problem:
    (problem,) = problems([(report, conditions)], ())
    return problem


@pytest.mark.parametrize("names", [*itertools.combinations(kinds(), 2)], ids=" and ".join)
def test_each_condition_is_a_problem_of_its_own(names: tuple[str, str]) -> None:
    """With its title, cause and age, whatever else is wrong, with the resource or with the process."""
    one, other = (Condition(kinds()[name], f"cause of {name}", since=10.0) for name in names)
    shown = problems([(resource(), [one])], [other])
    assert {(it.kind, it.resource, it.severity, it.summary, it.since) for it in shown} == {
        (each.kind.name, name, each.kind.severity, f"{each.kind.title}: {each.detail}", 10.0)
        for each, name in ((one, RESOURCE), (other, ""))
    }


def test_a_condition_of_devices_is_the_problem_that_names_them() -> None:
    """With their pods: restricted ones are healthy, and processes in them get EACCES."""
    for kind, limit in ((TRUNCATED, 20), (RESTRICTED, 99)):
        restricted = {"n2": ["n2"]} if kind is RESTRICTED else {}
        status = resource_status(Snapshot(1, [Device("n1"), Device("n2")], limit=limit), restricted=restricted)
        report = resource_report(status, Allocations("", {RESOURCE: {"n2": (PHONE,)}}))
        problem = only(report, Condition(kind, "n2", since=10.0))
        assert (problem.severity, problem.kind, problem.devices) == ("warning", kind.name, ("n2",))
        assert problem.pods == ("games/phone-1",)


def test_urgent_problems_come_first() -> None:
    """Without a healthy device, those of devices are errors. A healthy node has none."""
    missing, surplus = Device("n2", "missing"), Device("n1", "surplus")
    cases: list[tuple[tuple[Device, ...], list[Condition], list[tuple[str, str]]]] = [
        ((), [], []),
        ((missing,), [], [("error", "missing")]),
        (
            (surplus, missing, Device("n3")),
            [Condition(NOT_REGISTERED, "no kubelet.sock")],
            [("error", "not-registered"), ("warning", "missing"), ("notice", "surplus")],
        ),
    ]
    for devices, conditions, expected in cases:
        shown = problems([(resource(*devices), conditions)], ())
        assert [(str(it.severity), it.kind) for it in shown] == expected


def test_devices_are_one_problem_for_each_reason() -> None:
    """It has the earliest time, and names devices and pods up to a limit."""
    ids = [f"n{number}" for number in range(NAMED_DEVICES + 2)]
    owners: dict[str, tuple[Owner, ...]] = {device_id: (Owner("shop", device_id, "android"),) for device_id in ids}
    owners |= {ids[0]: (PHONE,), ids[1]: (PHONE,)}
    since = {ids[0]: 20.0, ids[3]: 10.0}
    problem = only(resource(Device("ok"), *[Device(i, "missing") for i in ids], owners=owners, since=since))
    assert (problem.severity, problem.kind, problem.since) == ("warning", "missing", 10.0)
    assert problem.summary == "12 devices missing: the file does not exist"
    assert (problem.count, problem.devices) == (12, tuple(ids[:10]))
    assert problem.pods == ("games/phone-1", *(f"shop/{device_id}" for device_id in ids[2:11]))
    assert problem.more_pods == 1


def test_kinds_and_reasons_refer_to_headings_of_the_runbook() -> None:
    runbook = (Path(__file__).resolve().parents[3] / "docs/runbook.md").read_text()
    headings = re.findall(r"^#+ (.*)$", runbook, re.MULTILINE)
    fragments = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    missing = {*(fragment(kind) for kind in kinds().values()), *Reason} - fragments
    assert missing == set(), "docs/runbook.md lacks these headings"


def test_kinds_with_the_same_name_say_the_same_to_people() -> None:
    """They differ in what the log says."""
    shown = {kind.name: kind[:5] for kind in kinds().values()}
    assert [kind[:5] for kind in kinds().values()] == [shown[kind.name] for kind in kinds().values()]
