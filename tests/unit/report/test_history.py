"""The history of the node: which changes are recorded, since when states last, and how much is kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.backend import Found
from aosp_plugin.framework.conditions import (
    KUBELET_DISAGREES,
    NOT_REGISTERED,
    SCAN_FAILED,
    SECOND_PLUGIN,
    Condition,
    Kind,
)
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Inventory, Snapshot
from aosp_plugin.framework.podresources_client import Owner
from aosp_plugin.report.document import ChangeKind
from aosp_plugin.report.history import MAX_CHANGES, History, ResourceHistory
from tests.support import RESOURCE, Clock, until

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
    changes.published(snapshot(1, "n1", "n2", "n3"))
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
    changes.published(snapshot(1, "n1", "n2", n1="missing"))
    changes.published(snapshot(2, "n2", "n3"))
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


@pytest.fixture
def server() -> Any:
    """Return what the history reads of a server that is registered."""
    return SimpleNamespace(
        inventory=Inventory(),
        registration=SimpleNamespace(kubelet_restarts=0, changed=asyncio.Event()),
        conditions=list,
    )


def set_conditions(server: Any, cause: str, *kinds: Kind) -> None:
    server.conditions = lambda: [Condition(kind, cause) for kind in kinds]


@pytest.mark.parametrize(
    ("kind", "begins", "ends"),
    [
        (SCAN_FAILED, "scans-fail", "scans-succeed"),
        (SECOND_PLUGIN, "other-plugins", "other-plugins"),
        (NOT_REGISTERED, "unregistered", "registered"),
    ],
)
def test_begin_and_end_of_a_condition_are_recorded_with_its_first_cause(
    changes: ResourceHistory, history: History, server: Any, kind: Kind, begins: str, ends: str
) -> None:
    changes.read(server)
    for cause in ("first", "second"):
        set_conditions(server, cause, kind)
        changes.read(server)
    set_conditions(server, "")
    changes.read(server)
    events = [(change.event, change.text) for change in reversed(history.recent)][1:]  # registered at the start
    assert [event for event, _ in events] == [begins, ends]
    assert events[0][1] == "first"


def test_the_kubelet_lacks_devices_until_it_is_known_to_have_them(
    changes: ResourceHistory, history: History, server: Any
) -> None:
    """A registration that ends meanwhile is another change."""
    changes.read(server)
    for conditions in ([KUBELET_DISAGREES], [KUBELET_DISAGREES, NOT_REGISTERED]):
        set_conditions(server, "lost", *conditions)
        changes.read(server)
    set_conditions(server, "")
    changes.read(server)
    assert [change[:2] for change in recorded(history)] == [
        ("registered", "registered with the kubelet"),
        ("kubelet-lacks", "lost"),
        ("unregistered", "lost"),
        ("registered", "registered with the kubelet"),
        ("kubelet-has-all", "the kubelet has all healthy devices"),
    ]


async def test_a_server_is_followed_from_its_registration_on(
    changes: ResourceHistory, history: History, server: Any
) -> None:
    set_conditions(server, "not registered yet", NOT_REGISTERED)
    async with background_task(changes.follow(server)):
        await asyncio.sleep(0)
        set_conditions(server, "")
        server.registration.kubelet_restarts += 1
        server.registration.changed.set()
        await until(lambda: len(history.recent) == 2)
        server.inventory.publish(Found([Device("n1")]))
        await until(lambda: len(history.recent) == 3)
    assert [change[0] for change in recorded(history)] == ["kubelet-restarted", "registered", "removed"]


def test_pods_that_come_and_go_do_not_displace_other_changes(history: History) -> None:
    history.record(ChangeKind.STARTED, "first")
    for _ in range(3 * MAX_CHANGES):
        history.record(ChangeKind.ALLOCATED, "allocated to p", RESOURCE, ["n1"])
    history.record(ChangeKind.REGISTERED, "last")
    texts = [change.text for change in history.recent]
    assert texts == ["last", *["allocated to p"] * MAX_CHANGES, "first"]


# -- since when


def test_device_is_unhealthy_since_the_list_with_its_first_reason(clock: Clock) -> None:
    ages = ResourceHistory(RESOURCE, History(clock))
    ages.published(Snapshot(1, [Device("a"), Device("b", "missing")]))
    clock.now = 200.0
    ages.published(Snapshot(2, [Device("a", "missing"), Device("b", "replaced")]))
    assert ages.since.unhealthy == {"a": 200.0, "b": 100.0}
    ages.published(Snapshot(3, [Device("a"), Device("b", "replaced")]))
    clock.now = 300.0
    ages.published(Snapshot(4, [Device("a", "missing")]))
    assert ages.since.unhealthy == {"a": 300.0}


def test_device_is_allocated_since_it_has_its_present_owner(clock: Clock) -> None:
    ages = ResourceHistory(RESOURCE, History(clock))
    ages.allocated({"a": (PHONE,), "b": (PHONE,)}, confirmed=False)
    clock.now = 200.0
    ages.allocated({"a": (PHONE,), "b": (OTHER,)}, confirmed=False)
    assert ages.since.allocated == {"a": 100.0, "b": 200.0}
    ages.allocated({}, confirmed=False)
    assert ages.since.allocated == {}


def test_device_is_gone_since_it_is_not_listed_or_since_a_pod_is_known_to_have_it(clock: Clock) -> None:
    ages = ResourceHistory(RESOURCE, History(clock))
    ages.allocated({"a": (PHONE,), "z": (PHONE,)}, confirmed=False)
    assert ages.since.gone == {}  # before the first scan
    ages.published(Snapshot(1, [Device("a")]))
    clock.now = 200.0
    ages.published(Snapshot(2, []))
    assert ages.since.gone == {"a": 200.0, "z": 100.0}
    ages.published(Snapshot(3, [Device("a")]))
    ages.allocated({"a": (PHONE,)}, confirmed=False)
    assert ages.since.gone == {}
