"""File events over the real inotify and the real mount table: whoever subscribed is told to look again."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import resource
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, WatchDescriptor

from aosp_plugin.framework.events import file_events
from aosp_plugin.framework.events.file_events import POLL_INTERVAL, SAFETY_INTERVAL, FileEvents, Subscription
from aosp_plugin.framework.events.mount_events import MountEvents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest_asyncio.fixture
async def events() -> AsyncIterator[FileEvents]:
    """Return the file events of this test's loop."""
    made = FileEvents()
    yield made
    made.close()


@pytest.fixture
def _no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep mounts that others make on this machine from telling anything."""
    monkeypatch.setattr(MountEvents, "tell", lambda _self, _changed: None)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory to watch."""
    made = tmp_path / "dev"
    made.mkdir()
    return made


async def told(subscription: Subscription) -> None:
    """Wait until a change is reported, and take note of it."""
    async with asyncio.timeout(20):
        await subscription.changed.wait()
    subscription.changed.clear()


async def nothing_told(events: FileEvents, subscription: Subscription, barrier: Path) -> None:
    """Make sure that nothing is on its way: events come in order, and those of the barrier come last."""
    behind = events.subscribe()
    behind.watch([str(barrier)])
    (barrier / "barrier").touch()
    await told(behind)
    assert not subscription.changed.is_set()


def subscribe(events: FileEvents, *directories: Path) -> Subscription:
    """Return a subscription to these directories."""
    subscription = events.subscribe()
    subscription.watch([str(path) for path in directories])
    return subscription


def test_the_intervals_are_those_that_were_promised() -> None:
    """A second where there are no events, a minute where there are."""
    assert (POLL_INTERVAL, SAFETY_INTERVAL) == (1.0, 60.0)


async def test_files_that_come_and_go_are_told(events: FileEvents, directory: Path) -> None:
    """Creation, removal, a change of the name, and both directions of a move."""
    elsewhere = directory.parent / "elsewhere"
    subscription = subscribe(events, directory)
    assert subscription.interval == SAFETY_INTERVAL
    (directory / "a").touch()
    await told(subscription)
    (directory / "link").symlink_to("nowhere")
    await told(subscription)
    (directory / "a").rename(directory / "b")
    await told(subscription)
    (directory / "b").rename(elsewhere)
    await told(subscription)
    elsewhere.rename(directory / "c")
    await told(subscription)
    (directory / "c").unlink()
    await told(subscription)


