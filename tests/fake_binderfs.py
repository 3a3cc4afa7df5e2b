"""A binderfs made of plain files, for machines without binderfs: it replaces functions of the driver module."""

import errno
import os
from collections.abc import Callable

import pytest

from aosp_plugin.binder.driver import binderfs, mounts


def binderfs_mount(
    directory: str, max_devices: int | None, source: str = mounts.BINDERFS, device: int = 1
) -> mounts.MountPoint:
    """Return a line of the mount table."""
    options = "rw" if max_devices is None else f"rw,max={max_devices}"
    return mounts.MountPoint(directory, device, mounts.BINDERFS, source, options)


class FakeBinderfs:
    """Files instead of binder devices, with the refusals and limits of the kernel. Its directories are not mounts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the functions until the test ends."""
        self.mounts: dict[str, mounts.MountPoint] = {}
        self.calls: list[tuple[str, int | None]] = []
        """The name of each call that changes a mount, "mount", "remount" or "unmount", and its max=."""
        self.kernel_devices: tuple[str, ...] = ()
        """The binder devices that each mount creates (``devices=`` of the driver)."""
        self.hook: Callable[[str], None] = lambda _step: None
        """Called with the name of each step of the kernel."""
        for name in ("mount", "unmount", "mount_at", "add_device"):
            monkeypatch.setattr(binderfs, name, getattr(self, name))

    def mount(
        self,
        directory: str,
        max_devices: int | None = None,
        *,
        source: str = mounts.BINDERFS,
        remount: bool = False,
    ) -> None:
        """Fill the directory as the kernel fills a new binderfs."""
        self.hook("mount")
        self.calls.append(("remount" if remount else "mount", max_devices))
        source = self.mounts[directory].source if remount else source
        self.mounts[directory] = binderfs_mount(directory, max_devices or binderfs.ALL_MINORS, source)
        if not remount:
            for name in (binderfs.CONTROL_NAME, *self.kernel_devices):
                os.mknod(f"{directory}/{name}")

    def unmount(self, directory: str) -> None:
        """Empty the directory."""
        self.calls.append(("unmount", None))
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        del self.mounts[directory]

    def mount_at(self, directory: str) -> mounts.MountPoint | None:
        """Return the mount."""
        return self.mounts.get(directory)

    def add_device(self, directory: str, name: str) -> int:
        """Create a file with the mode that the kernel gives."""
        path, limit = f"{directory}/{name}", self.mounts[directory].max_devices
        count = len(binderfs.device_names(directory))
        if limit is not None and count >= limit:
            raise binderfs.exhausted(path, count, limit)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise binderfs.refusal(binderfs.Step.ADD, errno.EEXIST, path) from None
        self.hook(f"add {name}")
        return 0
