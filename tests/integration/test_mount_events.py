"""Which subscriptions a change of the real mount table wakes, and what happens if the table cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from aosp_plugin.framework.events import mount_events
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.events.mount_events import MountEvents
from aosp_plugin.framework.events.mount_table import MountTable
from aosp_plugin.framework.events.pacing import Pacing
from tests.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator
    from pathlib import Path

    from aosp_plugin.framework.events.subscription import Subscription

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems, which requires root")


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs; what is mounted in it later is unmounted too."""
    run("mount", "-t", "tmpfs", "none", tmp_path)
    run("mount", "--make-private", tmp_path)
    yield tmp_path
    run("umount", "--recursive", "--lazy", tmp_path)


def run(*command: str | Path) -> None:
    """Run a command."""
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - fixed commands


def mount(path: Path) -> None:
    """Mount a file system on a new directory."""
    path.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "none", path)


class Table:
    """Stands between the thread and its table: it may hold each comparison, or make it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures: list[Exception] = []
        self.threads: set[threading.Thread] = set()
        self.held = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        changes = MountTable.changes

        def compared(table: MountTable, text: str) -> frozenset[str] | None:
            self.threads.add(threading.current_thread())
            if self.failures:
                raise self.failures.pop()
            if not self.go_on.is_set():
                self.held.set()
                assert self.go_on.wait(PATIENCE)
            return changes(table, text)

        monkeypatch.setattr(MountTable, "changes", compared)

    async def hold(self, path: Path) -> None:
        """Mount something, and hold the reading that follows."""
        self.held.clear()
        self.go_on.clear()
        mount(path)
        assert await asyncio.to_thread(self.held.wait, PATIENCE)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """Return what controls the comparisons of this test."""
    return Table(monkeypatch)


class Reports:
    """What a MountEvents has reported."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Collection[str] | None] = asyncio.Queue()

    def __call__(self, points: Collection[str] | None) -> None:
        """Note a report, in the thread."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, points)

    async def next(self) -> Collection[str] | None:
        """Return the next report."""
        return await asyncio.wait_for(self._queue.get(), PATIENCE)

    async def until(self, *paths: Path) -> None:
        """Wait until all these mount points have been reported."""
        missing = set(map(str, paths))
        while missing:
            missing -= set(await self.next() or ())


async def read(events: MountEvents) -> None:
    """Wait until all changes have been read."""
    async with asyncio.timeout(PATIENCE):
        while events.unread():  # noqa: ASYNC110 - nothing else reports it
            await asyncio.sleep(0)


@pytest_asyncio.fixture
async def events() -> AsyncIterator[FileEvents]:
    """Return file events that know the mount table."""
    with contextlib.closing(FileEvents()) as events:
        await read(events._mounts)
        yield events


def scan(subscription: Subscription, *directories: Path) -> frozenset[str] | None:
    """Do what a subscriber does; return what it is to scan."""
    subscription.changed.clear()
    subscription.release(everything=True)
    subscription.watch([str(path) for path in directories])
    changes = subscription.changes()
    subscription.scanned()
    return changes


async def woken(subscription: Subscription) -> None:
    """Wait until a subscription is woken."""
    await asyncio.wait_for(subscription.changed.wait(), PATIENCE)


async def test_mount_during_a_reading_is_reported_by_the_next_one(top: Path, table: Table) -> None:
    """At any moment of it: the kernel reports the change to a poll that follows."""
    reports = Reports()
    with contextlib.closing(MountEvents(reports)) as events:
        await read(events)
        await table.hold(top / "a")
        mount(top / "b")
        assert events.unread()
        table.go_on.set()
        await reports.until(top / "a", top / "b")
        await read(events)


async def test_table_is_compared_in_a_thread_of_its_own(top: Path, table: Table) -> None:
    reports = Reports()
    with contextlib.closing(MountEvents(reports)) as events:
        await read(events)
        mount(top / "a")
        await reports.until(top / "a")
    assert {thread.name for thread in table.threads} == {"mount events"}


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), IndexError("x"), RuntimeError("x")])
async def test_any_mount_may_have_changed_if_the_table_cannot_be_read(
    top: Path, table: Table, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it can, and since the failure."""
    monkeypatch.setattr(mount_events, "RETRY_INTERVAL", 0.01)
    caplog.set_level("INFO")
    reports = Reports()
    with contextlib.closing(MountEvents(reports)) as events:
        await read(events)
        table.failures = [error, error]
        mount(top / "a")
        assert [await reports.next() for _ in range(3)] == [None, None, None]
        mount(top / "b")
        await reports.until(top / "b")
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["mount table cannot be read, retrying", "mount table can be read again"]


