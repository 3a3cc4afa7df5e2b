"""When changed files are scanned, by a simulated clock and scans that take 5 ms."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.framework.events.pacing import (
    ANY,
    CALM,
    CAP,
    FREE_SCANS,
    LEVELS,
    MAX_CHANGED_PATHS,
    MOUNTS,
    QUIET,
    Pacing,
)

LONGEST_QUIET, LONGEST_CAP = QUIET * 2 ** (LEVELS - 1), CAP * 2 ** (LEVELS - 1)
SCAN = 0.005
ROUNDING = 1e-9


class Change(NamedTuple):
    """A change of a file."""

    at: float
    path: str


class Scan(NamedTuple):
    """A scan of changed files."""

    at: float
    paths: frozenset[str]


def every(pause: float, count: int, path: str = "{}", start: float = 0.0) -> list[Change]:
    """Return changes at equal intervals; ``{}`` in ``path`` is the number of the change."""
    return [Change(start + number * pause, path.format(number)) for number in range(count)]


def scans_after(changes: list[Change], pacing: Pacing | None = None) -> list[Scan]:
    """Return the scans that a subscriber runs, each as soon as it is due and the one before has ended."""
    pacing = pacing or Pacing()
    scans: list[Scan] = []
    remaining = sorted(changes, reverse=True)
    free_at = 0.0
    while (due := pacing.due()) is not None or remaining:
        scan_at = math.inf if due is None else max(due, free_at)
        if remaining and remaining[-1].at <= scan_at:
            change = remaining.pop()
            pacing.forget(change.at)
            pacing.note(change.path, change.at)
            continue
        taken = pacing.take(scan_at)
        assert taken.paths, "a scan is due and finds a change"
        scans.append(Scan(scan_at, frozenset(taken.paths)))
        free_at = scan_at + SCAN
    return scans


def waits(changes: list[Change], scans: list[Scan]) -> list[float]:
    """Return the seconds from each change to the next scan of its file."""
    return [
        min(scan.at for scan in scans if scan.at >= at and not scan.paths.isdisjoint({path, ANY})) - at
        for at, path in changes
    ]


def messages(changes: list[Change], scans: list[Scan]) -> int:
    """Return how many scans find a device in another state than before, if it appears or disappears at each change."""
    known, count = 0, 0
    for scan in scans:
        state = sum(at <= scan.at for at, _ in changes) % 2
        count += state != known
        known = state
    assert known == len(changes) % 2, "the last state is published"
    return count


def test_devices_that_appear_one_after_another_are_scanned_at_once() -> None:
    """However many there are: 150 ms apart, the plugin sends seven messages a second."""
    changes = every(0.15, 200)
    scans = scans_after(changes)
    assert len(scans) == 200
    assert max(waits(changes, scans)) <= QUIET + ROUNDING


def test_devices_that_appear_faster_share_scans() -> None:
    """For a moment, each is scanned at once."""
    changes = every(0.03, 600)
    scans = scans_after(changes)
    assert waits(changes, scans)[:FREE_SCANS] == pytest.approx([QUIET] * FREE_SCANS)
    assert len(scans) < 12 * 0.03 * 600
    assert max(waits(changes, scans)) <= LONGEST_CAP


@pytest.mark.parametrize(("pause", "limit"), [(0.005, 12), (0.05, 12), (0.5, 40)])
def test_flapping_device_causes_few_messages(pause: float, limit: int) -> None:
    """The limit is that of scans in 20 s; about half of them find the device as the last one did."""
    changes = every(pause, round(20 / pause), "flapping")
    assert messages(changes, scans_after(changes)) <= limit


@pytest.mark.parametrize(("flapping", "pause"), [(1, 0.005), (1, 0.05), (1, 0.5), (20, 0.005), (40, 0.05), (100, 0.09)])
def test_calm_devices_beside_flapping_ones_are_scanned_at_once(flapping: int, pause: float) -> None:
    """All flapping devices together cause few scans."""
    noise = [
        change
        for number in range(flapping)
        for change in every(pause, round(5 / pause), f"flapping{number}", start=number * pause / flapping)
    ]
    calm = every(0.157, 25, "calm{}", start=1.0)
    scans = scans_after([*noise, *calm])
    assert max(waits(calm, scans)) <= QUIET + SCAN + ROUNDING
    assert sum(not any(path.startswith("calm") for path in scan.paths) for scan in scans) <= 12


@pytest.mark.parametrize("pause", [0.005, 0.05, 0.5])
def test_end_of_flapping_is_scanned_soon(pause: float) -> None:
    changes = every(pause, 61, "flapping")
    scans = scans_after(changes)
    assert scans[-1].at - changes[-1].at <= LONGEST_QUIET + ROUNDING


def test_device_that_flapped_is_calm_again_after_a_pause() -> None:
    changes = [*every(0.05, 40, "device"), Change(10.0, "device")]
    assert waits(changes, scans_after(changes))[-1] == pytest.approx(QUIET)


@pytest.mark.parametrize(("count", "pause"), [(10_000, 0.0001), (3000, 0.0001), (20_000, 0.0005)])
def test_burst_of_many_devices_causes_few_scans_the_last_one_soon(count: int, pause: float) -> None:
    """Between scans, no more than ``MAX_CHANGED_PATHS`` are remembered."""
    changes = every(pause, count)
    scans = scans_after(changes)
    assert len(scans) <= 5 + count * pause / LONGEST_CAP * 2
    assert scans[-1].at - changes[-1].at <= LONGEST_QUIET + SCAN + ROUNDING
    assert max(len(scan.paths) for scan in scans) <= MAX_CHANGED_PATHS + 1


@pytest.mark.parametrize("pause", [0.015, 0.03, 0.06])
def test_burst_with_pauses_causes_few_scans(pause: float) -> None:
    """As on a busy host, where the process that creates the devices has to wait for a processor."""
    chunks = [every(0.0001, 200, f"{chunk}-{{}}", start=chunk * (0.02 + pause)) for chunk in range(50)]
    changes = [change for chunk in chunks for change in chunk]
    scans = scans_after(changes)
    assert len(scans) <= 8
    assert scans[-1].at - changes[-1].at <= LONGEST_QUIET + SCAN + ROUNDING


def test_devices_that_appear_after_a_burst_are_soon_scanned_at_once() -> None:
    changes = every(0.15, 20, start=1.03)
    scans = scans_after([*every(0.0001, 10_000, "burst{}"), *changes])
    assert max(waits(changes, scans)[4:]) <= QUIET + ROUNDING


def test_too_many_changes_become_one_of_any_file() -> None:
    pacing = Pacing()
    for number in range(MAX_CHANGED_PATHS + 5):
        pacing.note(f"{number}", 0.0)
    assert len(pacing.take(1.0).paths) == MAX_CHANGED_PATHS + 1
    assert pacing.due() is None


def test_scan_of_any_file_takes_all_changes() -> None:
    """Also those of a flapping file, for which the scan counts."""
    pacing = Pacing()
    for number in range(3):
        pacing.note("flapping", number * 0.05)
        pacing.take(number * 0.05 + 0.045)
    pacing.note("flapping", 0.15)
    assert not pacing.take(0.16).paths
    pacing.note(ANY, 0.16)
    assert pacing.take(0.16 + QUIET).paths == {"flapping", ANY}
    assert pacing.due() is None


def test_everything_is_taken_before_it_is_due() -> None:
    pacing = Pacing()
    pacing.note("a", 0.0)
    assert pacing.take(0.001) == (set(), None)
    assert pacing.take(0.001, everything=True) == ({"a"}, 0.0)


def test_longer_quiet_applies_to_all_levels() -> None:
    """A DRA driver waits for the end of the preparation of claims."""
    changes = [*every(0.06, 20, "phone{}"), *every(0.06, 20, MOUNTS)]
    scans = scans_after(changes, Pacing(0.1))
    assert len(scans) <= 6
    assert scans[-1].at == pytest.approx(changes[-1].at + 0.1)


def test_subscriber_is_woken_when_a_scan_becomes_due_earlier_only() -> None:
    pacing = Pacing()
    assert [pacing.note(path, 0.0) for path in ("a", "a", "b")] == [True, False, False]
    pacing.take(QUIET)
    assert [pacing.note(path, 0.02) for path in ("a", "c", "a")] == [True, True, False]


# -- changes that the scan itself finds: mount points


def test_mount_point_that_the_scan_finds_is_scanned_at_once() -> None:
    pacing = Pacing()
    pacing.note("phone", 0.0)
    assert pacing.admit("phone", 0.005)
    assert pacing.admit("other", 0.005)
    assert pacing.due() is None


def test_mount_point_that_keeps_changing_is_withheld() -> None:
    pacing = Pacing()
    assert pacing.admit("phone", 0.0)
    assert not pacing.admit("phone", 0.05)
    assert pacing.due() == pytest.approx(0.05 + 2 * QUIET)
    assert pacing.take(0.08).paths == {"phone"}
    assert pacing.admit("phone", 0.08 + CALM + ROUNDING)


def test_file_that_is_scanned_again_because_of_other_mounts_is_not_flapping() -> None:
    pacing = Pacing()
    for number in range(20):
        assert pacing.admit("calm", number * 0.01, again=True)
    pacing.note("phone", 1.0)
    pacing.take(1.0 + QUIET)
    pacing.note("phone", 1.02)
    pacing.take(1.02 + 2 * QUIET)
    assert not pacing.admit("phone", 1.05, again=True)
    assert pacing.take(1.05 + 2 * QUIET).paths == {"phone"}


# -- any changes

CHANGES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.001, 0.006, 0.015, 0.05, 0.1, 0.3, 1.1]), st.sampled_from(["a", "b", "c", ANY])),
    max_size=60,
)


@given(CHANGES, st.sampled_from([QUIET, CALM]))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_no_change_is_lost_or_withheld_for_long(pauses: list[tuple[float, str]], quiet: float) -> None:
    changes, now = [], 0.0
    for pause, path in pauses:
        now += pause
        changes.append(Change(now, path))
    scans = scans_after(changes, Pacing(quiet))
    assert max(waits(changes, scans), default=0.0) <= LONGEST_CAP + 2 * SCAN
    assert sum(len(scan.paths) for scan in scans) <= len(changes)


@given(CHANGES)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_scanned_files_are_forgotten(pauses: list[tuple[float, str]]) -> None:
    """A burst of many files costs no memory afterwards."""
    pacing = Pacing()
    now = 0.0
    for pause, path in pauses:
        now += pause
        pacing.note(path, now)
        pacing.take(now)
    pacing.take(now, everything=True)
    assert not pacing.forget(now + CALM + ROUNDING)
    assert not pacing._waiting
