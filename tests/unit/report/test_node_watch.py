"""Which conditions and which devices of a resource an Event on the Node reports, and when their end."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.conditions import OVERRIDDEN, SECOND_PLUGIN, WAITING_FOR_KUBELET, Condition
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.report.node_events import DELAY, Occurrence, ResourceWatch
from tests.backends import binder_backend
from tests.reports import kinds
from tests.support import Clock

RESOURCE = "aosp.io/binder"


class Plugin(DevicePlugin):
    """A plugin in the state that a test sets."""

    def set(self, *found: Condition) -> None:
        """Set what is wrong with the plugin."""
        self._conditions.replace("registration", RESOURCE, found)


class Watch:
    """Watches a server at the times that a test gives."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self._clock = Clock()
        self._watch = ResourceWatch(server, self._clock)

    def at(self, *times: float) -> list[Occurrence]:
        """Return what has happened at these times."""
        found: list[Occurrence] = []
        for self._clock.now in times:
            found += self._watch.occurrences()
        return found


async def test_a_registration_that_is_lost_for_long_is_reported_with_its_reason_and_its_end(tmp_path: Path) -> None:
    plugin = Plugin(binder_backend(tmp_path).backend)
    watch = Watch(plugin)
    plugin.set()
    assert watch.at(0.0, 100.0) == []
    plugin.set(Condition(WAITING_FOR_KUBELET, "waiting for kubelet", since=100.0))
    assert watch.at(100.0, 114.9) == []
    message = f"{RESOURCE}: the kubelet has not registered the plugin: waiting for kubelet"
    assert watch.at(115.0, 116.0) == [Occurrence("Warning", "PluginNotRegistered", message)]
    plugin.set()
    message = f"the kubelet has registered the plugin of {RESOURCE} again"
    assert watch.at(117.0, 118.0) == [Occurrence("Normal", "PluginRegistered", message)]
    plugin.stop()
    await plugin.run()


async def test_a_kubelet_with_fewer_devices_is_reported_at_once(tmp_path: Path) -> None:
    plugin = Plugin(binder_backend(tmp_path).backend)
    watch = Watch(plugin)
    plugin.set()
    plugin.confirmation.compare(3, 12, 0.0)
    assert watch.at(time.time()) == [], "one answer is no disagreement yet"
    plugin.confirmation.compare(3, 12, 0.0)
    message = f"{RESOURCE}: the kubelet has 3 of 12 healthy devices"
    assert watch.at(*[time.time()] * 2) == [Occurrence("Warning", "KubeletLostDevices", message)]
    plugin.confirmation.compare(12, 12, 0.0)
    (end,) = watch.at(*[time.time()] * 2)
    assert (end.type, end.reason) == ("Normal", "KubeletHasDevices")
    plugin.stop()
    await plugin.run()


async def test_a_second_plugin_is_reported_by_the_later_one_if_it_stays(tmp_path: Path) -> None:
    plugin = Plugin(binder_backend(tmp_path).backend)
    watch = Watch(plugin)
    second = Condition(SECOND_PLUGIN, "another plugin of this resource runs on this node: other.sock", since=1.0)
    plugin.set(second)
    assert watch.at(1.0, 60.0) == [], "as in a rolling update"
    (begin,) = watch.at(61.0, 62.0)
    assert begin == Occurrence("Warning", "SecondPlugin", f"{RESOURCE}: {second.detail}")
    plugin.set()
    (end,) = watch.at(63.0)
    assert (end.type, end.reason) == ("Normal", "SecondPluginEnded")
    plugin.set(second, Condition(OVERRIDDEN, "it has taken over"))
    assert watch.at(100.0, 200.0) == []
    plugin.stop()
    await plugin.run()


@pytest.mark.parametrize("name", kinds())
def test_only_what_costs_pods_their_devices_through_the_kubelet_is_an_event(name: str) -> None:
    condition = Condition(kinds()[name], "broken")
    inventory = SimpleNamespace(snapshot=Snapshot(0, []))
    watch = Watch(SimpleNamespace(resource_name=RESOURCE, conditions=lambda: [condition], inventory=inventory))
    reasons = {
        "not-registered": ["PluginNotRegistered"],
        "kubelet-disagrees": ["KubeletLostDevices"],
        "second-plugin": ["SecondPlugin"],
    }
    assert [each.reason for each in watch.at(0.0, 100.0)] == reasons.get(condition.kind.name, [])


class Devices:
    """Watches devices, whose snapshots a test makes."""

    def __init__(self, **reasons: str) -> None:
        """Create devices by their reasons, which are empty for healthy ones, and observe them for the first time."""
        self._inventory = SimpleNamespace(snapshot=Snapshot(0, []))
        server = SimpleNamespace(resource_name=RESOURCE, conditions=list, inventory=self._inventory)
        self._watch, self._now = Watch(server), 0.0
        assert self.become(**reasons) == []

    def replace(self, **reasons: str) -> None:
        """Publish other devices."""
        devices = [Device(device_id, reason) for device_id, reason in reasons.items()]
        self._inventory.snapshot = Snapshot(self._inventory.snapshot.revision + 1, devices)

    def become(self, **reasons: str) -> list[str]:
        """Publish other devices, and return the messages about them."""
        self.replace(**reasons)
        self._now += DELAY
        return [occurrence.message for occurrence in self._watch.at(self._now, self._now + DELAY)]


def test_devices_that_become_unhealthy_or_vanish_are_lost_once() -> None:
    devices = Devices(a="", b="", c="", d="foreign-mount")
    assert devices.become(a="", b="missing", d="missing") == [
        f"2 devices of {RESOURCE} lost: 1 missing, 1 removed (b, c); 1 of 3 are healthy"
    ], "d was never healthy"
    assert devices.become(a="", b="not-binder") == [], "b is unhealthy for another reason"
    assert devices.become(a="") == [], "b vanishes as well"


def test_only_lost_devices_recover() -> None:
    devices = Devices(a="", b="", c="missing")
    devices.become(a="missing", b="missing", c="missing")
    assert devices.become(a="", b="missing", c="", new="") == [
        f"1 device of {RESOURCE} healthy again (a); 1 device still lost; 3 of 4 are healthy"
    ]
    assert devices.become(a="missing", b="", c="", new="") == [
        f"1 device of {RESOURCE} lost: 1 missing (a); 3 of 4 are healthy",
        f"1 device of {RESOURCE} healthy again (b); 1 device still lost; 3 of 4 are healthy",
    ]


def test_messages_have_numbers_reasons_and_the_first_names() -> None:
    names = [f"phone{number}" for number in range(8)]
    devices = Devices(**dict.fromkeys(names, ""))
    message = (
        f"7 devices of {RESOURCE} lost: 1 missing, 6 not-binder "
        "(phone0, phone1, phone2, phone3, phone4 and 2 others); 1 of 8 are healthy"
    )
    assert devices.become(phone0="missing", **dict.fromkeys(names[1:7], "not-binder"), phone7="") == [message]
    assert devices.become(**dict.fromkeys(names[:6], "not-binder"), phone6="", phone7="") == [
        f"1 device of {RESOURCE} healthy again (phone6); 6 devices still lost; 2 of 8 are healthy"
    ]
