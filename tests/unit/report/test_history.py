"""The history of the node: which changes are recorded, since when states last, and how much is kept."""

from __future__ import annotations

import pytest

from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Owner
from aosp_plugin.report.document import Event
from aosp_plugin.report.history import MAX_CHANGES, History, ResourceHistory
from tests.support import RESOURCE, Clock

PHONE, OTHER = Owner("games", "phone-1", "android"), Owner("shop", "phone-2", "android")


@pytest.fixture
def clock() -> Clock:
    """Return a clock that starts at 100 s."""
    return Clock()


@pytest.fixture
def history(clock: Clock) -> History:
    return History(clock)


@pytest.fixture
def changes(history: History) -> ResourceHistory:
    """Return the changes of a resource that had the healthy devices n1 to n3."""
    changes = ResourceHistory(RESOURCE, history)
    changes.published(snapshot(1, "n1", "n2", "n3"), None)
    return changes


def snapshot(revision: int, *ids: str, **reasons: str) -> Snapshot:
    return Snapshot(revision, [Device(device_id, reasons.get(device_id, "")) for device_id in ids])


def recorded(history: History) -> list[tuple[str, str, int, tuple[str, ...]]]:
    """Return the changes, oldest first."""
    return [(str(it.event), it.text, it.count, it.devices) for it in reversed(history.recent)]


def test_devices_at_the_start_are_no_change(changes: ResourceHistory, history: History) -> None:
    changes.allocated({"n1": (PHONE,)}, confirmed=True)
    assert history.recent == ()


def test_device_that_another_one_replaces_is_removed(history: History) -> None:
    """The number of devices is the same before and after, and the one that is removed is not healthy again."""
    changes = ResourceHistory(RESOURCE, history)
    changes.published(snapshot(1, "n1", "n2", n1="missing"), None)
    changes.published(snapshot(2, "n2", "n3"), None)
    assert [change[:1] + change[3] for change in recorded(history)] == [("removed", "n1"), ("added", "n3")]


def test_pods_get_and_return_devices(changes: ResourceHistory, history: History) -> None:
    """A device that two pods share for a moment is allocated to the second one, and then released by the first."""
    changes.allocated({}, confirmed=True)
    changes.allocated({"n10": (PHONE,), "n9": (PHONE,)}, confirmed=True)
    changes.allocated({"n10": (PHONE, OTHER), "n9": (PHONE,)}, confirmed=True)
    changes.allocated({"n10": (OTHER,)}, confirmed=True)
    assert [(*change[:2], *change[3]) for change in recorded(history)] == [
        ("allocated", "allocated to games/phone-1", "n9", "n10"),
        ("allocated", "allocated to shop/phone-2", "n10"),
        ("released", "released by games/phone-1", "n9", "n10"),
    ]
    assert [change.pod for change in history.recent] == ["games/phone-1", "shop/phone-2", "games/phone-1"]


def test_leaks_scans_and_other_plugins_are_recorded(changes: ResourceHistory, history: History) -> None:
    changes.leaked(set(), 50.0)
    changes.leaked({"n2", "n1"}, 50.0)
    changes.leaked({"n2"}, 50.0)
    changes.scanned("ok", 0.1)
    changes.scanned("hung", 5.0)
    changes.scanned("hung", 9.0)
    changes.scanned("ok", 9.5)
    changes.other_plugins(1)
    changes.other_plugins(0)
    assert [(change[0], *change[3]) for change in recorded(history)] == [
        ("leaked", "n1", "n2"),
        ("leak-ended", "n1"),
        ("scans-fail",),
        ("scans-succeed",),
        ("other-plugins",),
        ("other-plugins",),
    ]


def test_pods_that_come_and_go_do_not_displace_other_changes(history: History) -> None:
    history.record(Event.STARTED, "first")
    for _ in range(3 * MAX_CHANGES):
        history.record(Event.ALLOCATED, "allocated to p", RESOURCE, ["n1"])
    history.record(Event.REGISTERED, "last")
    texts = [change.text for change in history.recent]
    assert texts == ["last", *["allocated to p"] * MAX_CHANGES, "first"]


# -- since when


def test_device_is_unhealthy_since_the_list_with_its_first_reason(clock: Clock) -> None:
    ages = ResourceHistory(RESOURCE, History(clock))
    ages.published(Snapshot(1, [Device("a"), Device("b", "missing")]), None)
    clock.now = 200.0
    ages.published(Snapshot(2, [Device("a", "missing"), Device("b", "replaced")]), None)
    assert ages.since.unhealthy == {"a": 200.0, "b": 100.0}
    ages.published(Snapshot(3, [Device("a"), Device("b", "replaced")]), None)
    clock.now = 300.0
    ages.published(Snapshot(4, [Device("a", "missing")]), None)
    assert ages.since.unhealthy == {"a": 300.0}


def test_device_is_allocated_since_it_has_its_present_owner(clock: Clock) -> None:
    ages = ResourceHistory(RESOURCE, History(clock))
    ages.allocated({"a": (PHONE,), "b": (PHONE,)}, confirmed=False)
    clock.now = 200.0
    ages.allocated({"a": (PHONE,), "b": (OTHER,)}, confirmed=False)
    assert ages.since.allocated == {"a": 100.0, "b": 200.0}
    ages.allocated({}, confirmed=False)
    assert ages.since.allocated == {}
    ages.leaked({"a"}, 50.0)
    ages.leaked({"a", "b"}, 60.0)
    assert ages.since.leaked == {"a": 50.0, "b": 60.0}


def test_device_is_gone_since_it_is_not_listed_or_since_a_pod_is_known_to_have_it(clock: Clock) -> None:
    ages = ResourceHistory(RESOURCE, History(clock))
    ages.allocated({"a": (PHONE,), "z": (PHONE,)}, confirmed=False)
    assert ages.since.gone == {}  # before the first scan
    ages.published(Snapshot(1, [Device("a")]), None)
    clock.now = 200.0
    ages.published(Snapshot(2, []), None)
    assert ages.since.gone == {"a": 200.0, "z": 100.0}
    ages.published(Snapshot(3, [Device("a")]), None)
    ages.allocated({"a": (PHONE,)}, confirmed=False)
    assert ages.since.gone == {}


def test_registration_changes_with_its_first_success_and_its_end(clock: Clock) -> None:
    ages = ResourceHistory(RESOURCE, History(clock))
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
    ages = ResourceHistory(RESOURCE, History(clock))
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
