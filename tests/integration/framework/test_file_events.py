"""File events with the real inotify and the real mount table."""

import asyncio
import ctypes
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from aosp_plugin.framework import inotify
from aosp_plugin.framework.file_events import FileEvents, Subscription
from aosp_plugin.framework.inotify import DirectoryWatch
from aosp_plugin.framework.timing import DEFAULT
from tests.support import fds, without_descriptors

TIMEOUT = 20
SUBSCRIPTIONS = 600
AT_FDCWD, RENAME_EXCHANGE = -100, 2
LIBC = ctypes.CDLL(None)


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
    paths: list[str] = []
    report = DirectoryWatch.report

    def record(watch: DirectoryWatch, *, ended: bool) -> None:
        paths.append(watch.path)
        report(watch, ended=ended)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectoryWatch, "report", record)
        (barrier / "barrier").touch()
        await change(subscription)
    assert paths == [str(barrier)]


def subscribe(events: FileEvents, *directories: Path) -> Subscription:
    """Return a subscription to these directories."""
    subscription = events.subscribe()
    subscription.watch([str(path) for path in directories])
    return subscription


async def is_watched(subscription: Subscription, directory: Path) -> None:
    """Watch a directory again, as after each scan, and check that a change in it is noticed."""
    subscription.watch([str(directory)])
    assert subscription.interval == DEFAULT.safety
    subscription.changed.clear()
    (directory / "a").touch()
    await change(subscription)


def watched_inode(events: FileEvents, watch: DirectoryWatch) -> int:
    """Return the inode number of the directory that the kernel watches (fs/notify/fdinfo.c)."""
    watches = Path(f"/proc/self/fdinfo/{events._instance()._descriptor}").read_text(encoding="ascii")
    (inode,) = re.findall(rf"^inotify wd:{watch.descriptor:x} ino:([0-9a-f]+) ", watches, re.MULTILINE)
    return int(inode, 16)


async def test_created_removed_and_moved_files_are_changes(events: FileEvents, directory: Path) -> None:
    outside = directory.parent / "outside"
    subscription = subscribe(events, directory)
    assert subscription.interval == DEFAULT.safety
    for cause in (
        (directory / "a").touch,
        lambda: (directory / "link").symlink_to("nowhere"),
        lambda: (directory / "a").rename(directory / "b"),
        lambda: (directory / "b").rename(outside),
        lambda: outside.rename(directory / "c"),
        (directory / "c").unlink,
    ):
        cause()
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


