"""Which conditions and which devices of a resource an Event on the Node reports, and when their end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.timings import DEFAULT
from aosp_plugin.report.node_events import Occurrence, ResourceWatch
from tests.backends import binder_backend
from tests.support import Clock

RESOURCE = "aosp.io/binder"


class Plugin(DevicePlugin):
    """A plugin in the state that a test sets."""

    registered = True
    unready = ""
    notice = ""
    overridden = False


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
    plugin = Plugin(binder_backend(tmp_path))
    watch = Watch(plugin)
    assert watch.at(0.0, 100.0) == []
    plugin.registered, plugin.unready = False, "waiting for kubelet"
    assert watch.at(100.0, 114.9) == []
    message = f"{RESOURCE}: the kubelet has not registered the plugin: waiting for kubelet"
    assert watch.at(115.0, 116.0) == [Occurrence("Warning", "PluginNotRegistered", message)]
    plugin.registered = True
    message = f"the kubelet has registered the plugin of {RESOURCE} again"
    assert watch.at(117.0, 118.0) == [Occurrence("Normal", "PluginRegistered", message)]
    await plugin.discard()


async def test_a_kubelet_with_fewer_devices_is_reported_at_once(tmp_path: Path) -> None:
    plugin = Plugin(binder_backend(tmp_path))
    watch = Watch(plugin)
    plugin.confirmation.record(3, 12)
    assert watch.at(0.0) == [], "one answer is no disagreement yet"
    plugin.confirmation.problem = "the kubelet has 3 of 12 healthy devices, next registration in 15 s"
    message = f"{RESOURCE}: the kubelet has 3 of 12 healthy devices"
    assert watch.at(5.0, 6.0) == [Occurrence("Warning", "KubeletLostDevices", message)]
    plugin.confirmation.problem = ""
    (end,) = watch.at(7.0, 8.0)
    assert (end.type, end.reason) == ("Normal", "KubeletHasDevices")
    await plugin.discard()


async def test_a_second_plugin_is_reported_by_the_later_one_if_it_stays(tmp_path: Path) -> None:
    plugin = Plugin(binder_backend(tmp_path))
    watch = Watch(plugin)
    plugin.notice = "another plugin of this resource runs on this node: other.sock"
    assert watch.at(0.0, 59.0) == [], "as in a rolling update"
    (begin,) = watch.at(60.0, 61.0)
    assert begin == Occurrence("Warning", "SecondPlugin", f"{RESOURCE}: {plugin.notice}")
    plugin.notice = ""
    (end,) = watch.at(62.0)
    assert (end.type, end.reason) == ("Normal", "SecondPluginEnded")
    plugin.notice, plugin.overridden = "another plugin, and has taken over", True
    assert watch.at(100.0, 200.0) == []
    await plugin.discard()


class Devices:
    """Watches devices, whose snapshots a test makes."""

    def __init__(self, **reasons: str) -> None:
        """Create devices by their reasons, which are empty for healthy ones, and observe them for the first time."""
        self._inventory = SimpleNamespace(snapshot=Snapshot(0, []))
        server = SimpleNamespace(
            resource_name=RESOURCE, registered=True, driver=object(), notice="", inventory=self._inventory
        )
        self._watch, self._now = Watch(server), 0.0
        assert self.become(**reasons) == []

    def replace(self, **reasons: str) -> None:
        """Publish other devices."""
        devices = [Device(device_id, reason) for device_id, reason in reasons.items()]
        self._inventory.snapshot = Snapshot(self._inventory.snapshot.revision + 1, devices)

    def become(self, **reasons: str) -> list[str]:
        """Publish other devices, and return the messages about them."""
        self.replace(**reasons)
        self._now += DEFAULT.event_delay
        return [occurrence.message for occurrence in self._watch.at(self._now, self._now + DEFAULT.event_delay)]


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
