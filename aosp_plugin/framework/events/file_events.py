"""The file and mount events of the process, and the subscriptions to them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.events.mount_events import MountEvents
from aosp_plugin.framework.events.mount_table import MountTable
from aosp_plugin.framework.events.polling_log import PollingLog
from aosp_plugin.framework.events.subscription import Subscription
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.framework.events.pacing import Pacing

LOG = logging.getLogger(__name__)

_READ_TIMEOUT = 1.0
"""Seconds; /proc/self/mountinfo waits for the end of a mount or unmount (namespace_sem in fs/namespace.c)."""


class FileEvents:
    """The file and mount events of the process. Belongs to the running event loop, and to be used in its thread."""

    def __init__(self) -> None:
        """Watch the mount table. Raises OSError if the process has no free descriptors."""
        self._loop = asyncio.get_running_loop()
        self._subscriptions: tuple[Subscription, ...] = ()  # replaced by a single assignment
        self._log = PollingLog()
        self._mounts = MountEvents(self._loop)
        self._mounts.subscribe(self._mounts_changed)
        self._table = MountTable()
        self._worker = Worker("mount table")  # a table of thousands of mounts must not hold up the event loop
        self._reading: asyncio.Task[None] | None = None
        self._changed_since = False

    @property
    def polling(self) -> bool:
        """Whether inotify is not available for an existing directory. May be read in any thread."""
        return any(subscription.polling for subscription in self._subscriptions)

    def subscribe(self, pacing: Pacing | None = None) -> Subscription:
        """Return a subscription without directories. With ``pacing``, it is *paced*."""
        subscription = Subscription(self._loop, self._log, pacing)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def unsubscribe(self, *subscriptions: Subscription) -> None:
        """Forget subscriptions, which their owner closes."""
        self._subscriptions = tuple(each for each in self._subscriptions if each not in subscriptions)

    def close(self) -> None:
        """Stop all events; no subscription is notified afterwards."""
        self._mounts.close()
        if self._reading is not None and not self._loop.is_closed():
            self._reading.cancel()
        self._worker.close()
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions = ()

    def _mounts_changed(self) -> None:
        """Notify the subscriptions that the change may concern: each pod that starts mounts something somewhere."""
        self._changed_since = True
        for subscription in self._subscriptions:
            if subscription.paced:
                subscription.notify_mounts(None)
        if self._reading is None:
            self._reading = self._loop.create_task(self._compare())
            self._reading.add_done_callback(self._compared)

    async def _compare(self) -> None:
        """Read the table after each change, and let the subscriptions that are not paced compare it with theirs."""
        while self._changed_since:
            self._changed_since = False
            lines: Mapping[str, str] | None = None
            try:
                lines = await self._worker.run(self._table.read, _READ_TIMEOUT, label="read of the mount table")
            except (OSError, WorkerTimeoutError) as error:
                LOG.debug("mount table cannot be read", extra={"error": str(error)})
            for subscription in self._subscriptions:
                if not subscription.paced:
                    subscription.notify_mounts(lines)

    def _compared(self, _task: asyncio.Task[None]) -> None:
        self._reading = None
