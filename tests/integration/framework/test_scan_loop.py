"""Which scans follow changes of files, triggers and timers."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from aosp_plugin.framework.conditions import HOST_HANGS, SCAN_FAILED
from aosp_plugin.framework.errors import BackendError
from aosp_plugin.framework.listed import FoundListed, ListedDevice, ListedDevices
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.scan_loop import ScanLoop
from aosp_plugin.framework.timing import Stop, Timings, background_task
from tests.support import PATIENCE, reported, until

pytestmark = pytest.mark.usefixtures("no_mount_events")

NEVER = 3600.0
EVENTS_ONLY = Timings(safety=NEVER, retry=NEVER)
"""No scan without a change."""


class RecordingBackend(ListedDevices):
    """The files of a directory as devices; counts the scans."""

    def __init__(self, directory: Path) -> None:
        super().__init__("example.com/file", lambda: [f"/dev/{path.name}" for path in directory.iterdir()])
        self.directory = directory
        self.watched = frozenset({str(directory)})
        self.scans = 0
        self.updated = asyncio.Event()
        self.before_scan: Callable[[], None] = lambda: None
        """Called once, by the next scan."""
        self.scanned = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def scan(self) -> FoundListed:
        """Count the scan, and return the directories that a test set."""
        self.scans += 1
        before_scan, self.before_scan = self.before_scan, lambda: None
        try:
            before_scan()
            return replace(super().scan(), directories=self.watched)
        finally:
            self._loop.call_soon_threadsafe(self.scanned.set)

    def update_host(self, _found: FoundListed) -> bool:
        """Set the event."""
        self._loop.call_soon_threadsafe(self.updated.set)
        return False

    async def next_scan(self) -> None:
        """Wait for a scan."""
        await asyncio.wait_for(self.scanned.wait(), PATIENCE)
        self.scanned.clear()


@pytest.fixture
async def backend(tmp_path: Path) -> RecordingBackend:
    """Return the backend of an empty directory."""
    (tmp_path / "dev").mkdir()
    return RecordingBackend(tmp_path / "dev")


@contextlib.asynccontextmanager
async def scanning(backend: RecordingBackend, timings: Timings = EVENTS_ONLY) -> AsyncIterator[ScanLoop]:
    """Run the loop inside the context, after its first scan."""
    stop = Stop()
    loop = ScanLoop(backend, stop, Runtime(timings=timings))
    await loop.prepare()
    backend.scanned.clear()
    running = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        stop.request()
        await asyncio.wait_for(running, PATIENCE)
        await loop.close()


def ids(loop: ScanLoop) -> set[str]:
    """Return the published IDs."""
    return {*loop.inventory.snapshot.devices}


async def published(loop: ScanLoop, *expected: str) -> None:
    """Wait until these devices are published."""
    await until(lambda: ids(loop) == set(expected))


async def test_changes_and_triggers_cause_scans(backend: RecordingBackend, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the devices that have changed; of the first list, only those that are unhealthy."""
    caplog.set_level("INFO")
    (backend.directory / "first").touch()
    async with scanning(backend) as loop:
        (backend.directory / "first").unlink()
        await published(loop)
        (backend.directory / "a").touch()
        await published(loop, "a")
        records = [record.__dict__ for record in caplog.records if record.message == "devices changed"]
        assert [record["changed"] for record in records] == ["", "first:removed", "a:new"]
        (backend.directory / "a").unlink()
        await published(loop)
        backend.scanned.clear()
        loop.trigger()
        await backend.next_scan()


async def test_failed_update_of_the_host_is_not_repeated_because_of_what_it_has_changed(
    backend: RecordingBackend,
) -> None:
    updates: list[str] = []

    def fail(_found: FoundListed) -> bool:
        updates.append(f"attempt{len(updates)}")
        (backend.directory / updates[-1]).touch()
        raise BackendError("the limit of mounts is reached")

    async with scanning(backend) as loop:
        backend.update_host = fail  # type: ignore[method-assign]
        loop.trigger()
        await published(loop, "attempt0")
        backend.scanned.clear()
        loop.trigger()
        await backend.next_scan()
    assert updates == ["attempt0"]


