"""Stand-in nodes: the device directory, and a second one that links lead into."""

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
"""Those that nodes come and go with, some at a time; others are for bursts."""


class Nodes:
    """What stands in the device directory, and what ever did."""

    def __init__(self, directory: str, elsewhere: str, prefixes: Sequence[str]) -> None:
        self.directory = directory
        self.elsewhere = elsewhere
        self.prefixes = prefixes
        self.ever: set[str] = set()
        """All names that there were, be it for a moment."""
        os.makedirs(directory)
        os.makedirs(elsewhere)
        self.device = _device(elsewhere)

    @property
    def kind(self) -> str:
        """What the nodes are, as the configuration's ``verify`` has it."""
        return "file" if self.device is None else "char"

    def path(self, name: str) -> str:
        """Return the path of a node, and note its name."""
        self.ever.add(name)
        return os.path.join(self.directory, name)

    def target(self, name: str) -> str:
        """Return the path of what a link of this name leads to."""
        return os.path.join(self.elsewhere, name)

    def names(self) -> list[str]:
        """Return the names that stand there now, in a fixed order."""
        return sorted(name for name in os.listdir(self.directory) if name.startswith(tuple(self.prefixes)))

    def some(self, rng: random.Random, most: int) -> list[str]:
        """Return one name or more of those that stand there."""
        there = self.names()
        return rng.sample(there, min(rng.randint(1, most), len(there)))

    def new_names(self, rng: random.Random, most: int) -> list[str]:
        """Return one name or more of those that nothing stands under."""
        there = set(self.names())
        prefix = rng.choice(self.prefixes)
        free = [name for number in NUMBERS if (name := f"{prefix}{number}") not in there]
        return rng.sample(free, min(rng.randint(1, most), len(free)))

    def make(self, name: str) -> None:
        """Put a node there, in the place of whatever stands there."""
        self.remove(name)
        make_node(self.path(name), self.device)

    def link(self, name: str, *, to: str | None = None) -> None:
        """Put a link there: to a node of the same name in the second directory, which is made, or elsewhere."""
        self.remove(name)
        if to is None:
            to = self.target(name)
            if not os.path.lexists(to):
                make_node(to, self.device)
        os.symlink(to, self.path(name))

    def remove(self, name: str) -> None:
        """Remove what stands there, whatever it is."""
        remove(self.path(name))


def remove(path: str) -> None:
    """Remove a file or directory, if it is there, and whatever others do in the directory at the same time."""
    while os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def make_node(path: str, device: int | None) -> None:
    """Make a node with this device number; None: a file."""
    if device is None:
        with open(path, "xb"):
            pass
    else:
        os.mknod(path, stat.S_IFCHR | 0o666, device)


def _device(directory: str) -> int | None:
    """Return the device number that nodes can have in a directory; None where they can be files alone."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        for device in (os.makedev(1, 3), os.makedev(0, 0)):
            with contextlib.suppress(OSError):
                make_node(os.path.join(place, "node"), device)
                return device
    return None
