"""Mounts of binderfs by mount(2), as an administrator makes them."""

import os

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import BINDERFS

_MS_REMOUNT = 32  # include/uapi/linux/mount.h


def mount(directory: str, source: str = BINDERFS) -> None:
    """Mount a new binderfs on a directory. Raises BinderfsError."""
    _mount(directory, source, 0, b"")


def limit(directory: str, max_devices: int) -> None:
    """Remount the binderfs at a directory with another ``max=``. Raises BinderfsError."""
    _mount(directory, BINDERFS, _MS_REMOUNT, b"max=%d" % max_devices)


def _mount(directory: str, source: str, flags: int, options: bytes) -> None:
    with binderfs.kernel_errors(binderfs.Step.MOUNT, directory):
        binderfs.call("mount", os.fsencode(source), os.fsencode(directory), BINDERFS.encode(), flags, options)
