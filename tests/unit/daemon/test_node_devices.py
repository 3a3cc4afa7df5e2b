"""Which devices an Event on the Node reports as lost and as recovered."""

from __future__ import annotations

from aosp_plugin.daemon.node_devices import DeviceChanges, LostDevices, lost_message, recovered_message
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.inventory import Snapshot


def snapshot(revision: int, **reasons: str) -> Snapshot:
    """Return a snapshot with a device for each reason, which is empty for a healthy one."""
    return Snapshot(revision, [Device(device_id, reason) for device_id, reason in reasons.items()])


def test_the_first_snapshot_has_lost_nothing() -> None:
    lost = LostDevices()
    assert lost.revision == 0
    assert lost.compare(snapshot(3, a="missing", b="")) == DeviceChanges({}, (), 0)
    assert lost.revision == 3


def test_devices_that_become_unhealthy_or_vanish_are_lost_once() -> None:
    lost = LostDevices()
    lost.compare(snapshot(1, a="", b="", c="", d="foreign-mount"))
    assert lost.compare(snapshot(2, a="", b="missing", d="missing")).lost == {"b": "missing", "c": "removed"}
    changes = lost.compare(snapshot(3, a="", b="not-binder"))
    assert changes == DeviceChanges({}, [], 2), "b is unhealthy for another reason, and d was never healthy"
    assert lost.compare(snapshot(4, a="")).lost == {}, "b vanishes as well"


def test_only_lost_devices_recover() -> None:
    lost = LostDevices()
    lost.compare(snapshot(1, a="", b="", c="missing"))
    lost.compare(snapshot(2, a="missing", b="missing", c="missing"))
    assert lost.compare(snapshot(3, a="", b="missing", c="", new="")) == DeviceChanges({}, ["a"], 1)
    assert lost.compare(snapshot(4, a="missing", b="", c="", new="")) == DeviceChanges({"a": "missing"}, ["b"], 0)


def test_a_device_that_is_lost_and_back_between_two_snapshots_is_not_reported() -> None:
    lost = LostDevices()
    lost.compare(snapshot(1, a=""))
    assert lost.compare(snapshot(3, a="")) == DeviceChanges({}, [], 0)


def test_messages_have_numbers_reasons_and_the_first_names() -> None:
    lost = LostDevices()
    names = [f"phone{number}" for number in range(8)]
    lost.compare(snapshot(1, **dict.fromkeys(names, "")))
    after = snapshot(2, **{"phone0": "missing"} | dict.fromkeys(names[1:7], "not-binder") | {"phone7": ""})
    changes = lost.compare(after)
    assert lost_message("aosp.io/phone", changes, after) == (
        "7 devices of aosp.io/phone lost: 1 missing, 6 not-binder "
        "(phone0, phone1, phone2, phone3, phone4 and 2 others); 1 of 8 are healthy"
    )
    back = snapshot(3, **dict.fromkeys(names[:6], "not-binder") | {"phone6": "", "phone7": ""})
    assert recovered_message("aosp.io/phone", lost.compare(back), back) == (
        "1 device of aosp.io/phone healthy again (phone6); 6 devices still lost; 2 of 8 are healthy"
    )