@pytest.mark.usefixtures("_no_mounts")
async def test_opening_writing_and_changing_modes_are_not_told(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """Every container and every probe opens nodes: a look each time would never end."""
    path = directory / "node"
    path.touch()
    subscription = subscribe(events, directory)
    with path.open("r+b") as file:
        file.write(b"x")
    path.chmod(0o600)
    os.utime(path)
    os.listdir(directory)
    await nothing_told(events, subscription, tmp_path)


async def test_a_directory_that_is_removed_and_made_again_is_picked_up(events: FileEvents, directory: Path) -> None:
    """The removal is told, the next call polls, and the call after the creation watches again."""
    subscription = subscribe(events, directory)
    os.rmdir(directory)
    await told(subscription)
    subscription.watch([str(directory)])
    assert subscription.interval == POLL_INTERVAL
    os.mkdir(directory)
    subscription.watch([str(directory)])
    assert subscription.interval == SAFETY_INTERVAL
    subscription.changed.clear()
    (directory / "a").touch()
    await told(subscription)


@pytest.mark.usefixtures("_no_mounts")
async def test_a_directory_made_again_with_the_same_inode_number_is_picked_up(
    events: FileEvents, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems use the numbers of removed files again at once: that the watch has ended is what counts."""
    monkeypatch.setattr(file_events, "_identity", lambda _path: (1, 1))
    subscription = subscribe(events, directory)
    os.rmdir(directory)
    await told(subscription)
    os.mkdir(directory)
    behind = subscribe(events, tmp_path)
    (tmp_path / "barrier").touch()
    await told(behind)
    subscription.watch([str(directory)])
    subscription.changed.clear()
    (directory / "a").touch()
    await told(subscription)


@pytest.mark.usefixtures("_no_mounts")
async def test_the_end_of_a_watch_is_told_by_itself(events: FileEvents, directory: Path) -> None:
    """It comes behind the event that says why, when the look for that event may be under way."""
    subscription, inotify = subscribe(events, directory), events.inotify()
    assert inotify is not None
    (descriptor,) = inotify._watch_for_wd
    inotify.handle_event(InotifyEvent(descriptor, InotifyConstants.IN_IGNORED, 0, b""))
    await told(subscription)
    subscription.watch([str(directory)])
    (directory / "a").touch()
    await told(subscription)


@pytest.mark.usefixtures("_no_mounts")
async def test_a_directory_that_another_one_took_the_place_of_is_left(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """The move is told, and from the next call on only the new directory is watched."""
    subscription = subscribe(events, directory)
    moved = tmp_path / "moved"
    os.rename(directory, moved)
    await told(subscription)
    os.mkdir(directory)
    subscription.watch([str(directory)])
    assert subscription.interval == SAFETY_INTERVAL
    subscription.changed.clear()
    (moved / "a").touch()
    await nothing_told(events, subscription, tmp_path)
    (directory / "a").touch()
    await told(subscription)


async def test_a_link_to_a_directory_is_watched_where_it_leads_now(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """A link that was turned to another directory is noticed at the next call."""
    other = tmp_path / "other"
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(directory)
    subscription = subscribe(events, link)
    (directory / "a").touch()
    await told(subscription)
    link.unlink()
    link.symlink_to(other)
    subscription.watch([str(link)])
    (other / "a").touch()
    await told(subscription)


async def test_a_missing_directory_is_polled_until_it_is_there(
    events: FileEvents, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That is no fault of inotify's, and nothing is logged of it."""
    missing = directory / "later"
    subscription = events.subscribe()
    assert subscription.interval == POLL_INTERVAL
    subscription.watch([str(directory), str(missing)])
    assert subscription.interval == POLL_INTERVAL
    missing.mkdir()
    subscription.watch([str(directory), str(missing)])
    assert subscription.interval == SAFETY_INTERVAL
    await told(subscription)
    (missing / "a").touch()
    await told(subscription)
    assert caplog.records == []


async def test_a_file_in_the_place_of_a_directory_is_polled(
    events: FileEvents, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may become a directory one day."""
    path = directory / "file"
    path.touch()
    subscription = subscribe(events, path)
    assert subscription.interval == POLL_INTERVAL
    assert caplog.records == []


@pytest.mark.usefixtures("_no_mounts")
async def test_directories_that_are_no_longer_wanted_are_left(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """Each call gives the whole list."""
    kept = tmp_path / "kept"
    kept.mkdir()
    subscription = subscribe(events, directory, kept)
    subscription.watch([str(kept)])
    (directory / "a").touch()
    await nothing_told(events, subscription, tmp_path)
    (kept / "a").touch()
    await told(subscription)


@pytest.mark.usefixtures("_no_mounts")
async def test_two_subscriptions_to_one_directory_do_not_disturb_each_other(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """Both are told, and one that leaves takes nothing from the other."""
    one, two = subscribe(events, directory), subscribe(events, directory)
    (directory / "a").touch()
    await told(one)
    await told(two)
    one.watch([])
    assert one.interval == SAFETY_INTERVAL
    (directory / "b").touch()
    await told(two)
    await nothing_told(events, one, tmp_path)


async def test_one_inotify_instance_serves_all(events: FileEvents, directory: Path) -> None:
    """A host has 128 of them for all its containers."""
    first = events.inotify()
    subscribe(events, directory)
    subscribe(events, directory.parent)
    assert first is not None
    assert events.inotify() is first


async def test_a_change_is_reported_once_until_it_was_taken(
    events: FileEvents, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand nodes in a burst don't fill the loop with reports of the same."""
    subscription = subscribe(events, directory)
    subscription.changed.set()
    calls: list[object] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", calls.append)
    subscription.tell()
    assert calls == []
    subscription.changed.clear()
    subscription.tell()
    assert calls == [subscription.changed.set]
    monkeypatch.undo()


@pytest.mark.usefixtures("_no_mounts")
async def test_a_queue_that_overflowed_is_a_change(events: FileEvents, directory: Path, tmp_path: Path) -> None:
    """What was lost is not known, so that everybody has to look."""
    (tmp_path / "other").mkdir()
    one, two = subscribe(events, directory), subscribe(events, tmp_path / "other")
    inotify = events.inotify()
    assert inotify is not None
    inotify.handle_event(InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b""))
    await told(one)
    await told(two)


def fds() -> collections.Counter[str]:
    """Count what this process has open, by what it is."""
    found: collections.Counter[str] = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[os.readlink(f"/proc/self/fd/{name}")] += 1
    return found


async def mounts_are_watched() -> None:
    """Wait until the thread that watches the mounts has opened what it needs."""
    async with asyncio.timeout(20):
        while not any(name.endswith("/mountinfo") for name in fds()):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)


async def test_the_end_gives_everything_back_and_tells_nothing(directory: Path) -> None:
    """No thread and no open file is left, and what happens afterwards is not reported."""
    threads, files = set(threading.enumerate()), fds()
    events = FileEvents()
    subscription = subscribe(events, directory)
    await mounts_are_watched()
    assert len(set(threading.enumerate()) - threads) == 2
    assert fds() - files
    subscription.changed.clear()
    events.close()
    (directory / "a").touch()
    await asyncio.sleep(0)
    assert not subscription.changed.is_set()
    assert set(threading.enumerate()) <= threads
    assert not fds() - files


async def test_the_end_waits_for_the_threads(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them tells anything when the call has returned."""
    before = set(threading.enumerate())
    events = FileEvents()
    subscribe(events, directory)
    started = set(threading.enumerate()) - before
    waited_for: set[threading.Thread] = set()
    join = threading.Thread.join

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        waited_for.add(thread)
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", noted)
    events.close()
    assert len(started) == 2
    assert waited_for == started


async def test_an_end_without_a_beginning_is_quiet() -> None:
    """Where no directory was ever watched there is no inotify instance to close."""
    files = fds()
    FileEvents().close()
    assert not fds() - files


def test_a_change_after_the_loop_was_closed_is_nobody_s(directory: Path) -> None:
    """Threads may outlive the loop, and must not die of it."""

    async def make() -> tuple[FileEvents, Subscription]:
        events = FileEvents()
        return events, subscribe(events, directory)

    events, subscription = asyncio.run(make())
    subscription.tell()
    assert not subscription.changed.is_set()
    events.close()


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Take this process's right to open a further file, also in the place of one that is closed meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_inotify_directories_are_polled_until_it_can_be_had(
    events: FileEvents, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says so, however often it is tried, and one line says that it is over."""
    caplog.set_level(logging.INFO)
    subscription = events.subscribe()
    await mounts_are_watched()
    with no_more_files():
        for _ in range(3):
            subscription.watch([str(directory)])
            assert subscription.interval == POLL_INTERVAL
        assert events.inotify() is None
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "fs.inotify.max_user_instances" in warning.getMessage()
    assert vars(warning)["interval"] == POLL_INTERVAL
    assert "limit reached" in vars(warning)["error"]
    for _ in range(2):
        subscription.watch([str(directory)])
        assert subscription.interval == SAFETY_INTERVAL
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    (directory / "a").touch()
    await told(subscription)


PREAMBLE = """
import asyncio, json, logging, os, subprocess, sys
from aosp_plugin.framework.events.file_events import FileEvents

told = []
intervals = []

class Keep(logging.Handler):
    def emit(self, record):
        told.append([record.levelname, getattr(record, "error", "")])

logging.getLogger("aosp_plugin").addHandler(Keep())
logging.getLogger("aosp_plugin").setLevel("INFO")

def limit(name, number):
    with open(f"/proc/sys/user/max_inotify_{name}", "w") as file:
        file.write(str(number))

async def changed(subscription):
    await asyncio.wait_for(subscription.changed.wait(), 20)
    subscription.changed.clear()

def look(subscription, *directories):
    subscription.watch(directories)
    intervals.append(subscription.interval)
"""


def in_process(script: str, *arguments: str, wrapper: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a script, in namespaces of its own where a wrapper makes them, and return what it printed."""
    if wrapper and subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode:  # noqa: S603
        pytest.skip(f"{' '.join(wrapper)} is not allowed here")
    body = textwrap.dedent(script)
    done = subprocess.run(  # noqa: S603 - this interpreter
        [*wrapper, sys.executable, "-W", "error", "-c", f"{PREAMBLE}\n{body}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


OWN_LIMITS = ("unshare", "--user", "--map-root-user")
OWN_MOUNTS = ("unshare", "--mount") if ROOT else (*OWN_LIMITS, "--mount")


@pytest.mark.parametrize(
    ("what", "error"),
    [("instances", "[Errno 24] inotify instance limit reached"), ("watches", "[Errno 28] inotify watch limit reached")],
)
def test_used_up_limits_of_the_host_are_polled_until_there_is_room(directory: Path, what: str, error: str) -> None:
    """As on a host with many containers: the kernel's own refusal, and the recovery from it."""
    script = """
        async def main():
            what, directory = sys.argv[1:]
            events = FileEvents()
            subscription = events.subscribe()
            limit(what, 0)
            for _ in range(3):
                look(subscription, directory)
            limit(what, 100)
            look(subscription, directory)
            os.mkdir(directory + "/new")
            await changed(subscription)
            events.close()

        asyncio.run(main())
        print(json.dumps({"told": told, "intervals": intervals}))
    """
    assert in_process(script, what, str(directory), wrapper=OWN_LIMITS) == {
        "told": [["WARNING", error], ["INFO", ""]],
        "intervals": [POLL_INTERVAL] * 3 + [SAFETY_INTERVAL],
    }


def test_a_mount_over_a_watched_directory_is_told(directory: Path) -> None:
    """Inotify says nothing of it; from the next call on the mounted file system is watched, and then the old one."""
    script = """
        async def main():
            directory, = sys.argv[1:]
            events = FileEvents()
            one, two = events.subscribe(), events.subscribe()
            look(one, directory)
            subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
            await changed(one)
            await changed(two)
            look(one, directory)
            os.mkdir(directory + "/on-the-mount")
            await changed(one)
            os.rmdir(directory + "/on-the-mount")
            await changed(one)
            subprocess.run(["umount", directory], check=True)
            await changed(one)
            look(one, directory)
            await asyncio.sleep(0)
            one.changed.clear()
            os.mkdir(directory + "/below")
            await changed(one)
            events.close()

        asyncio.run(main())
        print(json.dumps({"told": told, "intervals": intervals}))
    """
    assert in_process(script, str(directory), wrapper=OWN_MOUNTS) == {"told": [], "intervals": [SAFETY_INTERVAL] * 3}
    assert os.listdir(directory) == ["below"]


UNREADABLE = """
    async def main():
        directory, = sys.argv[1:]
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        events = FileEvents()
        subscription = events.subscribe()
        for _ in range(3):
            look(subscription, directory)
        held = sum(len(file_events.callbacks) for watch in events.inotify()._watch_for_wd.values())
        subscription.changed.clear()
        events.close()
        await asyncio.sleep(0)
        print(json.dumps({"told": told, "intervals": intervals, "held": held,
                          "told_at_the_end": subscription.changed.is_set()}))

    asyncio.run(main())
"""


def unreadable(path: str) -> dict[str, Any]:
    """Watch a directory that may be entered but not read, by another user than root."""
    if ROOT:
        os.chown(path, NOBODY, NOBODY)
    os.chmod(path, 0o300)
    try:
        return in_process(UNREADABLE, path)
    finally:
        os.chmod(path, 0o700)


def test_a_directory_that_may_not_be_read_is_polled(kubelet_dir: str) -> None:
    """One warning says why."""
    answer = unreadable(kubelet_dir)
    assert answer["intervals"] == [POLL_INTERVAL] * 3
    assert answer["told"] == [["WARNING", f"[Errno 13] inotify: permission denied: '{kubelet_dir}'"]]


def test_attempts_to_watch_a_directory_that_may_not_be_read_leave_nothing_behind(kubelet_dir: str) -> None:
    """It is tried every second, for as long as the process lives."""
    answer = unreadable(kubelet_dir)
    assert answer["held"] == 0
    assert not answer["told_at_the_end"]
