"""Since when devices and resources are in their states, with a clock that the test moves."""

from __future__ import annotations

import pytest

from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Owner
from aosp_plugin.report.ages import ResourceAges
from tests.support import Clock

PHONE, OTHER = Owner("games", "phone-1", "android"), Owner("games", "phone-2", "android")


@pytest.fixture
def clock() -> Clock:
    """Return a clock that starts at 100 s."""
    return Clock()


def test_device_is_unhealthy_since_the_list_with_its_first_reason(clock: Clock) -> None:
    ages = ResourceAges(clock)
    ages.published(Snapshot(1, [Device("a"), Device("b", "missing")]), None)
    clock.now = 200.0
    ages.published(Snapshot(2, [Device("a", "missing"), Device("b", "replaced")]), None)
    assert ages.since.unhealthy == {"a": 200.0, "b": 100.0}
    ages.published(Snapshot(3, [Device("a"), Device("b", "replaced")]), None)
    clock.now = 300.0
    ages.published(Snapshot(4, [Device("a", "missing")]), None)
    assert ages.since.unhealthy == {"a": 300.0}


def test_truncated_device_is_unhealthy_since_it_is_truncated(clock: Clock) -> None:
    ages = ResourceAges(clock)
    devices = [Device("a"), Device("b")]
    ages.published(Snapshot(1, devices, len(Snapshot(1, devices[:1]).message) + 2), None)
    assert ages.since.unhealthy == {"b": 100.0}


def test_device_is_allocated_since_it_has_its_present_owner(clock: Clock) -> None:
    ages = ResourceAges(clock)
    ages.allocated({"a": (PHONE,), "b": (PHONE,)})
    clock.now = 200.0
    ages.allocated({"a": (PHONE,), "b": (OTHER,)})
    assert ages.since.allocated == {"a": 100.0, "b": 200.0}
    ages.allocated({})
    assert ages.since.allocated == {}


def test_device_is_gone_since_it_is_not_listed_or_since_a_pod_is_known_to_have_it(clock: Clock) -> None:
    ages = ResourceAges(clock)
    ages.allocated({"a": (PHONE,), "z": (PHONE,)})
    assert ages.since.gone == {}  # before the first scan
    ages.published(Snapshot(1, [Device("a")]), None)
    clock.now = 200.0
    ages.published(Snapshot(2, []), None)
    assert ages.since.gone == {"a": 200.0, "z": 100.0}
    ages.published(Snapshot(3, [Device("a")]), None)
    ages.allocated({"a": (PHONE,)})
    assert ages.since.gone == {}


def test_device_is_leaked_since_the_scan_that_found_it(clock: Clock) -> None:
    ages = ResourceAges(clock)
    ages.leaked({"a"}, 50.0)
    ages.leaked({"a", "b"}, 60.0)
    assert ages.since.leaked == {"a": 50.0, "b": 60.0}
    ages.leaked({"b"}, 70.0)
    assert ages.since.leaked == {"b": 60.0}


def test_registration_changes_with_its_first_success_and_its_end(clock: Clock) -> None:
    ages = ResourceAges(clock)
    clock.now = 200.0
    ages.registration("failed")
    assert (ages.since.registered, ages.since.registration) == (False, 100.0)
    ages.registration("ok")
    assert (ages.since.registered, ages.since.registration) == (True, 200.0)
    clock.now = 300.0
    ages.unregistered()
    clock.now = 400.0
    ages.unregistered()
    assert (ages.since.registered, ages.since.registration) == (False, 300.0)


def test_problem_began_with_the_first_trouble(clock: Clock) -> None:
    """It is asked for later, and a trouble without an event begins when it is asked for."""
    ages = ResourceAges(clock)
    ages.registration("ok")
    clock.now = 210.0
    ages.scanned("hung", 10.0)
    clock.now = 300.0
    ages.host_updated("failed")
    ages.has_problem(problem=True)
    assert ages.since.problem == 200.0
    ages.scanned("ok", 10.0)
    ages.has_problem(problem=True)
    assert ages.since.problem == 200.0
    ages.host_updated("ok")
    ages.has_problem(problem=False)
    ages.has_problem(problem=True)
    assert ages.since.problem == 300.0


def test_problem_that_returns_begins_anew_although_nobody_asked_in_between(clock: Clock) -> None:
    ages = ResourceAges(clock)
    ages.registration("ok")
    ages.host_updated("failed")
    ages.has_problem(problem=True)
    ages.host_updated("ok")
    clock.now = 200.0
    ages.host_updated("failed")
    ages.has_problem(problem=True)
    assert ages.since.problem == 200.0


def test_ages_are_the_same_object_while_nothing_changes(clock: Clock) -> None:
    """The status report is encoded again after a change only."""
    ages = ResourceAges(clock)
    owners = {"a": (PHONE,)}
    ages.published(Snapshot(1, [Device("a", "missing")]), None)
    ages.allocated(owners)
    ages.leaked({"a"}, 50.0)
    ages.has_problem(problem=True)
    before = ages.since
    clock.now = 200.0
    ages.allocated(owners)
    ages.leaked({"a"}, 60.0)
    ages.has_problem(problem=True)
    assert ages.since is before
