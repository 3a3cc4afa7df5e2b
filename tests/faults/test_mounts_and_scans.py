"""Real file and mount events: whatever happens to the host, the plugin scans it afterwards.

Random operations, selected by a seed, on a small host: files, directories, links, file systems and bind mounts, at and
above the places of devices. A failure prints the last ones.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import NamedSets, Resource
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.scan_loop import ScanLoop
from aosp_plugin.framework.timing import Stop, Timings

TIMEOUT = 20
EVENTS_ONLY = Timings(safety=3600.0, poll=0.05, retry=0.05)
"""No scan without an event, except of what is missing or cannot be read."""
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
        self.exposed = False
        """Whether a directory above the watched ones may have been replaced, which causes no event."""
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
        tops = {f"{self._root}/{DEV}", f"{self._root}/{RUN}"}
        self.exposed = self.exposed or not tops.isdisjoint((place, other))
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


Devices = dict[str, Any]


def existing(found: FoundDevices) -> Devices:
    """Return the binder devices that exist, by device."""
    return {name: members for name, members in found.members.items() if members}


def scanned(backend: BinderBackend) -> Devices | None:
    """Scan, and return what exists; None if the device directory leads to itself."""
    try:
        return existing(backend.scan())
    except OSError as error:
        assert error.errno == errno.ELOOP  # noqa: PT017 - any other error is one of the test
        return None


@pytest.mark.parametrize("below_a_root", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_change_of_the_host_is_noticed(root: str, seed: int, layout: str, *, below_a_root: bool) -> None:
    """``below_a_root``: the plugin has the host at ``root``, so that the paths of both differ."""
    choices = random.Random(f"{seed} {layout} {below_a_root}")  # noqa: S311 - repeatable
    prefix = "" if below_a_root else root
    operations = Operations(root, choices, prefix)
    keys: dict[str, Any] = {"device_prefix": "phone", "verify": Verify.FILE, "shared_devices": ()}
    resource = Resource(device_dir=f"{prefix}/{DEV}", sets=LAYOUTS[layout], **keys)
    full, followed = (BinderBackend(Host(root if below_a_root else "/"), resource, cdi_dir="/none") for _ in range(2))
    stop = Stop()
    loop = ScanLoop(followed, stop, Runtime(timings=EVENTS_ONLY))
    await loop.prepare()
    running = asyncio.create_task(loop.run())
    try:
        for _ in range(BURSTS):
            operations.log.clear()
            for _ in range(choices.choice([1, 1, 2, 3, 5, 8])):
                await asyncio.sleep(0)
                operations.run()
            if operations.exposed:
                loop.trigger()
                operations.exposed = False
            if (expected := scanned(full)) is None:
                continue
            try:
                async with asyncio.timeout(TIMEOUT):
                    while existing(loop.inventory.found) != expected:  # noqa: ASYNC110 - an unchanged scan sets no event
                        await asyncio.sleep(0.005)
            except TimeoutError:
                assert existing(loop.inventory.found) == expected, "\n".join(operations.log)
    finally:
        stop.request()
        await running
        await loop.close()