@pytest.mark.usefixtures("no_mount_events")
async def test_recreated_directory_with_the_same_inode_number_is_watched(
    events: FileEvents, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems reuse inode numbers at once, so the end of the watch must count."""
    monkeypatch.setattr(inotify, "_identity", lambda _status: (1, 1))
    subscription = subscribe(events, directory)
    os.rmdir(directory)
    await change(subscription)
    os.mkdir(directory)
    async with asyncio.timeout(TIMEOUT):  # the end of the watch arrives after the event of the removal
        while not subscription._watches[str(directory)]._ended:
            await subscription.changed.wait()
            subscription.changed.clear()
    await is_watched(subscription, directory)


@pytest.mark.usefixtures("no_mount_events")
@pytest.mark.parametrize("is_link", [True, False])
async def test_directory_is_watched_that_the_path_leads_to_now(
    events: FileEvents, directory: Path, tmp_path: Path, *, is_link: bool
) -> None:
    path, former = (tmp_path / "link", directory) if is_link else (directory, tmp_path / "moved")
    if is_link:
        path.symlink_to(former)
    subscription = subscribe(events, path)
    (path / "a").touch()
    await change(subscription)
    if is_link:
        path.unlink()
        (tmp_path / "target").mkdir()
        path.symlink_to("target")
    else:
        path.rename(former)
        path.mkdir()
    subscription.watch([str(path)])
    assert subscription.interval == DEFAULT.safety
    subscription.changed.clear()
    (former / "b").touch()
    await no_change(subscription, path, barrier=tmp_path)
    (path / "a").touch()
    await change(subscription)


@pytest.mark.usefixtures("no_mount_events")
async def test_directory_that_is_exchanged_while_it_is_watched(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """Otherwise the directory would look watched when it is back, and its changes would go unnoticed."""
    other = tmp_path / "other"
    other.mkdir()
    names = os.fsencode(directory), os.fsencode(other)
    ended = threading.Event()

    def exchange() -> None:
        while not ended.is_set():
            assert LIBC.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    exchanging = threading.Thread(target=exchange)
    exchanging.start()
    try:
        for _ in range(SUBSCRIPTIONS):
            subscription = subscribe(events, directory)
            watch = subscription._watches[str(directory)]
            assert watch._identity == (os.stat(directory).st_dev, watched_inode(events, watch))
            subscription.close()
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        exchanging.join()


async def test_close_ends_files_and_changes(directory: Path) -> None:
    files = fds()
    events = FileEvents()
    subscription = subscribe(events, directory)
    assert fds() - files
    subscription.changed.clear()
    events.close()
    (directory / "a").touch()
    await asyncio.sleep(0)
    assert not subscription.changed.is_set()
    assert not fds() - files


async def test_directories_are_polled_until_inotify_is_available(
    events: FileEvents, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The fallback and the recovery are logged once each."""
    caplog.set_level(logging.INFO)
    subscription = events.subscribe()
    with without_descriptors(os.getpid()):
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


async def test_subscriptions_share_one_instance(events: FileEvents, tmp_path: Path) -> None:
    """The host's limit is 128 instances for a user, and other Android containers use them up."""
    before = fds()
    directories = [tmp_path / name for name in "abc"]
    for path in directories:
        path.mkdir()
    subscriptions = [subscribe(events, path, tmp_path) for path in directories]
    assert fds() - before == {"anon_inode:inotify": 1}
    for subscription, path in zip(subscriptions, directories, strict=True):
        (path / "file").touch()
        await change(subscription)


async def test_end_of_one_watch_leaves_that_of_another_subscription(events: FileEvents, directory: Path) -> None:
    """The kernel has one watch of a directory, whose removal is a change for all."""
    first, second, third = (subscribe(events, directory) for _ in range(3))
    first.watch([])
    (directory / "a").touch()
    for subscription in (second, third):
        await change(subscription)
    assert not first.changed.is_set()
    (directory / "a").unlink()
    os.rmdir(directory)
    for subscription in (second, third):
        await change(subscription)
        subscription.watch([str(directory)])
        assert subscription.interval == DEFAULT.poll


async def test_watch_that_another_thread_ends_at_the_same_time_is_made_again(
    events: FileEvents, directory: Path
) -> None:
    """The kernel gives both subscriptions the same watch, which may end just when the second one gets it."""
    first, second = subscribe(events, directory), events.subscribe()
    for number in range(200):
        ending = asyncio.create_task(asyncio.to_thread(first.watch, []))
        await asyncio.to_thread(second.watch, [str(directory)])
        await ending
        second.watch([str(directory)])  # as after each change
        (directory / str(number)).touch()
        await change(second)
        first, second = second, events.subscribe()


# -- mounts


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs; what is mounted in it later is unmounted too."""
    if os.geteuid() != 0:
        pytest.skip("mounts file systems, which requires root")
    run("mount", "-t", "tmpfs", "none", tmp_path)
    run("mount", "--make-private", tmp_path)
    yield tmp_path
    run("umount", "--recursive", "--lazy", tmp_path)


def run(*command: str | Path) -> None:
    """Run a command."""
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - fixed commands


async def test_each_change_of_a_mount_wakes_every_subscription(events: FileEvents, top: Path) -> None:
    """Whatever it is, and whether or not the mount is below a watched directory."""
    for name in ("a", "b"):
        (top / name).mkdir()
    (top / "file").touch()
    commands: list[list[str | Path]] = [
        ["mount", "-t", "tmpfs", "none", top / "a"],
        ["mount", "-o", "remount,bind,ro", top / "a"],
        ["mount", "--move", top / "a", top / "b"],
        ["umount", top / "b"],
        ["mount", "--bind", "/dev/null", top / "file"],
        ["umount", top / "file"],
        ["mount", "--bind", top, top],
        ["umount", top],
    ]
    subscriptions = [events.subscribe(), events.subscribe()]
    for command in commands:
        await asyncio.to_thread(run, *command)
        for subscription in subscriptions:
            await change(subscription)


async def test_missing_table_is_an_error_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no mount would be reported."""
    before = fds()
    monkeypatch.setattr("aosp_plugin.framework.file_events.MOUNT_TABLE", "/proc/self/none")
    with pytest.raises(FileNotFoundError):
        FileEvents()
    assert fds() == before
