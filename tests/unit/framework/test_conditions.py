"""The store of conditions: what begins, changes and ends, and what the log says of it."""

import logging
from typing import Any

import pytest

from aosp_plugin.backend.catalog import NO_DEVICES, NODE_TASK_FAILING
from aosp_plugin.framework.conditions import SCAN_FAILED, SCAN_HANGS, Condition, Conditions, Kind
from tests.reports import kinds
from tests.support import Clock

RESOURCE = "aosp.io/binder"
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@pytest.fixture
def conditions(clock: Clock, caplog: pytest.LogCaptureFixture) -> Conditions:
    caplog.set_level("INFO")
    return Conditions(clock, clock)


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Return messages and fields of the log, which is empty afterwards."""
    found = [(each.message, {k: v for k, v in vars(each).items() if k not in STANDARD}) for each in caplog.records]
    caplog.clear()
    return found


@pytest.mark.parametrize("name", kinds())
def test_each_kind_is_logged_as_its_row_says(
    conditions: Conditions, clock: Clock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    kind = kinds()[name]
    conditions.set(kind, "broken", resource=RESOURCE, error="broken")
    levels = [record.levelno for record in caplog.records]
    begins = [(kind.begins, {"resource": RESOURCE, "error": "broken"})] if kind.begins else []
    assert (logged(caplog), levels) == (begins, [kind.level] * len(begins))
    assert [(each.kind, each.detail) for each in conditions.of(RESOURCE)] == [(kind, "broken")]
    assert any(each.kind.blocks for each in conditions.of(RESOURCE)) == kind.blocks
    clock.now += 2.0
    conditions.set(kind, "", resource=RESOURCE)
    assert logged(caplog) == ([(kind.ends, {"resource": RESOURCE, "duration_ms": 2000.0})] if kind.ends else [])
    assert conditions.of(RESOURCE) == []


def test_a_condition_is_logged_again_when_its_cause_changes_and_keeps_its_age(
    conditions: Conditions, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    began = clock()
    for cause in ("no space", "no space", "no right"):
        conditions.set(SCAN_FAILED, cause)
        clock.now += 1.0
    assert [fields["error"] for _, fields in logged(caplog)] == ["no space", "no right"]
    assert [each.since for each in conditions.of("")] == [began]


def test_a_cause_of_another_kind_with_the_same_name_has_the_age_of_the_first(
    conditions: Conditions, clock: Clock
) -> None:
    """The source may know when it began."""
    conditions.replace("scan", RESOURCE, [Condition(SCAN_FAILED, "no space", since=clock() - 10.0)])
    clock.now += 1.0
    conditions.replace("scan", RESOURCE, [Condition(SCAN_HANGS, "hangs")])
    assert [(each.kind, each.since) for each in conditions.of(RESOURCE)] == [(SCAN_HANGS, clock() - 11.0)]


def test_a_clock_that_is_set_back_leaves_the_duration_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock, monotonic = Clock(1000.0), Clock(10.0)
    conditions = Conditions(clock, monotonic)
    conditions.replace("scan", RESOURCE, [Condition(SCAN_HANGS, "hangs", since=clock() - 3.0)])
    clock.now -= 600.0
    monotonic.now += 2.0
    conditions.replace("scan", RESOURCE, ())
    assert logged(caplog)[-1] == (SCAN_HANGS.ends, {"resource": RESOURCE, "duration_ms": 5000.0})


def test_a_condition_stays_while_another_source_reports_nothing(conditions: Conditions) -> None:
    conditions.replace("one", RESOURCE, [Condition(SCAN_FAILED, "no space")])
    for source, resource in (("another", RESOURCE), ("one", "aosp.io/other"), ("one", "")):
        conditions.replace(source, resource, ())
    assert [each.detail for each in conditions.of(RESOURCE)] == ["no space"]


def test_conditions_of_one_source_end_one_by_one(conditions: Conditions, caplog: pytest.LogCaptureFixture) -> None:
    def of(*subjects: str, kind: Kind = NODE_TASK_FAILING) -> list[Condition]:
        return [Condition(kind, "refused", subject) for subject in subjects]

    conditions.replace("tasks", "", of("events", "taint"))
    logged(caplog)
    conditions.replace("tasks", "", [*of("taint"), Condition(NO_DEVICES, "")])
    assert logged(caplog) == [("node task recovered", {"subject": "events", "duration_ms": 0.0})]
