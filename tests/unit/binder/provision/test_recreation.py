"""Recreation of a binder device: real files and the real scanner, and a fake binderfs instead of the kernel's."""

import contextlib
import errno
import functools
import gc
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.binder.devices import scanner
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.devices.sets import Single
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError, DevicesExhaustedError, NotPermittedError
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.binder.provision.recreation import TEMPORARY_PREFIX, recreate_device
from tests.fake_binderfs import FakeBinderfs

TEMPORARY = f"{TEMPORARY_PREFIX}a1"
OPERATIONS = ("lstat", "unlink", "chmod", "rename")
"""The functions of ``os`` that a recreation calls. The fake binderfs reports BINDER_CTL_ADD."""


class DeviceHost(Host):
    """Reports plain files as character devices, with the inode as the number, so that the tests need no root."""

    def lstat(self, path: str) -> os.stat_result:
        """Return the status of the file."""
        status = os.lstat(self.process_path(path))
        if not stat.S_ISREG(status.st_mode):
            return status
        values = (stat.S_IFCHR | stat.S_IMODE(status.st_mode), *status[1:10])
        return os.stat_result(values, {"st_rdev": status.st_ino, "st_mtime_ns": status.st_mtime_ns})


class Place:
    """A host below a root: a binderfs with the device a1 at /run, and a link to it in /dev."""

    def __init__(self, root: Path, kernel: FakeBinderfs) -> None:
        self.root = root
        self.dev, self.run = root / "dev", root / "run"
        self.dev.mkdir(parents=True)
        self.run.mkdir()
        self.kernel = kernel
        self.kernel.mount(str(self.run))
        self.host = DeviceHost(str(root))
        self.add("a1")
        (self.dev / "a1").symlink_to("/run/a1")

    def add(self, name: str, mode: int = 0o666) -> None:
        """Create a binder device."""
        self.kernel.add_device(str(self.run), name)
        (self.run / name).chmod(mode)

    def scan(self, directory: str = "/dev") -> dict[str, BinderDevice]:
        """Scan for devices."""
        driver = Driver(frozenset({self.run.stat().st_dev}))
        return scanner.scan_devices(self.host, driver, directory, Single("a")).devices

    def device(self, name: str = "a1") -> BinderDevice:
        """Scan for one device."""
        return self.scan()[name]

    def recreate(self, device: BinderDevice | None = None) -> None:
        """Recreate a1, or another device."""
        recreate_device(device or self.device(), self.host)

    def inode(self) -> int:
        """Return the inode of a1, which differs between a device and its replacement."""
        return (self.run / "a1").lstat().st_ino

    def names(self) -> set[str]:
        """Return the binder devices of the binderfs."""
        return set(binderfs.device_names(str(self.run)))


@pytest.fixture
def place(tmp_path: Path, fake_binderfs: FakeBinderfs) -> Place:
    return Place(tmp_path / "host", fake_binderfs)


def raising(number: int) -> Callable[..., None]:
    """Return a function that raises this OSError."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@contextlib.contextmanager
def observed(place: Place, observer: Callable[[str], None]) -> Iterator[None]:
    """Call ``observer`` with the name of each point before and after an operation. Its own operations do not count."""
    inside = False

    def point(name: str) -> None:
        nonlocal inside
        if not inside:
            inside = True
            try:
                observer(name)
            finally:
                inside = False

    def operation(name: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        point(f"before {name}")
        result = function(*arguments, **more)
        point(f"after {name}")
        return result

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, functools.partial(operation, name, getattr(os, name)))
        patch.setattr(place.kernel, "hook", lambda step: point(f"after {step}"))
        yield


def points(place: Place) -> list[str]:
    """Return every point of a recreation, in order."""
    found: list[str] = []
    place.recreate()  # at its first run, coverage looks up the module's file with lstat
    device = place.device()
    with observed(place, found.append):
        place.recreate(device)
    return found


def test_a_recreated_device_has_another_inode_on_the_same_file_system(place: Place) -> None:
    """The inode means a context of its own. A container may have changed mode and owner of the old device."""
    if os.geteuid() == 0:
        os.chown(place.run / "a1", 1000, 1001)
    (place.run / "a1").chmod(0)
    before = place.device()
    place.recreate(before)
    after, status = place.device(), (place.run / "a1").stat()
    assert before.identity is not None
    assert after.identity is not None
    assert after.identity.st_ino != before.identity.st_ino
    assert after.identity.file_system == before.identity.file_system
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o666, os.geteuid())
    assert place.names() == {"a1"}


def recreate_until(place: Place, stop: str, end: Callable[[], None]) -> None:
    """Recreate a1, and call ``end`` at the point ``stop``."""
    device = place.device()
    with observed(place, lambda point: end() if point == stop else None):
        place.recreate(device)


def killed_at(place: Place, stop: str) -> bool:
    """Recreate a1 in a process that ends at ``stop`` without cleanup. Return whether it reached that point."""
    child = os.fork()
    if child == 0:  # pragma: no cover - the child ends before coverage saves its data
        gc.disable()  # gRPC's objects wait for threads when they are collected, which a child does not have
        recreate_until(place, stop, lambda: os._exit(9))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_kill_at_any_point_leaves_a_usable_device(place: Place) -> None:
    """The name leads to the old device or the fresh one. The next recreation removes a temporary one."""
    names = set()
    for stop in points(place):
        assert killed_at(place, stop)
        assert place.device().kind is Kind.BINDERFS
        assert stat.S_IMODE((place.run / "a1").stat().st_mode) == 0o666
        names |= place.names()
        place.recreate()
        assert place.names() == {"a1"}
    assert names == {"a1", TEMPORARY}


@pytest.mark.parametrize(
    ("operation", "number", "kind", "text"),
    [
        ("rename", errno.EBUSY, BinderfsError, "it is a mount point"),
        ("unlink", errno.EROFS, BinderfsError, "read-only"),
        ("chmod", errno.EPERM, NotPermittedError, "root"),
        ("rename", errno.EIO, BinderfsError, "Input/output error"),
    ],
)
def test_a_refusal_leaves_the_old_device_unchanged(
    place: Place, monkeypatch: pytest.MonkeyPatch, operation: str, number: int, kind: type[BinderfsError], text: str
) -> None:
    """A read-only binderfs is detected before anything is created that could not be removed."""
    before, device = place.inode(), place.device()
    monkeypatch.setattr(os, operation, raising(number))
    with pytest.raises(BinderfsError, match=f"a1: .*{text}") as caught:
        place.recreate(device)
    assert type(caught.value) is kind
    assert (place.inode(), place.names()) == (before, {"a1"})


def test_recreation_requires_room_for_one_more_device(place: Place) -> None:
    place.kernel.systems[str(place.run)].limit = 1
    before = place.inode()
    with pytest.raises(
        DevicesExhaustedError, match=f"^cannot create {place.run}/,[+]a1: the max= of the mount is reached"
    ):
        place.recreate()
    assert (place.inode(), place.names()) == (before, {"a1"})


def test_only_devices_in_a_binderfs_are_recreated(place: Place) -> None:
    """In a directory of a device that is bind-mounted alone, no fresh device can be created."""
    with pytest.raises(BinderfsError, match="cannot recreate /dev/a1: its kind is cdev"):
        place.recreate(place.device()._replace(kind=Kind.CDEV))
    (place.dev / "a2").touch()
    device = place.device("a2")
    assert (device.kind, device.directory) == (Kind.BINDERFS, "")
    with pytest.raises(BinderfsError, match=r"cannot recreate /dev/a2: .*mount the whole binderfs"):
        place.recreate(device)