async def test_change_during_a_scan_is_followed_by_another_one(backend: RecordingBackend) -> None:
    async with scanning(backend) as loop:
        listed = backend._list_devices

        def list_before_a_change() -> list[str | ListedDevice]:
            backend._list_devices = listed
            found = [*listed()]
            (backend.directory / "later").touch()
            return found

        backend._list_devices = list_before_a_change
        (backend.directory / "a").touch()
        await published(loop, "a", "later")


async def test_scan_that_finds_a_directory_is_followed_by_another(backend: RecordingBackend, tmp_path: Path) -> None:
    """What was in it before it was watched may have changed since."""
    further = tmp_path / "further"
    further.mkdir()
    async with scanning(backend) as loop:
        backend.before_scan = lambda: setattr(backend, "watched", frozenset({str(backend.directory), str(further)}))
        loop.trigger()
        await backend.next_scan()
        await backend.next_scan()
        (further / "a").touch()
        await backend.next_scan()


async def test_update_of_the_host_that_has_changed_devices_is_followed_by_a_scan(backend: RecordingBackend) -> None:
    changes = [True, False]
    async with scanning(backend) as loop:
        backend.update_host = lambda _found: changes.pop(0)  # type: ignore[method-assign]
        loop.trigger()
        await until(lambda: not changes)


async def test_host_is_left_to_another_plugin_that_has_taken_over(backend: RecordingBackend) -> None:
    async with scanning(backend) as loop:
        loop.pause_updates(paused=True)
        await backend.next_scan()
        (backend.directory / "a").touch()
        await published(loop, "a")
        assert not backend.updated.is_set()
        loop.pause_updates(paused=False)
        await asyncio.wait_for(backend.updated.wait(), PATIENCE)


def fail() -> None:
    raise BackendError("broken for the test")


async def test_failed_scan_is_repeated_and_has_lost_no_change(backend: RecordingBackend) -> None:
    async with scanning(backend, Timings(safety=NEVER, retry=0.05)) as loop:
        backend.before_scan = fail
        (backend.directory / "a").touch()
        await published(loop, "a")
        await until(lambda: not reported(loop))


async def test_scan_after_the_first_update_of_the_host_may_fail(backend: RecordingBackend) -> None:
    """It is repeated as well."""

    def update(_found: FoundListed) -> bool:
        backend.before_scan = fail
        return True

    backend.update_host = update  # type: ignore[method-assign]
    loop = ScanLoop(backend, Stop(), Runtime(timings=EVENTS_ONLY))
    await loop.start()
    assert (backend.scans, [each.kind for each in reported(loop)]) == (2, [SCAN_FAILED])
    await loop.close()


async def test_another_call_that_hangs_is_reported_until_it_ends(backend: RecordingBackend) -> None:
    """Scans wait for it, so the devices may be out of date."""
    released = threading.Event()
    async with scanning(backend, EVENTS_ONLY._replace(hang=0.01)) as loop:
        async with background_task(loop.worker.run(partial(released.wait, PATIENCE), label="PreStartContainer")):
            await until(lambda: bool(reported(loop)))
            (condition,) = reported(loop)
            assert (condition.kind, condition.fields["call"]) == (HOST_HANGS, "PreStartContainer")
            released.set()
        await until(lambda: not reported(loop))


@pytest.mark.parametrize(
    ("timings", "scans"), [(Timings(safety=0.05), 2), (Timings(safety=NEVER, retry=0.05), 1)], ids=["again", "once"]
)
async def test_scan_is_repeated_without_a_change(backend: RecordingBackend, timings: Timings, scans: int) -> None:
    """For changes that the kernel does not report, and those before the first scan has found what to watch."""
    async with scanning(backend, timings):
        for _ in range(scans):
            await backend.next_scan()


async def test_changes_without_end_do_not_put_off_the_scan(backend: RecordingBackend) -> None:
    """A device that flaps: the host is never quiet."""
    async with scanning(backend, Timings(quiet=NEVER, longest_delay=0.1, safety=NEVER)) as loop:
        (backend.directory / "a").touch()
        await published(loop, "a")


async def test_rest_after_a_scan_ends_with_the_loop(backend: RecordingBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aosp_plugin.framework.scan_loop.REST", 10**9)
    async with scanning(backend) as loop:
        loop.trigger()
        await backend.next_scan()
