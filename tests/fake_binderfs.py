"""A binderfs made of plain files, for machines without binderfs: it replaces functions of the driver module."""

import os
from collections.abc import Callable

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import BINDERFS
from tests.binder_driver import ALL_MINORS, CONTROL, MAJOR, Binderfs, Numbers


class FakeBinderfs:
    """Files instead of binder devices, with what ``binder_driver`` says. Its directories are not mounts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions until the test ends."""
        self.mounts: dict[str, str] = {}
        """The source of each mount."""
        self.systems: dict[str, Binderfs] = {}
        """The binderfs of each mount."""
        self.calls: list[str] = []
        """The name of each call that changes a mount: "mount" or "unmount"."""
        self.kernel_devices: tuple[str, ...] = ()
        """The binder devices that each mount creates (``devices=`` of the driver)."""
        self.hook: Callable[[str], None] = lambda _step: None
        """Called with the name of each step of the kernel."""
        self._numbers = Numbers()
        self._minors: dict[int, int] = {}
        """The minor number of each device, by the inode of its file."""
        for name in ("unmount", "add_device"):
            monkeypatch.setattr(binderfs, name, getattr(self, name))

    def mount(self, directory: str, source: str = BINDERFS) -> None:
        """Fill the directory as the kernel fills a new binderfs."""
        self.hook("mount")
        self.calls.append("mount")
        self.mounts[directory] = source
        self.systems[directory] = Binderfs(self._numbers, ALL_MINORS)
        os.mknod(f"{directory}/{CONTROL}")
        for name in self.kernel_devices:
            self._create(directory, name)

    def unmount(self, directory: str) -> None:
        """Empty the directory."""
        self.calls.append("unmount")
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        del self.mounts[directory]
        self.systems.pop(directory).close()

    def add_device(self, directory: str, name: str) -> int:
        """Create a file with the mode that the kernel gives."""
        number = self._create(directory, name)
        self.hook(f"add {name}")
        return number

    def _create(self, directory: str, name: str) -> int:
        system, path = self.systems[directory], f"{directory}/{name}"
        with os.scandir(directory) as entries:
            files = {entry.name: entry.inode() for entry in entries}
        for minor in system.minors - {self._minors.get(inode) for inode in files.values()}:
            system.release(minor)
        with binderfs.kernel_errors(binderfs.Step.ADD, path):
            minor = system.add(name, files)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL, 0o600)
        self._minors[os.fstat(descriptor).st_ino] = minor
        os.close(descriptor)
        return os.makedev(MAJOR, minor)
