"""Recreation of a binder device in a simulated binderfs, by a process that may be killed before each host call."""

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.host import Host
from tests.simulation.processes import CURRENT, Process, ProcessKilledError
from tests.simulation.system import LOADER, simulated

with LOADER.importing():
    from aosp_plugin.binder.devices.scanner import BinderDevice, Kind, scan_devices
    from aosp_plugin.binder.devices.sets import Single
    from aosp_plugin.binder.driver import binderfs, host
    from aosp_plugin.binder.driver.binderfs import BinderfsError, DevicesExhaustedError, NotPermittedError
    from aosp_plugin.binder.provision.recreation import TEMPORARY_PREFIX, recreate_device

RUN = "/run/aosp-binderfs/phones"
TEMPORARY = f"{TEMPORARY_PREFIX}a1"


class Place(Host):
    """A host with a binderfs that has the device a1, and a link to it in /dev."""

    def __init__(self) -> None:
        super().__init__(0, lambda: 0.0)
        self.refused: dict[str, int] = {}
        """The error of each call that is refused."""
        self.files.make_directories(RUN)
        self.system = self.files.new_system("binder", "test")
        self.files.attach(self.system, RUN)
        self.files.add_device(self.system, "a1").mode = stat.S_IFCHR | 0o666
        self.files.add("/dev/a1", stat.S_IFLNK | 0o777).target = f"{RUN}/a1"

    def permit(self, name: str, path: Any) -> None:
        """Refuse a call."""
        super().permit(name, path)
        if name in self.refused:
            raise OSError(self.refused[name], os.strerror(self.refused[name]))

    def device(self, name: str = "a1") -> BinderDevice:
        """Scan for one device."""
        plugin_host = host.Host()
        return scan_devices(plugin_host, plugin_host.driver(), "/dev", Single("a")).devices[name]

    def recreate(self, device: BinderDevice | None = None) -> None:
        """Recreate a1, or another device."""
        recreate_device(device or self.device(), host.Host())

    def state(self) -> tuple[int, int, set[str]]:
        """Return inode and mode of a1, and the binder devices that were added."""
        inode = self.files.lookup(f"{RUN}/a1")
        names = {*binderfs.device_names(RUN)} - {"binder", "hwbinder", "vndbinder"}
        return inode.number, stat.S_IMODE(inode.mode), names

    def run(self, killed_at_call: int | None = None) -> Process:
        """Return a new process, which runs from now on."""
        process = self.new_process()
        process.killed_at_call = killed_at_call
        CURRENT.set(process)
        return process


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    with simulated(place):
        place.run()
        yield place
    CURRENT.set(None)
    assert place.violations == []


def test_a_recreated_device_has_another_inode_on_the_same_file_system(place: Place) -> None:
    """The inode means a context of its own. A container may have changed the mode of the old device."""
    place.files.lookup(f"{RUN}/a1").mode = stat.S_IFCHR
    before = place.device()
    place.recreate(before)
    after = place.device()
    assert before.identity is not None
    assert after.identity is not None
    assert after.identity.st_ino != before.identity.st_ino
    assert after.identity.file_system == before.identity.file_system
    assert place.state() == (after.identity.st_ino, 0o666, {"a1"})


def test_a_kill_at_any_point_leaves_a_usable_device(place: Place) -> None:
    """The name leads to the old device or the fresh one. The next recreation removes a temporary one."""
    names = set[str]()
    for call in itertools.count(1):
        device = place.device()
        process = place.run(killed_at_call=call)
        with contextlib.suppress(ProcessKilledError):
            place.recreate(device)
        place.run()
        assert place.device().kind is Kind.BINDERFS
        _, mode, found = place.state()
        assert mode == 0o666
        names |= found
        place.recreate()
        assert place.state()[2] == {"a1"}
        if process.alive:
            break
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
    place: Place, operation: str, number: int, kind: type[BinderfsError], text: str
) -> None:
    """A read-only binderfs is detected before anything is created that could not be removed."""
    before = place.state()
    place.refused[operation] = number
    with pytest.raises(BinderfsError, match=f"a1: .*{text}") as caught:
        place.recreate()
    assert type(caught.value) is kind
    assert place.state() == before


def test_recreation_requires_room_for_one_more_device(place: Place) -> None:
    assert place.system.binderfs is not None
    place.system.binderfs.limit = len(place.system.binderfs.minors)
    before = place.state()
    with pytest.raises(DevicesExhaustedError, match=f"^cannot create {RUN}/,[+]a1: the max= of the mount is reached"):
        place.recreate()
    assert place.state() == before


def test_only_devices_in_a_binderfs_are_recreated(place: Place) -> None:
    """In a directory of a device that is bind-mounted alone, no fresh device can be created."""
    with pytest.raises(BinderfsError, match="cannot recreate /dev/a1: its kind is cdev"):
        place.recreate(place.device()._replace(kind=Kind.CDEV))
    place.files.lookup("/dev").entries["a2"] = place.files.add_device(place.system, "a2")
    device = place.device("a2")
    assert (device.kind, device.directory) == (Kind.BINDERFS, "")
    with pytest.raises(BinderfsError, match=r"cannot recreate /dev/a2: .*mount the whole binderfs"):
        place.recreate(device)
