"""The current plugin of a resource, and the effect of a plugin's end, in each generation of the kubelet."""

from dataclasses import dataclass

import pytest

from kubelet_standin.deviceplugin.tracking import EndEffect, Tracker, TrackerByName


@dataclass(eq=False)
class TrackedPlugin:
    """The attributes of an endpoint that trackers use."""

    path: str
    resource: str = "r/r"


def connect(tracker: Tracker[TrackedPlugin], path: str) -> TrackedPlugin:
    plugin = TrackedPlugin(path)
    tracker.on_dial(plugin)
    assert tracker.refusal(plugin) is None
    tracker.on_connected(plugin)
    return plugin


@pytest.mark.parametrize("tracker", [Tracker[TrackedPlugin](), TrackerByName[TrackedPlugin]()])
def test_failed_registration_keeps_the_old_plugin_unless_there_is_the_bug(tracker: Tracker[TrackedPlugin]) -> None:
    """The bug removes the old client with the failed one, so the end of the old plugin has no effect."""
    old, new = connect(tracker, "a"), TrackedPlugin("b")
    tracker.on_dial(new)
    tracker.on_failed(new)
    assert tracker.current == {"r/r": old}
    buggy = isinstance(tracker, TrackerByName)
    effect = EndEffect[TrackedPlugin]() if buggy else EndEffect(close=old, lost=True)
    assert tracker.on_end(old) == effect


def test_bug_loses_no_devices_of_a_plugin_that_is_not_connected_yet() -> None:
    tracker = TrackerByName[TrackedPlugin]()
    old, new = connect(tracker, "a"), TrackedPlugin("b")
    tracker.current.clear()  # the grace period is over
    tracker.on_dial(new)
    assert tracker.on_end(old) == EndEffect(close=new, lost=False)


def test_new_kubelet_refuses_a_connected_path() -> None:
    """Another resource may use the path, and so may a plugin after the first one has ended."""
    tracker = Tracker[TrackedPlugin]()
    plugin = connect(tracker, "/dir/a")
    assert tracker.refusal(TrackedPlugin("/dir/a")) == "device plugin already connected: /dir/a"
    assert tracker.refusal(TrackedPlugin("/dir/a", resource="r/other")) is None
    tracker.on_end(plugin)
    assert tracker.refusal(TrackedPlugin("/dir/a")) is None
