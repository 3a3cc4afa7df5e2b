"""What differs between two snapshots, and how the log names it."""

from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.scan_loop import _causes, _named


def snapshot(revision: int, **reasons: str) -> Snapshot:
    return Snapshot(revision, [Device(device_id, reason) for device_id, reason in reasons.items()])


def test_devices_are_named_with_what_they_are_now() -> None:
    """A new device that is unhealthy is named once, with its reason."""
    before = snapshot(1, a="", b="missing", c="missing", d="")
    now = snapshot(2, a="missing", b="", c="replaced", e="missing", f="")
    changes = now.changes_since(before)
    assert changes.unhealthy == {"missing": ["a", "e"], "replaced": ["c"]}
    assert (changes.removed, changes.healthy, changes.added) == (["d"], ["b"], ["e", "f"])
    assert _named(changes) == "a:missing,e:missing,c:replaced,d:removed,b:healthy,f:new"


def test_ten_devices_are_named() -> None:
    before = snapshot(1, **{f"p{number}": "" for number in range(1200)})
    now = snapshot(2, **{f"p{number}": "missing" for number in range(1200)})
    named = _named(now.changes_since(before)).split(",")
    assert (named[0], named[9], named[10:]) == ("p0:missing", "p9:missing", ["1190 more"])


def test_equal_snapshots_have_no_changes() -> None:
    assert _named(snapshot(2, a="", b="missing").changes_since(snapshot(1, a="", b="missing"))) == ""


def test_the_log_says_once_what_is_known_beyond_the_reason() -> None:
    held = "in-use-by-other-resource: pod default/phone has it as phone1 of example.com/tablet"
    now = Snapshot(2, [Device("a", "held", detail=held), Device("b", "held", detail=held), Device("c", "missing")])
    assert _causes(now, now.changes_since(snapshot(1))) == {"causes": held}
    assert _causes(now, now.changes_since(now)) == {}
