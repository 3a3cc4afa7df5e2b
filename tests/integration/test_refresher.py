"""Which changed files an event names, and which scans the refresher runs for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.framework import refresher
from aosp_plugin.framework.errors import BackendError
from aosp_plugin.framework.events import pacing
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.events.pacing import Pacing
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.listed import ListedDevices
from aosp_plugin.framework.refresher import Refresher
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection
    from pathlib import Path

    from aosp_plugin.framework.events.subscription import Subscription

TIMEOUT = 20

pytestmark = pytest.mark.usefixtures("no_mount_events")


@pytest.fixture
async def events(no_mount_events: None) -> AsyncIterator[FileEvents]:
    """Return the file events of this test's event loop."""
    events = FileEvents()
    yield events
    events.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return an empty directory."""
    directory = tmp_path / "dev"
    directory.mkdir()
    return directory


async def changes_until(subscription: Subscription, *paths: Path) -> frozenset[str] | None:
    """Wait until these files have changed; return all changed files, or None if any may have changed."""
    changed: frozenset[str] = frozenset()
    async with asyncio.timeout(TIMEOUT):
        while not changed >= {str(path) for path in paths}:
            await subscription.changed.wait()
            subscription.changed.clear()
            new = subscription.changes()
            if new is None:
                return None
            changed |= new
    return changed


async def test_any_file_may_have_changed_at_first(events: FileEvents, directory: Path) -> None:
    subscription = events.subscribe()
    assert subscription.changes() is None
    subscription.watch([str(directory)])
    assert subscription.changes() is None
    assert subscription.changes() == frozenset()
    subscription.watch([str(directory)])
    assert subscription.changes() == frozenset()


async def test_changed_files_are_reported_once_by_path(events: FileEvents, directory: Path) -> None:
    """This includes renamed files, and names that are not UTF-8."""
    subscription = events.subscribe()
    subscription.watch([str(directory)])
    subscription.changes()
    not_utf8 = directory / os.fsdecode(b"caf\xe9")
    (directory / "a").touch()
    (directory / "a").rename(directory / "b")
    not_utf8.touch()
    expected = frozenset(map(str, (directory / "a", directory / "b", not_utf8)))
    assert await changes_until(subscription, not_utf8) == expected
    assert subscription.changes() == frozenset()


async def test_any_file_may_have_changed_in_a_recreated_directory(events: FileEvents, directory: Path) -> None:
    subscription = events.subscribe()
    subscription.watch([str(directory)])
    subscription.changes()
    os.rmdir(directory)
    async with asyncio.timeout(TIMEOUT):
        await subscription.changed.wait()
    assert subscription.changes() is None
    os.mkdir(directory)
    subscription.watch([str(directory)])
    async with asyncio.timeout(TIMEOUT):
        while subscription.changes() is not None:  # the inode number may be reused before the old watch has ended
            await subscription.changed.wait()
            subscription.changed.clear()
            subscription.watch([str(directory)])


async def test_any_file_may_have_changed_in_a_polled_directory(events: FileEvents, tmp_path: Path) -> None:
    subscription = events.subscribe()
    for _ in range(3):
        subscription.watch([str(tmp_path / "missing")])
        assert subscription.changes() is None


async def test_any_file_may_have_changed_after_a_queue_overflow(events: FileEvents, directory: Path) -> None:
    subscription = events.subscribe()
    subscription.watch([str(directory)])
    subscription.changes()
    subscription._directories.watches[str(directory)].on_queue_overflow()
    await asyncio.wait_for(subscription.changed.wait(), TIMEOUT)
    subscription.notify(str(directory / "a"))
    assert subscription.changes() is None
    assert subscription.changes() == frozenset()


class RecordingBackend(ListedDevices):
    """The files of a directory as devices; records the argument of each scan."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            "example.com/file", lambda: [f"/dev/{path.name}" for path in directory.iterdir()], missing_device_ttl=0
        )
        self.watched = frozenset({str(directory)})
        self.scans: list[Collection[str] | None] = []
        self.before_scan: Callable[[], None] = lambda: None
        """Called once, by the next scan."""
        self.scanned = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def directories(self) -> frozenset[str]:
        """Return the directories that a test set."""
        return self.watched

    def scan(self, changed: Collection[str] | None = None) -> None:
        """Record the scan."""
        self.scans.append(changed)
        before_scan, self.before_scan = self.before_scan, lambda: None
        try:
            before_scan()
            super().scan(changed)
        finally:
            self._loop.call_soon_threadsafe(self.scanned.set)

    async def next_scan(self) -> Collection[str] | None:
        """Wait for a scan, and return its argument."""
        await asyncio.wait_for(self.scanned.wait(), TIMEOUT)
        self.scanned.clear()
        return self.scans[-1]


@contextlib.asynccontextmanager
async def refreshing(events: FileEvents, backend: RecordingBackend) -> AsyncIterator[Refresher]:
    """Run a refresher inside the context, after its first scan."""
    stop = asyncio.Event()
    worker = Worker("test")
    refresher = Refresher(backend, Inventory(), events.subscribe(Pacing()), worker, stop)
    await refresher.scan()
    backend.scanned.clear()
    running = asyncio.create_task(refresher.run())
    try:
        yield refresher
    finally:
        stop.set()
        await asyncio.wait_for(running, TIMEOUT)
        worker.close()


