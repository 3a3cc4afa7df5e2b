"""Changes of this process's mounts, which inotify doesn't tell: a binderfs mounted over another one."""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class MountEvents:
    """Tells of every change.

    The kernel reports them as POLLPRI on /proc/self/mountinfo (fs/proc_namespace.c ``mounts_poll``). POLLIN is
    always set there, so that it can't be left to the event loop's selector.
    """

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="mounts", daemon=True)
        self._thread.start()

    def tell(self, changed: Callable[[], None]) -> None:
        """Call this after each change from now on, in a thread of this one's own."""
        self._told.append(changed)

    def close(self) -> None:
        """End the thread."""
        os.write(self._stop_writer, b"!")
        self._thread.join()
        os.close(self._stop_reader)
        os.close(self._stop_writer)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._stop_reader, select.POLLIN)
        with open("/proc/self/mountinfo", "rb") as mounts:
            poll.register(mounts, select.POLLPRI)
            while all(descriptor != self._stop_reader for descriptor, _ in poll.poll()):
                for changed in self._told:
                    changed()
