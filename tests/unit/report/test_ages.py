"""Since when states last."""

from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.podresources_client import Owner
from aosp_plugin.report.observation import Ages
from tests.support import Clock

PHONE, OTHER = Owner("games", "phone-1", "android"), Owner("shop", "phone-2", "android")


def test_device_is_unhealthy_since_the_list_with_its_first_reason() -> None:
    clock = Clock()
    ages = Ages(clock)
    ages.read(Snapshot(1, [Device("a"), Device("b", "missing")]), {})
    clock.now = 200.0
    ages.read(Snapshot(2, [Device("a", "missing"), Device("b", "replaced")]), {})
    assert ages.since == {"a": 200.0, "b": 100.0}
    ages.read(Snapshot(3, [Device("a"), Device("b", "replaced")]), {})
    clock.now = 300.0
    ages.read(Snapshot(4, [Device("a", "missing")]), {})
    assert ages.since == {"a": 300.0}


def test_device_is_allocated_since_it_has_its_present_owner() -> None:
    clock, devices = Clock(), Snapshot(1, [Device("a"), Device("b")])
    ages = Ages(clock)
    ages.read(devices, {"a": (PHONE,), "b": (PHONE,)})
    clock.now = 200.0
    ages.read(devices, {"a": (PHONE,), "b": (OTHER,)})
    assert ages.since == {"a": 100.0, "b": 200.0}
    ages.read(devices, {})
    assert ages.since == {}


def test_device_is_gone_since_it_is_not_listed_or_since_a_pod_is_known_to_have_it() -> None:
    clock, owners = Clock(), {"a": (PHONE,), "z": (PHONE,)}
    ages = Ages(clock)
    ages.read(Snapshot(0, []), owners)
    assert ages.gone == 0, "before the first scan"
    clock.now = 200.0
    ages.read(Snapshot(1, [Device("a")]), owners)
    clock.now = 300.0
    ages.read(Snapshot(2, []), owners)
    assert (ages.gone, ages.since) == (2, {"a": 300.0, "z": 200.0})
    ages.read(Snapshot(3, [Device("a")]), {"a": (PHONE,)})
    assert (ages.gone, ages.since) == (0, {"a": 300.0})
