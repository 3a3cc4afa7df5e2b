"""What the binder driver does with a binderfs, for everything that stands in for one: names, limits and numbers.

From drivers/android/binderfs.c of the kernel. The kernel's test ``test_same_steps`` holds a simulation that uses it to
real drivers, and so does ``tests/simulation/comparison.py`` to what they answered once.
"""

import errno
import heapq
import os
from collections.abc import Collection

MAJOR = 511
"""A dynamic major number (Documentation/admin-guide/devices.txt), as binderfs has one."""

CONTROL = "binder-control"
CONTROL_INODE, FIRST_DEVICE_INODE = 2, 3
"""The inode of the control file (``SECOND_INODE``), and that of a device with the minor number 0 (``INODE_OFFSET``)."""

ALL_MINORS = 1 << 20
"""Devices of a mount without ``max=``, at the most."""

KERNEL_DEVICES = ("binder", "hwbinder", "vndbinder")
"""What the driver creates at each mount (CONFIG_ANDROID_BINDER_DEVICES)."""


class Numbers:
    """Numbers of which the lowest free one is the next (lib/idr.c ``ida_alloc_range``)."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._free: list[int] = []

    def take(self) -> int:
        """Return a number that is in use from now on."""
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def release(self, number: int) -> None:
        """Let a number be taken again."""
        heapq.heappush(self._free, number)


class Binderfs:
    """The numbers of one binderfs: of its control file, and of its devices until nobody has them any more."""

    def __init__(self, minors: Numbers, limit: int) -> None:
        """``minors`` are those of the driver, and ``limit`` is the option ``max=`` of the mount."""
        self.limit = limit
        self.minors: set[int] = set()
        """Of the devices that exist, and of removed ones that are in use."""
        self._driver = minors
        self._control = minors.take()

    def add(self, name: str, names: Collection[str]) -> int:
        """Return the minor number of a new device; ``names`` are those of all files. Raises OSError."""
        if len(self.minors) >= self.limit:
            raise _error(errno.ENOSPC, name)
        check_new(name, names)
        minor = self._driver.take()
        self.minors.add(minor)
        return minor

    def release(self, minor: int) -> None:
        """Free the number of a removed device that nobody has any more."""
        self.minors.remove(minor)
        self._driver.release(minor)

    def close(self) -> None:
        """Free all numbers: it is mounted nowhere, and none of its files is in use."""
        for minor in [*self.minors]:
            self.release(minor)
        self._driver.release(self._control)


def check_new(name: str, names: Collection[str]) -> None:
    """Check the name of a new device; ``names`` are those of all files. Raises OSError."""
    if name in {"", ".", ".."} or "/" in name:  # fs/namei.c ``lookup_one_common``
        raise _error(errno.EACCES, name)
    if name in names:
        raise _error(errno.EEXIST, name)


def _error(code: int, name: str) -> OSError:
    return OSError(code, os.strerror(code), name)
