"""Which files an event names, and what the refresher has looked at for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest
from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, WatchDescriptor

from aosp_plugin.errors import BackendError
from aosp_plugin.framework import refresher
from aosp_plugin.framework.events.file_events import FileEvents, Subscription
from aosp_plugin.framework.events.mount_events import MountEvents
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.listed import ListedDevices
from aosp_plugin.framework.refresher import Refresher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection
    from pathlib import Path

PATIENCE = 20


@pytest.fixture(autouse=True)
def _no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep mounts that others make on this machine from telling anything."""
    monkeypatch.setattr(MountEvents, "tell", lambda _self, _changed: None)


@pytest.fixture
async def events() -> AsyncIterator[FileEvents]:
    """Return the file events of this test's loop."""
    made = FileEvents()
    yield made
    made.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory to watch."""
    made = tmp_path / "dev"
    made.mkdir()
    return made


async def until(subscription: Subscription, *paths: Path) -> frozenset[str] | None:
    """Wait until these have changed; return all that has, or None."""
    seen: frozenset[str] = frozenset()
    async with asyncio.timeout(PATIENCE):
        while not seen >= {str(path) for path in paths}:
            await subscription.changed.wait()
            subscription.changed.clear()
            more = subscription.changes()
            if more is None:
                return None
            seen |= more
    return seen


async def test_at_first_anything_may_have_changed(events: FileEvents, directory: Path) -> None:
    """And then nothing has, until something does."""
    subscription = events.subscribe()
    assert subscription.changes() is None
    subscription.watch([str(directory)])
    assert subscription.changes() is None
    assert subscription.changes() == frozenset()
    subscription.watch([str(directory)])
    assert subscription.changes() == frozenset()


async def test_a_change_is_told_by_its_path_and_once(events: FileEvents, directory: Path) -> None:
    """Whether a file came, was renamed or went; not what is not a name in UTF-8 either."""
    subscription = events.subscribe()
    subscription.watch([str(directory)])
    subscription.changes()
    odd = directory / os.fsdecode(b"caf\xe9")
    (directory / "a").touch()
    (directory / "a").rename(directory / "b")
    odd.touch()
    assert await until(subscription, odd) == frozenset(map(str, (directory / "a", directory / "b", odd)))
    assert subscription.changes() == frozenset()


async def test_a_further_directory_is_looked_at_as_a_whole(events: FileEvents, directory: Path, tmp_path: Path) -> None:
    """What happened in it before it was watched was never told."""
    subscription = events.subscribe()
    subscription.watch([str(directory)])
    subscription.changes()
    subscription.watch([str(directory), str(tmp_path)])
    assert subscription.changes() is None


async def test_a_directory_that_is_made_again_is_looked_at_as_a_whole(events: FileEvents, directory: Path) -> None:
    """Also when it goes: that event has no name."""
    subscription = events.subscribe()
    subscription.watch([str(directory)])
    subscription.changes()
    os.rmdir(directory)
    async with asyncio.timeout(PATIENCE):
        await subscription.changed.wait()
    assert subscription.changes() is None
    os.mkdir(directory)
    subscription.watch([str(directory)])
    assert subscription.changes() is None


async def test_what_is_polled_may_always_have_changed(events: FileEvents, tmp_path: Path) -> None:
    """No event tells of a directory that is not there, or that inotify can't be had for."""
    subscription = events.subscribe()
    for _ in range(3):
        subscription.watch([str(tmp_path / "missing")])
        assert subscription.changes() is None


async def test_lost_events_may_have_been_anything(events: FileEvents, directory: Path) -> None:
    """Even where later ones have names."""
    subscription = events.subscribe()
    subscription.watch([str(directory)])
    subscription.changes()
    inotify = events.inotify()
    assert inotify is not None
    inotify.handle_event(InotifyEvent(WatchDescriptor(-1), InotifyConstants.IN_Q_OVERFLOW, 0, b""))
    subscription.tell(str(directory / "a"))
    assert subscription.changes() is None
    assert subscription.changes() == frozenset()


