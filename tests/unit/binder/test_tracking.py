"""The history of binder devices from scan to scan."""

from __future__ import annotations

import pytest

from aosp_plugin.binder.discovery.binder_device import BinderDevice, FileSystem, Identity, Kind
from aosp_plugin.binder.discovery.health import Reason, Verify, evaluate
from aosp_plugin.binder.discovery.store import TrackedDevice, track

TTL = 300.0
FS, NEW_FS = (70, 1), (70, 2)


def binder_device(kind: Kind = Kind.BINDERFS, *, name: str = "b1", file_system: FileSystem = FS) -> BinderDevice:
    """Return a binder device; it exists unless its kind is ABSENT."""
    identity = None if kind is Kind.ABSENT else Identity(file_system[0], 1, 2, file_system[1])
    return BinderDevice(name, f"/dev/{name}", kind, identity)


ABSENT = binder_device(Kind.ABSENT)


class Tracker:
    """Consecutive scans of a host at level char."""

    def __init__(self, ttl: float = TTL) -> None:
        self.tracked: dict[str, TrackedDevice] = {}
        self._ttl = ttl

    def scan(self, now: float, *devices: BinderDevice) -> dict[str, Reason | None]:
        """Scan at this time and return the reasons."""
        self.tracked = track(
            self.tracked, devices, now, self._ttl, lambda device, expected: evaluate(device, Verify.CHAR, expected)
        )
        return {name: known.reason for name, known in self.tracked.items()}


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


def test_new_device_is_healthy(tracker: Tracker) -> None:
    assert tracker.scan(7.0, binder_device()) == {"b1": None}
    assert tracker.tracked == {"b1": TrackedDevice(binder_device(), FS, None, 7.0)}


def test_vanished_device_is_missing_until_it_returns(tracker: Tracker) -> None:
    tracker.scan(0.0, binder_device())
    assert tracker.scan(1.0) == {"b1": Reason.MISSING}
    assert tracker.tracked["b1"] == TrackedDevice(ABSENT, FS, Reason.MISSING, 1.0)
    assert tracker.scan(2.0, binder_device()) == {"b1": None}
    assert tracker.tracked["b1"].since == 2.0


def test_missing_device_is_dropped_after_the_ttl(tracker: Tracker) -> None:
    """The TTL begins with the scan that first missed it, separately for each device."""
    tracker.scan(0.0, binder_device(), binder_device(name="b2"))
    tracker.scan(10.0, binder_device(name="b2"))
    tracker.scan(200.0)
    assert tracker.scan(10.0 + TTL - 0.1) == {"b1": Reason.MISSING, "b2": Reason.MISSING}
    assert tracker.scan(10.0 + TTL) == {"b2": Reason.MISSING}


def test_ttl_of_zero_drops_a_missing_device_at_the_next_scan() -> None:
    tracker = Tracker(ttl=0.0)
    tracker.scan(0.0, binder_device())
    assert tracker.scan(1.0) == {"b1": Reason.MISSING}
    assert tracker.scan(1.0) == {}


def test_unhealthy_device_that_exists_is_never_dropped(tracker: Tracker) -> None:
    tracker.scan(0.0, binder_device(Kind.FILE))
    assert tracker.scan(10 * TTL, binder_device(Kind.FILE)) == {"b1": Reason.NOT_A_DEVICE}
    assert tracker.tracked["b1"].since == 0.0


def test_replaced_device_is_healthy_after_the_ttl(tracker: Tracker) -> None:
    """Until then, running containers may have devices of the old binderfs."""
    tracker.scan(0.0, binder_device())
    assert tracker.scan(5.0, binder_device(file_system=NEW_FS)) == {"b1": Reason.REPLACED}
    assert tracker.scan(5.0 + TTL - 0.1, binder_device(file_system=NEW_FS)) == {"b1": Reason.REPLACED}
    assert tracker.tracked["b1"].since == 5.0
    assert tracker.scan(5.0 + TTL, binder_device(file_system=NEW_FS)) == {"b1": None}
    assert tracker.tracked["b1"].file_system == NEW_FS


def test_device_on_its_old_file_system_again_is_healthy(tracker: Tracker) -> None:
    """For example, a mount that covered the binderfs was removed."""
    tracker.scan(0.0, binder_device())
    tracker.scan(1.0, binder_device(file_system=NEW_FS))
    assert tracker.scan(2.0, binder_device()) == {"b1": None}


def test_missing_device_that_returns_on_another_file_system_is_replaced(tracker: Tracker) -> None:
    tracker.scan(0.0, binder_device())
    tracker.scan(1.0)
    assert tracker.scan(2.0, binder_device(file_system=NEW_FS)) == {"b1": Reason.REPLACED}
    assert tracker.tracked["b1"].since == 2.0


def test_missing_device_that_returns_after_the_ttl_is_new(tracker: Tracker) -> None:
    """This holds without a scan in between that could have dropped it."""
    tracker.scan(0.0, binder_device())
    tracker.scan(1.0)
    assert tracker.scan(1.0 + TTL, binder_device(file_system=NEW_FS)) == {"b1": None}


def test_replaced_device_that_vanishes_starts_a_new_ttl(tracker: Tracker) -> None:
    tracker.scan(0.0, binder_device())
    tracker.scan(1.0, binder_device(file_system=NEW_FS))
    assert tracker.scan(200.0) == {"b1": Reason.MISSING}
    assert tracker.scan(199.0 + TTL) == {"b1": Reason.MISSING}
    assert tracker.scan(200.0 + TTL) == {}


def test_replaced_device_that_vanishes_after_its_ttl_is_dropped_at_once(tracker: Tracker) -> None:
    tracker.scan(0.0, binder_device())
    tracker.scan(1.0, binder_device(file_system=NEW_FS))
    assert tracker.scan(1.0 + TTL) == {}


def test_dangling_link_is_missing_as_long_as_it_exists(tracker: Tracker) -> None:
    for now in (0.0, TTL, TTL + 1.0, 3 * TTL + 0.5):
        assert tracker.scan(now, ABSENT) == {"b1": Reason.MISSING}


def test_dangling_link_whose_target_appears_is_healthy(tracker: Tracker) -> None:
    """It was never healthy, so no file system is expected."""
    tracker.scan(0.0, ABSENT)
    assert tracker.tracked["b1"].file_system is None
    assert tracker.scan(1.0, binder_device(file_system=NEW_FS)) == {"b1": None}
    assert tracker.tracked["b1"].file_system == NEW_FS


def test_removed_dangling_link_is_dropped_after_the_ttl(tracker: Tracker) -> None:
    tracker.scan(0.0, ABSENT)
    assert tracker.scan(1.0) == {"b1": Reason.MISSING}
    assert tracker.scan(TTL) == {}


def test_track_does_not_change_the_history(tracker: Tracker) -> None:
    """Another thread may read it at the same time."""
    tracker.scan(0.0, binder_device())
    before = tracker.tracked
    copy = dict(before)
    tracker.scan(1.0, binder_device(name="b2"))
    assert before == copy


def test_device_that_was_never_healthy_is_not_replaced(tracker: Tracker) -> None:
    """No container got the former file, so nothing holds it."""
    assert tracker.scan(0.0, binder_device(Kind.FILE)) == {"b1": Reason.NOT_A_DEVICE}
    assert tracker.scan(1.0, binder_device(file_system=NEW_FS)) == {"b1": None}