async def test_missing_thread_is_an_error_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no mount would be reported."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(OSError, match="can't start new thread"):
        FileEvents()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_close_wakes_the_thread_before_it_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closes the file that wakes it. Another file may then have the number."""
    events = MountEvents(lambda _points: None)
    await read(events)
    write = os.eventfd_write

    def write_late(file: int, value: int) -> None:
        events._thread.join(2 * mount_events.LONGEST_PAUSE)
        write(file, value)

    monkeypatch.setattr(os, "eventfd_write", write_late)
    await asyncio.to_thread(events.close)


async def test_files_are_scanned_while_the_table_cannot_be_read_and_again_afterwards(
    top: Path, events: FileEvents, table: Table
) -> None:
    """A reading waits for mounts in progress. What was mounted meanwhile may be gone when it ends."""
    directory = top / "dev"
    directory.mkdir()
    subscription = events.subscribe()
    scan(subscription, directory)
    await table.hold(top / "elsewhere")
    (directory / "a").touch()
    await woken(subscription)
    assert scan(subscription, directory) == frozenset({str(directory / "a")})
    table.go_on.set()
    await woken(subscription)
    assert scan(subscription, directory) == frozenset({str(directory / "a")})
    assert subscription._settled


async def test_mount_during_a_scan_repeats_it(top: Path, events: FileEvents) -> None:
    """The scan may have seen what was mounted for a moment only."""
    directory = top / "dev"
    directory.mkdir()
    subscription = events.subscribe()
    scan(subscription, directory)
    (directory / "a").touch()
    await woken(subscription)
    subscription.watch([str(directory)])
    assert subscription.changes() == frozenset({str(directory / "a")})
    mount(top / "elsewhere")
    await read(events._mounts)
    subscription.scanned()
    assert scan(subscription, directory) == frozenset({str(directory / "a")})
    assert scan(subscription, directory) == frozenset()


@pytest.mark.parametrize("paced", [False, True])
async def test_mount_wakes_only_those_whose_directories_it_concerns(
    top: Path, events: FileEvents, *, paced: bool
) -> None:
    """Each container mounts something, and when a host boots, more than a hundred start at once."""
    for name in ("watched", "watched/inner", "linked", "covered", "other", "root", "root/tmpfs"):
        (top / name).mkdir()
    (top / "link").symlink_to("linked")
    (top / "covered" / "file").touch()
    run("mount", "--bind", "/dev/null", top / "covered" / "file")
    mount(top / "root" / "tmpfs")
    await read(events._mounts)
    names = ["root", "watched", "link", "missing", "covered"]
    subscriptions = {name: events.subscribe(Pacing() if paced else None) for name in names}
    last = events.subscribe()

    async def woken_by(*command: str | Path) -> list[str]:
        for name, subscription in subscriptions.items():
            scan(subscription, top / name)
            scan(subscription, top / name)
            assert subscription._settled
        last.changed.clear()
        last.changes()  # and no ``scanned``: any mount wakes it, after all others
        await asyncio.to_thread(run, *command)
        await woken(last)
        await read(events._mounts)
        noted = [name for name, subscription in subscriptions.items() if subscription._noted_mounts is not None]
        assert [name for name, subscription in subscriptions.items() if subscription.changed.is_set()] == noted
        return noted

    assert await woken_by("mount", "-t", "tmpfs", "none", top / "other") == names[2:]
    assert await woken_by("umount", top / "other") == names[2:]
    assert await woken_by("mount", "-t", "tmpfs", "none", top / "watched") == names[1:]
    assert await woken_by("mount", "-o", "remount,bind,ro", top / "watched") == names[1:]
    assert await woken_by("umount", top / "watched") == names[1:]
    assert await woken_by("mount", "-t", "tmpfs", "none", top / "watched" / "inner") == names[1:]
    assert await woken_by("mount", "--move", top / "watched" / "inner", top / "other") == names[1:]
    assert await woken_by("mount", "--bind", top, top) == names
    assert await woken_by("umount", top) == names
