"""A binderfs made of plain files, for machines without binderfs: it replaces functions of the driver module."""

import errno
import os
from collections.abc import Callable

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import BINDERFS


class FakeBinderfs:
    """Files instead of binder devices, with the refusals and limits of the kernel. Its directories are not mounts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions until the test ends."""
        self.mounts: dict[str, str] = {}
        """The source of each mount."""
        self.limits: dict[str, int] = {}
        """The ``max=`` of each mount that has one."""
        self.calls: list[str] = []
        """The name of each call that changes a mount: "mount" or "unmount"."""
        self.kernel_devices: tuple[str, ...] = ()
        """The binder devices that each mount creates (``devices=`` of the driver)."""
        self.hook: Callable[[str], None] = lambda _step: None
        """Called with the name of each step of the kernel."""
        for name in ("unmount", "add_device"):
            monkeypatch.setattr(binderfs, name, getattr(self, name))

    def mount(self, directory: str, source: str = BINDERFS) -> None:
        """Fill the directory as the kernel fills a new binderfs."""
        self.hook("mount")
        self.calls.append("mount")
        self.mounts[directory] = source
        for name in (binderfs.CONTROL_NAME, *self.kernel_devices):
            os.mknod(f"{directory}/{name}")

    def unmount(self, directory: str) -> None:
        """Empty the directory."""
        self.calls.append("unmount")
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        del self.mounts[directory]

    def add_device(self, directory: str, name: str) -> int:
        """Create a file with the mode that the kernel gives."""
        path = f"{directory}/{name}"
        if len(binderfs.device_names(directory)) >= self.limits.get(directory, binderfs.ALL_MINORS):
            raise binderfs.kernel_error(binderfs.Step.ADD, errno.ENOSPC, path)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise binderfs.kernel_error(binderfs.Step.ADD, errno.EEXIST, path) from None
        self.hook(f"add {name}")
        return 0
