"""Which plugin counts, and what the end of one leads to, in each generation of the kubelet."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from aosp_plugin.testing.behaviour import Behaviour
from aosp_plugin.testing.tracking import End, Tracker, tracker_for


@dataclass(eq=False)
class Plugin:
    """As much of an endpoint as a tracker looks at."""

    path: str
    resource: str = "r/r"


def tracker(behaviour: Behaviour) -> Tracker[Plugin]:
    return tracker_for(behaviour)


def connect(tracked: Tracker[Plugin], plugin: Plugin) -> Plugin:
    tracked.dialling(plugin)
    assert tracked.objection(plugin) is None
    tracked.connected(plugin)
    return plugin


@pytest.mark.parametrize("behaviour", Behaviour)
def test_the_last_one_to_register_counts(behaviour: Behaviour) -> None:
    """A second plugin of a resource takes over."""
    tracked = tracker(behaviour)
    connect(tracked, Plugin("a"))
    b = connect(tracked, Plugin("b"))
    assert tracked.current == {"r/r": b}


@pytest.mark.parametrize("behaviour", Behaviour)
def test_the_end_of_the_only_plugin_loses_the_devices(behaviour: Behaviour) -> None:
    """Its connection is closed; it stays the current one, as a stopped endpoint."""
    tracked = tracker(behaviour)
    a = connect(tracked, Plugin("a"))
    assert tracked.ended(a) == End(close=a, lost=True)
    assert tracked.current == {"r/r": a}


@pytest.mark.parametrize("behaviour", [Behaviour.OLD, Behaviour.NEW])
def test_the_end_of_a_replaced_plugin_means_nothing(behaviour: Behaviour) -> None:
    """Only its own connection is closed; the new one goes on."""
    tracked = tracker(behaviour)
    a, b = connect(tracked, Plugin("a")), connect(tracked, Plugin("b"))
    assert tracked.ended(a) == End(close=a, lost=False)
    assert tracked.current == {"r/r": b}
    assert tracked.ended(b) == End(close=b, lost=True)


def test_the_bug_disconnects_the_new_plugin_when_the_old_one_ends() -> None:
    """1.25 to 1.36: the client is looked up by name, and that is the new one; its own end then does nothing."""
    tracked = tracker(Behaviour.BUGGY)
    a, b = connect(tracked, Plugin("a")), connect(tracked, Plugin("b"))
    assert tracked.ended(a) == End(close=b, lost=True)
    assert tracked.ended(b) == End()


def test_the_bug_forgets_the_old_client_when_a_new_one_fails() -> None:
    """A failed registration takes the name away, and the old plugin's end goes unnoticed."""
    tracked = tracker(Behaviour.BUGGY)
    a, b = connect(tracked, Plugin("a")), Plugin("b")
    tracked.dialling(b)
    tracked.failed(b)
    assert tracked.ended(a) == End()


@pytest.mark.parametrize("behaviour", [Behaviour.OLD, Behaviour.NEW])
def test_a_failed_registration_leaves_the_old_plugin_alone(behaviour: Behaviour) -> None:
    """The plugin that was there still counts, and its end still matters."""
    tracked = tracker(behaviour)
    a, b = connect(tracked, Plugin("a")), Plugin("b")
    tracked.dialling(b)
    tracked.failed(b)
    assert tracked.current == {"r/r": a}
    assert tracked.ended(a) == End(close=a, lost=True)


def test_the_bug_loses_nothing_that_was_never_connected() -> None:
    """A name whose registration is under way when an unrelated end comes has no devices to lose."""
    tracked = tracker(Behaviour.BUGGY)
    a, b = connect(tracked, Plugin("a")), Plugin("b")
    tracked.current.clear()  # the grace period is over
    tracked.dialling(b)
    assert tracked.ended(a) == End(close=b, lost=False)


def test_the_survivor_is_promoted() -> None:
    """1.37: when the plugin that counts ends, the youngest of the others takes its place."""
    tracked = tracker(Behaviour.NEW)
    connect(tracked, Plugin("a"))
    b, c = connect(tracked, Plugin("b")), connect(tracked, Plugin("c"))
    assert tracked.ended(c) == End(close=c, lost=False)
    assert tracked.current == {"r/r": b}


def test_the_same_path_twice_is_refused_until_the_first_has_ended() -> None:
    """1.37 names the path; another resource may use it."""
    tracked = tracker(Behaviour.NEW)
    a = connect(tracked, Plugin("/dir/a"))
    assert tracked.objection(Plugin("/dir/a")) == "device plugin already connected: /dir/a"
    assert tracked.objection(Plugin("/dir/a", resource="r/other")) is None
    tracked.ended(a)
    assert tracked.objection(Plugin("/dir/a")) is None
