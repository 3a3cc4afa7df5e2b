"""Changes of this process's mounts, which inotify does not report: a binderfs mounted over another one."""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

MOUNTINFO = "/proc/self/mountinfo"


class MountEvents:
    """Calls a function in the event loop after changes of the mount table.

    The kernel reports a change as POLLPRI on /proc/self/mountinfo, once to each open file (fs/proc_namespace.c
    ``mounts_poll``), which is always readable as well. The event loop only waits for readable files, so it waits for
    an epoll instance that waits for POLLPRI. The table itself is not read: that may wait for mounts in progress.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """Watch the mount table. Raises OSError if the process has no free descriptors."""
        self._loop = loop
        self._changed = changed
        with contextlib.ExitStack() as files:
            table = files.enter_context(open(MOUNTINFO, "rb", buffering=0))
            self._poll = files.enter_context(select.epoll())
            self._poll.register(table, select.EPOLLPRI)
            self._files = files.pop_all()
        loop.add_reader(self._poll.fileno(), self._report)

    def close(self) -> None:
        """Stop watching. May be called again."""
        if not self._poll.closed:
            self._loop.remove_reader(self._poll.fileno())
            self._files.close()

    def _report(self) -> None:
        self._poll.poll(0)
        self._changed()
