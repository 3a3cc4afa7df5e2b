"""Incremental scans after real file and mount events: the result is that of a full scan.

Random operations, selected by a seed, on a small host: files, directories, links, file systems and bind mounts, at and
above the places of devices. A failure prints those since the last scan.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.backend import BinderBackend
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config import NamedSets, Resource
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.events import mount_events
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.events.pacing import Pacing
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.refresher import Refresher
from aosp_plugin.framework.worker import Worker
from tests.support import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from aosp_plugin.framework.events.subscription import Subscription

TIMEOUT = 20
TTL = 10.0
PAIR = ("binder", "hwbinder")
DEV, RUN = "scanned-dev", "scanned-run"
PHONES, DIRECTORIES = [f"phone{number}" for number in range(4)], [f"d{number}" for number in range(3)]
SEEDS, BURSTS = 6, 60
LAYOUTS: dict[str, NamedSets | None] = {"single": None, "nested": NamedSets(names=PAIR)}
BIND, PRIVATE, DETACH, NOFOLLOW = 1 << 12, 1 << 18, 2, 8

_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """Mount a file system."""
    if _LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, None):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def unmount(target: str, flags: int = DETACH) -> None:
    """Unmount a file system."""
    if _LIBC.umount2(target.encode(), flags | NOFOLLOW):
        raise OSError(ctypes.get_errno(), f"umount {target}")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    """Mount a tmpfs for the host; what is mounted in it later is unmounted too."""
    if os.geteuid() != 0:
        pytest.skip("mounts file systems, which requires root")
    directory = str(tmp_path / "host")
    os.mkdir(directory)
    mount("none", directory, "tmpfs")
    mount("none", directory, flags=PRIVATE)
    yield directory
    unmount(directory)


class Operations:
    """Random operations on a host with the directories DEV and RUN. Those that are not possible have no effect.

    Links on a host below a root lead to other places if they are followed as paths of this process. Therefore these
    directories have names that do not exist on this machine, and no operation follows a link out of ``root``.
    """

    def __init__(self, root: str, random: random.Random, host_root: str) -> None:
        """Links lead to paths below ``host_root``, as seen below ``root``."""
        self._root = root
        self._random = random
        self._prefix = host_root
        self.log: list[str] = []
        for directory in (DEV, RUN, "other", *(f"{RUN}/{name}" for name in DIRECTORIES)):
            assert not os.path.lexists(f"/{directory}")
            os.mkdir(f"{root}/{directory}")

    def run(self) -> None:
        """Run one."""
        name = self._random.choice([name for name in vars(Operations) if name.startswith("do_")])
        place, other = self._place(), self._place()
        follows = any(action in name for action in ("fill", "mount", "bind"))
        if not all(self._is_inside(path if follows else os.path.dirname(path)) for path in (place, other)):
            return
        self.log.append(f"{name.removeprefix('do_')} {place.removeprefix(self._root)} {other.removeprefix(self._root)}")
        with contextlib.suppress(OSError):
            getattr(self, name)(place, other)

    def _is_inside(self, path: str) -> bool:
        """Return whether this process finds the path below the root.

        A link of a host below another root leads to a file of this machine.
        """
        return f"{os.path.realpath(path)}/".startswith(f"{self._root}/")

    def _place(self) -> str:
        """Return a path: often that of a phone, a directory that links lead to, or a device in one of them."""
        choose = self._random.choice
        top = choose([DEV, DEV, DEV, RUN, RUN])
        if self._random.random() < 0.05:
            return f"{self._root}/{top}"
        directory = f"{self._root}/{top}/{choose(PHONES if top == DEV else DIRECTORIES)}"
        return directory if self._random.random() < 0.6 else f"{directory}/{choose([*PAIR, 'other'])}"

    def do_create(self, place: str, _other: str) -> None:
        """Create a file."""
        with open(place, "x", encoding="utf-8"):
            pass

    do_create_again = do_create

    def do_make_pipe(self, place: str, _other: str) -> None:
        """Create a pipe, which is not a device."""
        os.mkfifo(place)

    def do_make_directory(self, place: str, _other: str) -> None:
        """Create a directory with devices."""
        os.mkdir(place)
        self.do_fill(place, "")

    def do_fill(self, place: str, _other: str) -> None:
        """Create devices in a directory."""
        for name in PAIR:
            self.do_create(f"{place}/{name}", "")

    do_fill_again = do_fill

    def do_remove(self, place: str, _other: str) -> None:
        """Remove a file, or what is in a directory and not mounted."""
        if os.path.islink(place) or not os.path.isdir(place):
            os.unlink(place)
        elif os.path.basename(place) not in {DEV, RUN}:
            shutil.rmtree(place, ignore_errors=True)

    def do_link(self, place: str, other: str) -> None:
        """Create a link."""
        os.symlink(self._prefix + other.removeprefix(self._root), place)

    def do_replace_by_link(self, place: str, other: str) -> None:
        """Replace a file by a link."""
        self.do_remove(place, "")
        self.do_link(place, other)

    def do_rename(self, place: str, other: str) -> None:
        """Rename a file."""
        os.rename(place, other)

    def do_exchange(self, place: str, other: str) -> None:
        """Exchange two files."""
        aside = f"{self._root}/other/aside"
        os.rename(place, aside)
        os.rename(other, place)
        os.rename(aside, other)

    def do_mount(self, place: str, _other: str) -> None:
        """Mount a file system with devices."""
        mount("none", place, "tmpfs")
        self.do_fill(place, "")

    do_mount_again = do_mount

    def do_mount_empty(self, place: str, _other: str) -> None:
        """Mount an empty file system."""
        mount("none", place, "tmpfs")

    def do_bind(self, place: str, other: str) -> None:
        """Mount a file or directory at another place."""
        mount(other, place, flags=BIND)

    def do_unmount(self, place: str, _other: str) -> None:
        """Unmount, even if it is in use."""
        unmount(place)

    do_unmount_again = do_unmount

    def do_unmount_strictly(self, place: str, _other: str) -> None:
        """Unmount if it is not in use."""
        unmount(place, 0)

    def do_remount(self, place: str, _other: str) -> None:
        """Mount another file system. The kernel reuses the mount ID and the device number."""
        unmount(place)
        mount("none", place, "tmpfs")
        self.do_create(f"{place}/{self._random.choice(PAIR)}", "")

    do_remount_again = do_remount

    def do_bind_again(self, place: str, other: str) -> None:
        """Replace a mount by a bind mount."""
        unmount(place)
        mount(other, place, flags=BIND)

    def do_mount_elsewhere(self, _place: str, _other: str) -> None:
        """Mount at a place that does not matter."""
        mount("none", f"{self._root}/other", "tmpfs")

    def do_unmount_elsewhere(self, _place: str, _other: str) -> None:
        """Unmount there."""
        unmount(f"{self._root}/other")


class Backend(BinderBackend):
    """A backend that watches one more directory."""

    barriers = ""

    def directories(self) -> frozenset[str]:
        """Return the directories, and that of the barriers."""
        return super().directories() | {self.barriers}


class AlwaysDue(Pacing):
    """Withholds files that keep changing, but only from one scan to the next."""

    def _pace(self, _number: int) -> tuple[float, float]:
        return 0.0, 0.0


class World:
    """A host and two backends. The refresher scans one of them after events; the other one scans everything."""

    def __init__(self, root: str, barriers: Path, sets: NamedSets | None, *, below_a_root: bool) -> None:
        """``below_a_root``: the plugin has the host at ``root``, so that the paths of both differ."""
        barriers.mkdir()
        self._mount_barrier = f"{root}/barrier"
        os.mkdir(self._mount_barrier)
        prefix = "" if below_a_root else root
        keys: dict[str, Any] = {"device_prefix": "phone", "verify": Verify.FILE, "shared_devices": (), "sets": sets}
        resource = Resource(device_dir=f"{prefix}/{DEV}", missing_device_ttl=TTL, **keys)
        self.clock = Clock()
        self.full, self.incremental = (
            Backend(Host(root if below_a_root else "/"), resource, cdi_dir="/none", clock=self.clock) for _ in range(2)
        )
        self.incremental.barriers = str(barriers)
        self._events = FileEvents()
        self._worker = Worker("test")
        subscription = self._subscription = self._events.subscribe(AlwaysDue())
        self._refresher = Refresher(self.incremental, Inventory(), subscription, self._worker, asyncio.Event())
        self._barrier = barriers / "barrier"
        self._passed, self._mounts_passed = asyncio.Event(), asyncio.Event()
        self._record(subscription)
        self._record_mounts(self._events.subscribe())

    def _record_mounts(self, last: Subscription) -> None:
        """Set ``_mounts_passed`` when the mount of the barrier is reported to the last subscription."""
        loop = asyncio.get_running_loop()

        def recorded(points: Collection[str] | None) -> None:
            if points is None or self._mount_barrier in points:
                loop.call_soon_threadsafe(self._mounts_passed.set)

        last.notify_mounts = recorded  # type: ignore[method-assign]

    def _record(self, subscription: Subscription) -> None:
        """Set ``_passed`` when the event of the barrier is reported: all events before it have been reported then."""
        loop, notify = asyncio.get_running_loop(), subscription.notify

        def recorded(path: str | None = None) -> None:
            notify(path)
            if path == str(self._barrier):
                loop.call_soon_threadsafe(self._passed.set)

        subscription.notify = recorded  # type: ignore[method-assign]

    async def scan(self) -> None:
        """Scan after the events that have been reported so far; again if files that keep changing were withheld."""
        await self._refresher.scan(TIMEOUT)
        while self._subscription.due() is not None:
            await self._refresher.scan(TIMEOUT)

    async def scan_all_events(self) -> None:
        """Scan once, after all events have been reported."""
        self._passed.clear()
        self._mounts_passed.clear()
        self._barrier.touch()
        self._barrier.unlink()
        mount("none", self._mount_barrier, "tmpfs")
        async with asyncio.timeout(TIMEOUT):
            await self._passed.wait()
            await self._mounts_passed.wait()
        self._mounts_passed.clear()
        unmount(self._mount_barrier)
        async with asyncio.timeout(TIMEOUT):
            await self._mounts_passed.wait()
        await self.scan()

    async def scan_both(self) -> bool:
        """Scan with both backends after all events; return False if both fail: the device directory leads to itself."""
        try:
            await self.scan_all_events()
        except OSError:
            with pytest.raises(OSError, match="Too many levels of symbolic links"):
                self.full.scan()
            return False
        self.full.scan()
        return True

    def close(self) -> None:
        """End the threads."""
        self._events.close()
        self._worker.close()


@pytest.fixture
def world_of(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    """Return a function that creates a world, in which no reading of the mount table waits for the end of a burst."""
    monkeypatch.setattr(mount_events, "PAUSE", 0.0)
    worlds = []

    def create(sets: NamedSets | None, *, below_a_root: bool) -> World:
        worlds.append(World(root, tmp_path / "barriers", sets, below_a_root=below_a_root))
        return worlds[-1]

    yield create
    for world in worlds:
        world.close()


@pytest.mark.parametrize("below_a_root", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_scan_after_events_has_the_result_of_a_full_scan(
    root: str, world_of: Callable[..., World], seed: int, layout: str, *, below_a_root: bool
) -> None:
    """This includes the history of each device: what is missing, replaced or expired."""
    choices = random.Random(f"{seed} {layout} {below_a_root}")  # noqa: S311 - repeatable
    operations = Operations(root, choices, "" if below_a_root else root)
    world = world_of(LAYOUTS[layout], below_a_root=below_a_root)
    await world.scan()
    world.full.scan()
    for _ in range(BURSTS):
        operations.log.clear()
        for _ in range(choices.choice([1, 1, 2, 3, 5, 8])):
            operations.run()
        if not await world.scan_both():
            continue
        log = "\n".join(operations.log)
        assert list(world.incremental.devices()) == list(world.full.devices()), log
        assert world.incremental.binder_devices() == world.full.binder_devices(), log
        world.clock.now += choices.choice([0.0, 0.0, 1.0, TTL])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_missed_if_events_arrive_during_scans(
    root: str, world_of: Callable[..., World], seed: int, layout: str
) -> None:
    """The history depends on what the scans have seen, so only the devices that exist are compared."""
    choices = random.Random(f"{seed} {layout}")  # noqa: S311 - repeatable, except for the scheduling of the threads
    operations = Operations(root, choices, root)
    world = world_of(LAYOUTS[layout], below_a_root=False)
    await world.scan()
    world.full.scan()
    for _ in range(BURSTS):
        operations.log.clear()
        scan = asyncio.create_task(world.scan())
        for _ in range(choices.choice([1, 2, 3, 5, 8])):
            await asyncio.sleep(0)
            operations.run()
        with contextlib.suppress(OSError, PluginError):  # the next scan is a full one
            await scan
        if not await world.scan_both():
            continue
        existing = [
            {name: found for name, found in backend.binder_devices().items() if found}
            for backend in (world.incremental, world.full)
        ]
        assert existing[0] == existing[1], "\n".join(operations.log)
