"""File events with the real inotify and the real mount table."""

import asyncio
import collections
import contextlib
import logging
import os
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from aosp_plugin.framework.events import inotify
from aosp_plugin.framework.events.file_events import FileEvents, Subscription
from aosp_plugin.framework.events.inotify import DirectoryWatch
from aosp_plugin.framework.timings import DEFAULT

TIMEOUT = 20


@pytest_asyncio.fixture
async def events() -> AsyncIterator[FileEvents]:
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


async def change(subscription: Subscription) -> None:
    """Wait for a change, and clear it."""
    async with asyncio.timeout(TIMEOUT):
        await subscription.changed.wait()
    subscription.changed.clear()


async def no_change(subscription: Subscription, *directories: Path, barrier: Path) -> None:
    """Check that no change is pending: events arrive in order, and one in the directory ``barrier`` arrives last."""
    subscription.watch([str(path) for path in (*directories, barrier)])
    assert not subscription.changed.is_set()
    files: list[str] = []
    on_event = DirectoryWatch.on_event

    def record(watch: DirectoryWatch, event: Any) -> None:
        files.append(os.fsdecode(event.name))
        on_event(watch, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectoryWatch, "on_event", record)
        (barrier / "barrier").touch()
        await change(subscription)
    assert files == ["barrier"]


def subscribe(events: FileEvents, *directories: Path) -> Subscription:
    """Return a subscription to these directories."""
    subscription = events.subscribe()
    subscription.watch([str(path) for path in directories])
    return subscription


async def test_created_removed_and_moved_files_are_changes(events: FileEvents, directory: Path) -> None:
    outside = directory.parent / "outside"
    subscription = subscribe(events, directory)
    assert subscription.interval == DEFAULT.safety
    (directory / "a").touch()
    await change(subscription)
    (directory / "link").symlink_to("nowhere")
    await change(subscription)
    (directory / "a").rename(directory / "b")
    await change(subscription)
    (directory / "b").rename(outside)
    await change(subscription)
    outside.rename(directory / "c")
    await change(subscription)
    (directory / "c").unlink()
    await change(subscription)


@pytest.mark.usefixtures("no_mount_events")
async def test_opening_writing_and_changing_modes_are_no_changes(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """Every container and every probe opens devices, and a scan each time would never end."""
    path = directory / "device"
    path.touch()
    subscription = subscribe(events, directory)
    with path.open("r+b") as file:
        file.write(b"x")
    path.chmod(0o600)
    os.utime(path)
    os.listdir(directory)
    await no_change(subscription, directory, barrier=tmp_path)


async def test_recreated_directory_is_watched_at_the_next_call(events: FileEvents, directory: Path) -> None:
    subscription = subscribe(events, directory)
    os.rmdir(directory)
    await change(subscription)
    subscription.watch([str(directory)])
    assert subscription.interval == DEFAULT.poll
    os.mkdir(directory)
    subscription.watch([str(directory)])
    assert subscription.interval == DEFAULT.safety
    subscription.changed.clear()
    (directory / "a").touch()
    await change(subscription)


@pytest.mark.usefixtures("no_mount_events")
async def test_recreated_directory_with_the_same_inode_number_is_watched(
    events: FileEvents, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems reuse inode numbers at once, so the end of the watch must count."""
    monkeypatch.setattr(inotify, "_identity", lambda _path: (1, 1))
    subscription = subscribe(events, directory)
    os.rmdir(directory)
    await change(subscription)
    os.mkdir(directory)
    async with asyncio.timeout(TIMEOUT):  # the end of the watch arrives after the event of the removal
        while not subscription._watches[str(directory)]._removed:
            await subscription.changed.wait()
            subscription.changed.clear()
    subscription.watch([str(directory)])
    subscription.changed.clear()
    (directory / "a").touch()
    await change(subscription)


@pytest.mark.usefixtures("no_mount_events")
async def test_replaced_directory_is_no_longer_watched(events: FileEvents, directory: Path, tmp_path: Path) -> None:
    subscription = subscribe(events, directory)
    moved = tmp_path / "moved"
    os.rename(directory, moved)
    await change(subscription)
    os.mkdir(directory)
    subscription.watch([str(directory)])
    assert subscription.interval == DEFAULT.safety
    subscription.changed.clear()
    (moved / "a").touch()
    await no_change(subscription, directory, barrier=tmp_path)
    (directory / "a").touch()
    await change(subscription)


async def test_link_is_watched_at_its_current_target(events: FileEvents, directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "link"
    link.symlink_to(directory)
    subscription = subscribe(events, link)
    (directory / "a").touch()
    await change(subscription)
    link.unlink()
    link.symlink_to(target)
    subscription.watch([str(link)])
    (target / "a").touch()
    await change(subscription)


def fds() -> collections.Counter[str]:
    """Count the open files of this process by target."""
    targets: collections.Counter[str] = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            targets[os.readlink(f"/proc/self/fd/{name}")] += 1
    return targets


async def test_close_ends_threads_and_files_and_changes(directory: Path) -> None:
    threads, files = set(threading.enumerate()), fds()
    events = FileEvents()
    subscription = subscribe(events, directory)
    assert len(set(threading.enumerate()) - threads) == 1
    assert fds() - files
    subscription.changed.clear()
    events.close()
    (directory / "a").touch()
    await asyncio.sleep(0)
    assert not subscription.changed.is_set()
    assert set(threading.enumerate()) <= threads
    assert not fds() - files


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Prevent this process from opening files, even after it closes others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_directories_are_polled_until_inotify_is_available(
    events: FileEvents, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fallback and the recovery are logged once each."""
    caplog.set_level(logging.INFO)
    subscription = events.subscribe()
    with no_more_files():
        for _ in range(3):
            subscription.watch([str(directory)])
            assert subscription.interval == DEFAULT.poll
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.getMessage() == "inotify unavailable, falling back to polling"
    assert vars(warning)["interval"] == DEFAULT.poll
    assert "limit reached" in vars(warning)["error"]
    for _ in range(2):
        subscription.watch([str(directory)])
        assert subscription.interval == DEFAULT.safety
    assert not events.polling
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    (directory / "a").touch()
    await change(subscription)
