"""Device files on file systems that hang on request: one whose type says that it may, and one whose type does not."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tests.chaos import place
from tests.chaos.files import make_device
from tests.hanging_fs import HangingFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGETS = 8
"""The number of devices in the overlay, which never change: an overlay requires that of its layers."""


class Remote:
    """A FUSE file system, and an overlay over another one, which hangs with it although its type is ``overlay``."""

    def __init__(self, root: str, device: int | None) -> None:
        self._device = device
        self._fuse = HangingFileSystem(os.path.join(root, "remote"))
        self._lower = HangingFileSystem(os.path.join(root, "lower"))
        self.overlay = os.path.join(root, "overlay")
        self.names: set[str] = set()
        """The names of all devices that the FUSE file system ever had."""
        self._hanging: set[str] = set()

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Mount all while the context lasts."""
        with self._fuse, self._lower:
            for number in range(TARGETS):
                make_device(os.path.join(self._lower.source, str(number)), self._device)
            empty = self.overlay + ".empty"
            os.makedirs(self.overlay)
            os.makedirs(empty)
            place.mount(self.overlay, f"lowerdir={self._lower.directory}:{empty}", kind="overlay")
            try:
                yield
            finally:
                self.release()
                place.unmount(self.overlay)

    def target(self, name: str) -> str:
        """Return the path of a device on the FUSE file system, which is created if it is missing."""
        self.names.add(name)
        if not os.path.lexists(self.source(name)):
            make_device(self.source(name), self._device)
        return os.path.join(self._fuse.directory, name)

    def source(self, name: str = "") -> str:
        """Return a path at which the FUSE file system can be changed even while it hangs."""
        return os.path.join(self._fuse.source, name)

    def hang(self) -> None:
        """Let the FUSE file system hang."""
        self._hanging.add(self._fuse.directory)
        self._fuse.hang()

    def hang_overlay(self) -> None:
        """Let the overlay hang."""
        self._hanging.add(self.overlay)
        self._lower.hang()

    def release(self) -> None:
        """End all hangs."""
        self._fuse.release()
        self._lower.release()
        self._hanging.clear()

    def hangs(self, path: str) -> bool:
        """Return whether a path leads to a file system that hangs now. Only the path's last name may be a link."""
        for _ in range(40):
            if os.path.dirname(path) in self._hanging:
                return True
            if not os.path.islink(path):
                return False
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        return False