async def test_first_and_triggered_scans_are_full_and_others_have_the_changed_files(
    events: FileEvents, directory: Path
) -> None:
    backend = RecordingBackend(directory)
    async with refreshing(events, backend) as refresher:
        assert backend.scans == [None]
        (directory / "a").touch()
        assert await backend.next_scan() == {str(directory / "a")}
        refresher.trigger()
        assert await backend.next_scan() is None


async def test_host_is_left_to_another_plugin_that_has_taken_over(events: FileEvents, directory: Path) -> None:
    class Backend(RecordingBackend):
        updates = 0
        updated = asyncio.Event()

        def update_host(self) -> None:
            self.updates += 1
            self._loop.call_soon_threadsafe(self.updated.set)

    backend = Backend(directory)
    async with refreshing(events, backend) as refresher:
        refresher.hold(held=True)
        assert await backend.next_scan() is None
        (directory / "a").touch()
        assert await backend.next_scan() == {str(directory / "a")}
        assert backend.updates == 0
        refresher.hold(held=False)
        await asyncio.wait_for(backend.updated.wait(), TIMEOUT)


async def test_scan_after_a_failed_one_is_full(events: FileEvents, directory: Path) -> None:
    def fail() -> None:
        raise BackendError("broken for the test")

    backend = RecordingBackend(directory)
    async with refreshing(events, backend):
        backend.before_scan = fail
        (directory / "a").touch()
        assert await backend.next_scan() == {str(directory / "a")}
        (directory / "b").touch()
        assert await backend.next_scan() is None
        (directory / "c").touch()
        assert await backend.next_scan() == {str(directory / "c")}


@pytest.mark.parametrize("appears", [True, False])
async def test_scan_that_finds_or_loses_a_directory_is_followed_by_another(
    events: FileEvents, directory: Path, tmp_path: Path, *, appears: bool
) -> None:
    """If one appeared, the scan is full: the target of a link may be older than the watch."""
    backend = RecordingBackend(directory)
    fewer, more = frozenset({str(directory)}), frozenset({str(directory), str(tmp_path)})
    backend.watched, after = (fewer, more) if appears else (more, fewer)
    async with refreshing(events, backend):
        backend.before_scan = lambda: setattr(backend, "watched", after)
        (directory / "a").touch()
        async with asyncio.timeout(TIMEOUT):
            while len(backend.scans) < 3:
                await backend.next_scan()
        assert str(directory / "a") in (backend.scans[1] or ())
        second = backend.scans[2]
        assert second is None if appears else str(directory / "a") in (second or ())


@pytest.mark.parametrize(("factor", "expected"), [(0, [None]), (10**9, [frozenset()])])
async def test_periodic_full_scan_depends_on_the_duration_of_the_last_one(
    events: FileEvents, directory: Path, monkeypatch: pytest.MonkeyPatch, factor: int, expected: list[object]
) -> None:
    monkeypatch.setattr(refresher, "FULL_SCAN_FACTOR", factor)
    monkeypatch.setattr("aosp_plugin.framework.events.subscription.SAFETY_INTERVAL", 0.05)
    backend = RecordingBackend(directory)
    async with refreshing(events, backend):
        await backend.next_scan()
    assert backend.scans[1:2] == expected


async def test_pause_between_periodic_full_scans_has_a_limit(
    events: FileEvents, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that once took 40 s, because the host was busy, does not put the next one off by hours."""
    monkeypatch.setattr(refresher, "FULL_SCAN_FACTOR", 10**9)
    monkeypatch.setattr(refresher, "LONGEST_FULL_SCAN_PAUSE", 0.1, raising=False)
    monkeypatch.setattr("aosp_plugin.framework.events.subscription.SAFETY_INTERVAL", 0.03)
    backend = RecordingBackend(directory)
    async with refreshing(events, backend), asyncio.timeout(TIMEOUT):
        while await backend.next_scan() is None:
            pass  # the process was not run for as long as the longest pause
        while await backend.next_scan() is not None:
            pass


async def test_calm_device_is_scanned_while_a_flapping_one_is_withheld(
    events: FileEvents, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is due, its state is read again."""
    pace, withheld = Pacing._pace, [1]
    monkeypatch.setattr(pacing, "CALM", 3600.0)
    monkeypatch.setattr(Pacing, "_pace", lambda self, level: (3600.0,) * 2 if level in withheld else pace(self, level))
    backend = RecordingBackend(directory)
    flapping = directory / "flapping"
    async with refreshing(events, backend):
        flapping.touch()
        assert await backend.next_scan() == {str(flapping)}
        flapping.unlink()
        for name in ("calm0", "calm1", "calm2"):
            (directory / name).touch()
            assert await backend.next_scan() == {str(directory / name)}
        withheld.clear()
        (directory / "calm3").touch()
        assert str(flapping) in (await backend.next_scan() or ())
        assert "flapping" not in {device.id for device in backend.devices()}