class Recording(ListedDevices):
    """Devices that are files of a directory; notes what it is told to look at."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            "example.com/file",
            lambda: [str(path) for path in sorted(directory.iterdir())],
            directories=[str(directory)],
            missing_device_ttl=0,
        )
        self.further: frozenset[str] = frozenset()
        self.looks: list[Collection[str] | None] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.looked = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def directories(self) -> frozenset[str]:
        """Return all that is to be watched."""
        return super().directories() | self.further

    def scan(self, changed: Collection[str] | None = None) -> None:
        """Look; ``meanwhile`` may have more happen first."""
        self.looks.append(changed)
        now, self.meanwhile = self.meanwhile, lambda: None
        try:
            now()
            super().scan(changed)
        finally:
            self._loop.call_soon_threadsafe(self.looked.set)


@contextlib.asynccontextmanager
async def refreshing(events: FileEvents, backend: Recording) -> AsyncIterator[Refresher]:
    """Have a refresher at work, which has looked once."""
    stop = asyncio.Event()
    subscription = events.subscribe()
    made = Refresher(backend, Inventory(), subscription, stop)
    await made.scan()
    backend.looked.clear()
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        stop.set()
        await asyncio.wait_for(running, PATIENCE)


async def another_look(backend: Recording) -> Collection[str] | None:
    """Wait for a look, and return what it was told to look at."""
    await asyncio.wait_for(backend.looked.wait(), PATIENCE)
    backend.looked.clear()
    return backend.looks[-1]


async def test_the_first_look_is_at_everything_and_the_next_at_what_changed(
    events: FileEvents, directory: Path
) -> None:
    """A look that finds no further directory is the only one."""
    backend = Recording(directory)
    async with refreshing(events, backend):
        assert backend.looks == [None]
        (directory / "a").touch()
        assert await another_look(backend) == {str(directory / "a")}


async def test_a_look_that_was_asked_for_is_at_everything(events: FileEvents, directory: Path) -> None:
    """Whoever asks has no event to go by."""
    backend = Recording(directory)
    async with refreshing(events, backend) as one:
        one.trigger()
        assert await another_look(backend) is None


async def test_after_a_look_that_failed_everything_is_looked_at(events: FileEvents, directory: Path) -> None:
    """What had changed before it is told no more."""

    def fail() -> None:
        raise BackendError("broken for the test")

    backend = Recording(directory)
    async with refreshing(events, backend):
        backend.meanwhile = fail
        (directory / "a").touch()
        assert await another_look(backend) == {str(directory / "a")}
        (directory / "b").touch()
        assert await another_look(backend) is None
        (directory / "c").touch()
        assert await another_look(backend) == {str(directory / "c")}


async def test_what_changed_is_looked_at_again_where_there_are_more_directories(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """A link that leads to a new one may have got its target before that was watched."""
    backend = Recording(directory)
    async with refreshing(events, backend):
        backend.meanwhile = lambda: setattr(backend, "further", frozenset({str(tmp_path)}))
        (directory / "a").touch()
        await another_look(backend)
        async with asyncio.timeout(PATIENCE):
            while len(backend.looks) < 3:
                await another_look(backend)
        assert backend.looks[1:] == [{str(directory / "a")}, None]


async def test_what_changed_is_looked_at_again_where_there_are_fewer_directories(
    events: FileEvents, directory: Path, tmp_path: Path
) -> None:
    """The second look of the two is not told less than the first."""
    backend = Recording(directory)
    backend.further = frozenset({str(tmp_path)})
    async with refreshing(events, backend):
        backend.meanwhile = lambda: setattr(backend, "further", frozenset())
        (directory / "a").touch()
        async with asyncio.timeout(PATIENCE):
            while len(backend.looks) < 3:
                await another_look(backend)
        assert str(directory / "a") in (backend.looks[2] or ())


@pytest.mark.parametrize(("factor", "expected"), [(0, [None]), (10**9, [frozenset()])])
async def test_now_and_then_everything_is_looked_at_though_nothing_was_told(
    events: FileEvents, directory: Path, monkeypatch: pytest.MonkeyPatch, factor: int, expected: list[object]
) -> None:
    """But not before so many times the time that it took have passed."""
    monkeypatch.setattr(refresher, "FULL_SCAN_FACTOR", factor)
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.SAFETY_INTERVAL", 0.05)
    backend = Recording(directory)
    async with refreshing(events, backend):
        await another_look(backend)
    assert backend.looks[1:2] == expected


async def test_looks_without_a_calm_between_them_are_counted(
    events: FileEvents, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come further apart; after a calm, the next one is the first again."""
    rows: list[int] = []

    def pace(row: int) -> tuple[float, float]:
        rows.append(row)
        return 0.0, 0.0

    monkeypatch.setattr(refresher, "pace", pace)
    backend = Recording(directory)
    monkeypatch.setattr(refresher, "CALM", 1000.0)
    async with refreshing(events, backend):
        for name in "abc":
            (directory / name).touch()
            await another_look(backend)
        monkeypatch.setattr(refresher, "CALM", 0.0)
        (directory / "d").touch()
        await another_look(backend)
    assert rows[:2] == [0, 1]
    assert rows[-1] == 0
