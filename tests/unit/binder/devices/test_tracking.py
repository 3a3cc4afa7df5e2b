"""The history of binder devices from scan to scan."""

from collections.abc import Callable

import pytest

from aosp_plugin.binder.devices.health import Reason, Verify
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, FileSystem, Kind
from aosp_plugin.binder.devices.store import Past, track

TTL = 300.0
FS, NEW_FS = (70, 1), (70, 2)
MISSING, REPLACED, NOT_A_DEVICE = {"b1": Reason.MISSING}, {"b1": Reason.REPLACED}, {"b1": Reason.NOT_A_DEVICE}
HEALTHY: dict[str, Reason | None] = {"b1": None}
DROPPED: dict[str, Reason | None] = {}


Entries = dict[str, BinderDevice]


def binder_device(kind: Kind = Kind.BINDERFS, *, name: str = "b1", file_system: FileSystem = FS) -> Entries:
    """Return what a scan finds of a binder device."""
    return {name: BinderDevice(name, f"/dev/{name}", kind, FileIdentity(file_system[0], 1, 2, file_system[1]))}


PRESENT, REMOUNTED = binder_device(), binder_device(file_system=NEW_FS)
DANGLING, FILE = {"b1": BinderDevice("b1", "/dev/b1", Kind.ABSENT)}, binder_device(Kind.FILE)
GONE: Entries = {}


class Tracker:
    """Consecutive scans of a host."""

    def __init__(self, ttl: float = TTL, verify: Verify = Verify.CHAR) -> None:
        self.devices: Entries = {}
        self.past: dict[str, Past] = {}
        self._ttl = ttl
        self._verify = verify

    def scan(
        self, now: float, found: Entries, probe: Callable[[BinderDevice], bool] | None = None
    ) -> dict[str, Reason | None]:
        """Scan at this time and return the reasons."""
        self.devices, self.past = track(self.devices, self.past, {**found}, now, self._ttl, self._verify, probe)
        return {name: self.past[name].reason if name in self.past else None for name in self.devices}


@pytest.mark.parametrize(
    ("scans", "reasons"),
    [
        ([(0.0, PRESENT), (1.0, GONE), (2.0, PRESENT)], HEALTHY),
        ([(0.0, PRESENT), (9.0, GONE), (8.9 + TTL, GONE)], MISSING),
        ([(0.0, PRESENT), (9.0, GONE), (9.0 + TTL, GONE)], DROPPED),
        ([(0.0, FILE), (10 * TTL, FILE)], NOT_A_DEVICE),
        ([(0.0, FILE), (1.0, REMOUNTED)], HEALTHY),  # it was never healthy, so no container got the former file
        ([(0.0, PRESENT), (5.0, REMOUNTED), (4.9 + TTL, REMOUNTED)], REPLACED),
        ([(0.0, PRESENT), (5.0, REMOUNTED), (9.0, REMOUNTED), (5.0 + TTL, REMOUNTED)], HEALTHY),
        ([(0.0, PRESENT), (1.0, REMOUNTED), (2.0, PRESENT)], HEALTHY),  # a mount that covered it was removed
        ([(0.0, PRESENT), (1.0, GONE), (2.0, REMOUNTED)], REPLACED),
        ([(0.0, PRESENT), (1.0, GONE), (1.0 + TTL, REMOUNTED)], HEALTHY),
        ([(0.0, PRESENT), (1.0, REMOUNTED), (200.0, GONE), (199.0 + TTL, GONE)], MISSING),  # the TTL starts again
        ([(0.0, PRESENT), (1.0, REMOUNTED), (1.0 + TTL, GONE)], DROPPED),
        ([(0.0, DANGLING), (TTL, DANGLING), (TTL + 1.0, DANGLING)], MISSING),
        ([(0.0, DANGLING), (1.0, GONE), (TTL, GONE)], DROPPED),
    ],
)
def test_reason_depends_on_the_scans_before(
    scans: list[tuple[float, Entries]], reasons: dict[str, Reason | None]
) -> None:
    """Until the TTL has expired, running containers may have devices of the old binderfs."""
    tracker = Tracker()
    assert [tracker.scan(now, devices) for now, devices in scans][-1] == reasons


def test_unhealthy_device_has_its_file_system_and_the_time_of_the_last_change() -> None:
    """A healthy one has no history."""
    tracker = Tracker()
    for now, found, since in ((7.0, PRESENT, None), (9.0, GONE, 9.0), (10.0, GONE, 9.0), (11.0, REMOUNTED, 11.0)):
        reason = tracker.scan(now, found)["b1"]
        assert tracker.past.get("b1") == (None if since is None else Past(FS, reason, since))
    tracker.scan(12.0, PRESENT)
    assert tracker.past == {}


def test_device_is_accepted_on_any_file_system_once() -> None:
    tracker = Tracker()
    tracker.scan(0.0, PRESENT)
    tracker.past["b1"] = Past(None, None, 0.0)
    assert tracker.scan(1.0, REMOUNTED) == HEALTHY
    assert tracker.scan(2.0, PRESENT) == REPLACED


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_probe_decides_about_devices_that_are_open_to_their_pods_otherwise(fails_at: int) -> None:
    tracker, probed = Tracker(verify=Verify.PROBE), list[str]()

    def scan(now: int, found: Entries) -> Reason | None:
        def probe(device: BinderDevice) -> bool:
            probed.append(device.name)
            return now != fails_at

        return tracker.scan(now, found, probe)["b1"]

    expected = [Reason.PROBE_FAILED if now == fails_at else None for now in range(3)]
    assert [scan(now, PRESENT) for now in range(3)] == expected
    assert scan(3, REMOUNTED) is (Reason.PROBE_FAILED if fails_at == 3 else Reason.REPLACED)
    assert scan(4, FILE) is Reason.NOT_A_DEVICE
    assert probed == ["b1"] * 4


def test_ttl_is_that_of_each_device() -> None:
    """A TTL of zero drops a missing device at the next scan."""
    tracker = Tracker(ttl=0.0)
    b2 = binder_device(name="b2")
    tracker.scan(0.0, {**PRESENT, **b2})
    assert tracker.scan(1.0, b2) == {"b1": Reason.MISSING, "b2": None}
    assert tracker.scan(1.0, GONE) == {"b2": Reason.MISSING}
