"""Which conditions and which devices of a resource an Event on the Node reports, and when their end."""

import pytest

from aosp_plugin.framework.backend import Device, Found
from aosp_plugin.framework.conditions import (
    CLAIM_SLOW,
    CLAIMS_NOT_REPAIRED,
    NOT_REGISTERED,
    OVERRIDDEN,
    SECOND_PLUGIN,
    WAITING_FOR_KUBELET,
    Condition,
    Conditions,
    Severity,
)
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.report.node_events import DELAY, PAUSE, ConditionWatch, DeviceWatch, Occurrence
from tests.reports import kinds
from tests.support import Clock

RESOURCE = "aosp.io/binder"


class Watched:
    """The conditions of a resource, or of the process, at the times that a test gives."""

    def __init__(self, resource: str = RESOURCE) -> None:
        self._resource = resource
        self._clock = Clock()
        self.jumped = 0.0
        """Seconds by which the date was set."""
        self._conditions = Conditions(lambda: self._clock() + self.jumped, self._clock)
        self._watch = ConditionWatch(self._conditions, resource, self._clock)

    def set(self, *found: Condition) -> None:
        """Set what is wrong."""
        self._conditions.replace("test", self._resource, found)

    def at(self, *times: float) -> list[Occurrence]:
        """Return what is reported at these times."""
        reported: list[Occurrence] = []
        for self._clock.now in times:
            reported += self._watch.occurrences()
        return reported


def test_a_condition_that_lasts_for_a_minute_is_reported_once_with_its_cause_and_its_end() -> None:
    watched = Watched()
    watched.set(Condition(WAITING_FOR_KUBELET, "waiting for kubelet"))
    assert watched.at(100.0, 159.9) == []
    text = f"{NOT_REGISTERED.title}: waiting for kubelet"
    assert watched.at(160.0, 161.0) == [Occurrence("Warning", "NotRegistered", f"{RESOURCE}: {text}")]
    watched.set()
    end = Occurrence("Normal", "NotRegisteredEnded", f"{RESOURCE}: no longer: {text}")
    assert watched.at(162.0, 163.0) == [end]


@pytest.mark.parametrize("jump", [3600.0, -86400.0])
def test_a_condition_lasts_as_long_whatever_the_date_is(jump: float) -> None:
    watched = Watched()
    watched.jumped = jump
    watched.set(Condition(NOT_REGISTERED, "a"))
    assert watched.at(159.9) == []
    assert [each.reason for each in watched.at(160.0)] == ["NotRegistered"]


def test_a_condition_that_lasts_is_reported_although_younger_ones_of_its_kind_come_and_go() -> None:
    watched = Watched()
    lasting = Condition(CLAIMS_NOT_REPAIRED, "claim a cannot be repaired")
    for now in (100.0, 130.0):
        watched.set(lasting, Condition(CLAIM_SLOW, "claim b is not prepared", f"claim {now}", since=now))
        assert watched.at(now) == []
    (event,) = watched.at(160.0)
    assert event.message.endswith(lasting.detail)


def test_a_condition_of_the_process_is_reported_without_a_resource() -> None:
    watched = Watched("")
    watched.set(Condition(NOT_REGISTERED, "a"))
    (event,) = watched.at(160.0)
    assert event.message == f"{NOT_REGISTERED.title}: a"


def test_of_two_plugins_the_later_one_reports_the_other() -> None:
    watched = Watched()
    second = Condition(SECOND_PLUGIN, "other.sock")
    watched.set(second, Condition(OVERRIDDEN, "it has taken over"))
    assert watched.at(200.0) == []
    watched.set(second)
    assert [each.reason for each in watched.at(200.0)] == ["SecondPlugin"]


def test_a_plugin_that_is_overridden_reports_the_end_of_the_other_when_that_has_ended() -> None:
    watched = Watched()
    second = Condition(SECOND_PLUGIN, "other.sock")
    watched.set(second)
    assert [each.reason for each in watched.at(160.0)] == ["SecondPlugin"]
    watched.set(second, Condition(OVERRIDDEN, "it has taken over"))
    assert watched.at(200.0) == []
    watched.set()
    assert [each.reason for each in watched.at(210.0)] == ["SecondPluginEnded"]


@pytest.mark.parametrize("name", kinds())
def test_whatever_is_more_than_a_notice_is_an_event(name: str) -> None:
    watched, kind = Watched(), kinds()[name]
    watched.set(Condition(kind, "broken"))
    expected = [] if kind.severity is Severity.NOTICE else [kind.name.replace("-", "")]
    assert [each.reason.lower() for each in watched.at(160.0)] == expected


class Devices:
    """Watches devices, whose snapshots a test makes."""

    def __init__(self, **reasons: str) -> None:
        """Create devices by their reasons, which are empty for healthy ones, and observe them for the first time."""
        self.inventory = Inventory()
        self.clock = Clock()
        self._watch = DeviceWatch(self.inventory, RESOURCE, self.clock)
        assert self.become(**reasons) == []

    def replace(self, **reasons: str) -> None:
        """Publish other devices."""
        self.inventory.publish(Found([Device(device_id, reason) for device_id, reason in reasons.items()]))

    def messages(self) -> list[str]:
        """Return what is reported now."""
        return [occurrence.message for occurrence in self._watch.occurrences()]

    def become(self, **reasons: str) -> list[str]:
        """Publish other devices, and return the messages about them."""
        self.replace(**reasons)
        assert self.messages() == []
        self.clock.now += DELAY + PAUSE
        return self.messages()


def test_the_devices_are_reported_once_a_minute_with_all_changes_until_then() -> None:
    devices = Devices(a="", b="", c="")
    devices.become(a="missing", b="", c="")
    devices.replace(a="missing", b="missing", c="")
    assert devices.messages() == []
    devices.clock.now += DELAY
    assert devices.messages() == []
    devices.replace(a="missing", b="missing", c="missing")
    devices.clock.now += PAUSE
    (message,) = devices.messages()
    assert message.startswith(f"2 devices of {RESOURCE} lost: 2 missing (b, c)")


def test_devices_that_become_unhealthy_or_vanish_are_lost_once() -> None:
    devices = Devices(a="", b="", c="", d="foreign-mount")
    assert devices.become(a="", b="missing", d="missing") == [
        f"2 devices of {RESOURCE} lost: 1 missing, 1 removed (b, c); 1 of 3 are healthy"
    ], "d was never healthy"
    assert devices.become(a="", b="not-binder") == [], "b is unhealthy for another reason"
    assert devices.become(a="") == [], "b vanishes as well"


def test_devices_that_become_healthy_or_appear_recover() -> None:
    devices = Devices(a="", b="missing", c="missing")
    assert devices.become(a="missing", b="missing", c="", new="") == [
        f"1 device of {RESOURCE} lost: 1 missing (a); 2 of 4 are healthy",
        f"2 devices of {RESOURCE} healthy now (c, new); 2 of 4 are healthy",
    ]


def test_messages_have_numbers_reasons_and_the_first_names() -> None:
    names = [f"phone{number}" for number in range(8)]
    devices = Devices(**dict.fromkeys(names, ""))
    message = (
        f"7 devices of {RESOURCE} lost: 1 missing, 6 not-binder "
        "(phone0, phone1, phone2, phone3, phone4 and 2 others); 1 of 8 are healthy"
    )
    assert devices.become(phone0="missing", **dict.fromkeys(names[1:7], "not-binder"), phone7="") == [message]
