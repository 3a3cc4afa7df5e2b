"""The history of binder devices from scan to scan."""

from __future__ import annotations

import pytest

from aosp_plugin.binder.discovery.binder_device import BinderDevice, FileSystem, Identity, Kind
from aosp_plugin.binder.discovery.health import Reason, Verify, evaluate
from aosp_plugin.binder.discovery.history import TrackedDevice, track

TTL = 300.0
FS, NEW_FS = (70, 1), (70, 2)
MISSING, REPLACED, NOT_A_DEVICE = {"b1": Reason.MISSING}, {"b1": Reason.REPLACED}, {"b1": Reason.NOT_A_DEVICE}
HEALTHY: dict[str, Reason | None] = {"b1": None}
DROPPED: dict[str, Reason | None] = {}


def binder_device(kind: Kind = Kind.BINDERFS, *, name: str = "b1", file_system: FileSystem = FS) -> BinderDevice:
    """Return a binder device; it exists unless its kind is ABSENT."""
    identity = None if kind is Kind.ABSENT else Identity(file_system[0], 1, 2, file_system[1])
    return BinderDevice(name, f"/dev/{name}", kind, identity)


PRESENT, REMOUNTED = [binder_device()], [binder_device(file_system=NEW_FS)]
DANGLING, FILE = [binder_device(Kind.ABSENT)], [binder_device(Kind.FILE)]
GONE: list[BinderDevice] = []


class Tracker:
    """Consecutive scans of a host at level char."""

    def __init__(self, ttl: float = TTL) -> None:
        self.tracked: dict[str, TrackedDevice] = {}
        self._ttl = ttl

    def scan(self, now: float, devices: list[BinderDevice]) -> dict[str, Reason | None]:
        """Scan at this time and return the reasons."""
        self.tracked = track(
            self.tracked, devices, now, self._ttl, lambda device, expected: evaluate(device, Verify.CHAR, expected)
        )
        return {name: known.reason for name, known in self.tracked.items()}


@pytest.mark.parametrize(
    ("scans", "reasons"),
    [
        ([(7.0, PRESENT)], HEALTHY),
        ([(0.0, PRESENT), (1.0, GONE)], MISSING),
        ([(0.0, PRESENT), (1.0, GONE), (2.0, PRESENT)], HEALTHY),
        ([(0.0, PRESENT), (9.0, GONE), (8.9 + TTL, GONE)], MISSING),
        ([(0.0, PRESENT), (9.0, GONE), (9.0 + TTL, GONE)], DROPPED),
        ([(0.0, FILE), (10 * TTL, FILE)], NOT_A_DEVICE),
        ([(0.0, FILE), (1.0, REMOUNTED)], HEALTHY),  # it was never healthy, so no container got the former file
        ([(0.0, PRESENT), (5.0, REMOUNTED)], REPLACED),
        ([(0.0, PRESENT), (5.0, REMOUNTED), (4.9 + TTL, REMOUNTED)], REPLACED),
        ([(0.0, PRESENT), (5.0, REMOUNTED), (5.0 + TTL, REMOUNTED)], HEALTHY),
        ([(0.0, PRESENT), (1.0, REMOUNTED), (2.0, PRESENT)], HEALTHY),  # a mount that covered it was removed
        ([(0.0, PRESENT), (1.0, GONE), (2.0, REMOUNTED)], REPLACED),
        ([(0.0, PRESENT), (1.0, GONE), (1.0 + TTL, REMOUNTED)], HEALTHY),
        ([(0.0, PRESENT), (1.0, REMOUNTED), (200.0, GONE), (199.0 + TTL, GONE)], MISSING),  # the TTL starts again
        ([(0.0, PRESENT), (1.0, REMOUNTED), (1.0 + TTL, GONE)], DROPPED),
        ([(0.0, DANGLING), (TTL, DANGLING), (TTL + 1.0, DANGLING)], MISSING),
        ([(0.0, DANGLING), (1.0, REMOUNTED)], HEALTHY),
        ([(0.0, DANGLING), (1.0, GONE), (TTL, GONE)], DROPPED),
    ],
)
def test_reason_depends_on_the_scans_before(
    scans: list[tuple[float, list[BinderDevice]]], reasons: dict[str, Reason | None]
) -> None:
    """Until the TTL has expired, running containers may have devices of the old binderfs."""
    tracker = Tracker()
    assert [tracker.scan(now, devices) for now, devices in scans][-1] == reasons


def test_healthy_device_has_its_file_system_and_the_time_of_the_last_change() -> None:
    tracker = Tracker()
    for now, devices, since in ((7.0, PRESENT, 7.0), (8.0, PRESENT, 7.0), (9.0, GONE, 9.0), (10.0, PRESENT, 10.0)):
        tracker.scan(now, devices)
        assert (tracker.tracked["b1"].since, tracker.tracked["b1"].file_system) == (since, FS)


def test_ttl_is_that_of_each_device() -> None:
    """A TTL of zero drops a missing device at the next scan."""
    tracker = Tracker(ttl=0.0)
    b2 = binder_device(name="b2")
    tracker.scan(0.0, [*PRESENT, b2])
    assert tracker.scan(1.0, [b2]) == {"b1": Reason.MISSING, "b2": None}
    assert tracker.scan(1.0, GONE) == {"b2": Reason.MISSING}


def test_track_does_not_change_the_history() -> None:
    """Another thread may read it at the same time."""
    tracker = Tracker()
    tracker.scan(0.0, PRESENT)
    before = tracker.tracked
    copy = dict(before)
    tracker.scan(1.0, GONE)
    assert before == copy
