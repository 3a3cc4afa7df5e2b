"""Stand-ins for binder devices: the device directory, and a second directory with the targets of links."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

NUMBERS = range(200)
"""The numbers of devices that faults create and delete; bursts use higher ones."""


class DeviceDirectory:
    """The device directory, and all names that it ever had."""

    def __init__(self, directory: str, targets: str, prefixes: Sequence[str]) -> None:
        self.directory = directory
        self.targets = targets
        self.prefixes = prefixes
        self.ever: set[str] = set()
        """All names so far, even those that existed for a moment."""
        os.makedirs(directory)
        os.makedirs(targets)
        self.device = _device(targets)

    @property
    def kind(self) -> str:
        """The value for the configuration's ``verify``: what the stand-ins are."""
        return "file" if self.device is None else "char"

    def path(self, name: str) -> str:
        """Return the path of a device, and record its name."""
        self.ever.add(name)
        return os.path.join(self.directory, name)

    def target(self, name: str) -> str:
        """Return the path of a link's target."""
        return os.path.join(self.targets, name)

    def names(self) -> list[str]:
        """Return the current names, sorted."""
        return sorted(name for name in os.listdir(self.directory) if name.startswith(tuple(self.prefixes)))

    def some(self, rng: random.Random, most: int) -> list[str]:
        """Return one or more random names that exist."""
        names = self.names()
        return rng.sample(names, min(rng.randint(1, most), len(names)))

    def new_names(self, rng: random.Random, most: int) -> list[str]:
        """Return one or more random names that do not exist."""
        names = set(self.names())
        prefix = rng.choice(self.prefixes)
        free = [name for number in NUMBERS if (name := f"{prefix}{number}") not in names]
        return rng.sample(free, min(rng.randint(1, most), len(free)))

    def make(self, name: str) -> None:
        """Create a device, and replace whatever has its name."""
        self.remove(name)
        make_device(self.path(name), self.device)

    def link(self, name: str) -> None:
        """Create a link to a device of the same name in the second directory, which is created."""
        self.remove(name)
        if not os.path.lexists(self.target(name)):
            make_device(self.target(name), self.device)
        os.symlink(self.target(name), self.path(name))

    def remove(self, name: str) -> None:
        """Remove whatever has this name."""
        remove(self.path(name))


def remove(path: str) -> None:
    """Remove a file or directory if it exists, even while other processes change the directory."""
    while not os.path.islink(path) and os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def make_device(path: str, device: int | None) -> None:
    """Create a character device with this number; None: a file."""
    if device is None:
        with open(path, "xb"):
            pass
    else:
        os.mknod(path, stat.S_IFCHR | 0o666, device)


def _device(directory: str) -> int | None:
    """Return a device number that works in a directory; None if only files do."""
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        for device in (os.makedev(1, 3), os.makedev(0, 0)):
            with contextlib.suppress(OSError):
                make_device(os.path.join(temporary, "device"), device)
                return device
    return None
