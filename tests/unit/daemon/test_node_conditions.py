"""When a condition of a resource is worth an Event on the Node, and when its end is."""  # wording: ok

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aosp_plugin.daemon.node_conditions import Conditions, Occurrence
from aosp_plugin.framework import DevicePlugin
from tests.backends import binder_backend

if TYPE_CHECKING:
    from pathlib import Path

RESOURCE = "aosp.io/binder"


class Plugin(DevicePlugin):
    """A plugin in the state that a test sets."""

    registered = True
    unready = ""
    notice = ""
    overridden = False


def states(conditions: Conditions, plugin: Any, *times: float) -> list[Occurrence]:
    return [occurrence for now in times for occurrence in conditions.observe(plugin, now)]


async def test_a_registration_that_is_lost_for_long_is_reported_with_its_reason_and_its_end(tmp_path: Path) -> None:
    plugin, conditions = Plugin(binder_backend(tmp_path)), Conditions(RESOURCE)
    assert states(conditions, plugin, 0.0, 100.0) == []
    plugin.registered, plugin.unready = False, "waiting for kubelet"
    assert states(conditions, plugin, 100.0, 114.9) == []
    message = f"{RESOURCE}: the kubelet has not registered the plugin: waiting for kubelet"
    assert states(conditions, plugin, 115.0, 116.0) == [Occurrence("Warning", "PluginNotRegistered", message)]
    plugin.registered = True
    message = f"the kubelet has registered the plugin of {RESOURCE} again"
    assert states(conditions, plugin, 117.0, 118.0) == [Occurrence("Normal", "PluginRegistered", message)]
    await plugin.discard()


async def test_a_registration_that_is_soon_back_is_not_reported(tmp_path: Path) -> None:
    plugin, conditions = Plugin(binder_backend(tmp_path)), Conditions(RESOURCE)
    for began in (0.0, 14.0, 28.0):
        plugin.registered = False
        assert states(conditions, plugin, began, began + 10.0) == []
        plugin.registered = True
        assert states(conditions, plugin, began + 11.0) == []
    await plugin.discard()


async def test_a_kubelet_with_fewer_devices_is_reported_at_once(tmp_path: Path) -> None:
    plugin, conditions = Plugin(binder_backend(tmp_path)), Conditions(RESOURCE)
    plugin.confirmation.record(3, 12)
    assert states(conditions, plugin, 0.0) == [], "one answer is no disagreement yet"
    plugin.confirmation.problem = "the kubelet has 3 of 12 healthy devices, next registration in 15 s"
    message = f"{RESOURCE}: the kubelet has 3 of 12 healthy devices"
    assert states(conditions, plugin, 5.0, 6.0) == [Occurrence("Warning", "KubeletLostDevices", message)]
    plugin.confirmation.problem = ""
    (end,) = states(conditions, plugin, 7.0, 8.0)
    assert (end.type, end.reason) == ("Normal", "KubeletHasDevices")
    await plugin.discard()


async def test_a_second_plugin_is_reported_by_the_later_one_if_it_stays(tmp_path: Path) -> None:
    plugin, conditions = Plugin(binder_backend(tmp_path)), Conditions(RESOURCE)
    plugin.notice = "another plugin of this resource runs on this node: other.sock"
    assert states(conditions, plugin, 0.0, 59.0) == [], "as in a rolling update"
    (begin,) = states(conditions, plugin, 60.0, 61.0)
    assert begin == Occurrence("Warning", "SecondPlugin", f"{RESOURCE}: {plugin.notice}")
    plugin.notice = ""
    (end,) = states(conditions, plugin, 62.0)
    assert (end.type, end.reason) == ("Normal", "SecondPluginEnded")
    plugin.notice, plugin.overridden = "another plugin, and has taken over", True
    assert states(conditions, plugin, 100.0, 200.0) == []
    await plugin.discard()


async def test_what_a_driver_notices_of_claims_is_no_second_plugin(tmp_path: Path) -> None:
    class Driver:
        registered = True
        unready = ""
        notice = "a claim cannot be released"

    assert states(Conditions(RESOURCE), Driver(), 0.0, 100.0) == []
