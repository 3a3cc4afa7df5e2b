"""Changes of this process's mounts, which inotify does not report: a binderfs mounted over another one."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class MountEvents:
    """Calls functions after each change of the mount table. Belongs to one event loop.

    The kernel reports a change as POLLPRI on /proc/self/mountinfo (fs/proc_namespace.c ``mounts_poll``). The event
    loop's selector waits for POLLIN only, which is always set there. The file is therefore in an epoll object of its
    own that waits for POLLPRI alone; that object becomes readable, and the event loop waits for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to watch the mount table. Raises OSError if the process has no free descriptors."""
        self._loop = loop
        self._callbacks: list[Callable[[], None]] = []
        self._epoll = select.epoll()
        try:
            self._mountinfo = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._epoll.close()
            raise
        self._epoll.register(self._mountinfo, select.EPOLLPRI)
        loop.add_reader(self._epoll.fileno(), self._changed)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the event loop after each change from now on."""
        self._callbacks.append(callback)

    def close(self) -> None:
        """Stop watching."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        os.close(self._mountinfo)

    def _changed(self) -> None:
        self._epoll.poll(0)
        for callback in self._callbacks:
            callback()
