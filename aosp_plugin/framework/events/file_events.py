"""The file and mount events of the process, and the subscriptions to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aosp_plugin.framework.events.mount_events import MountEvents
from aosp_plugin.framework.events.polling_log import PollingLog
from aosp_plugin.framework.events.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Collection

    from aosp_plugin.framework.events.pacing import Pacing


class FileEvents:
    """The file and mount events of the process. Belongs to the running event loop, and to be used in its thread."""

    def __init__(self) -> None:
        """Watch the mount table. Raises OSError if the process has no free descriptors, or may not start a thread."""
        self._loop = asyncio.get_running_loop()
        self._subscriptions: tuple[Subscription, ...] = ()  # replaced by a single assignment
        self._log = PollingLog()
        self._mounts = MountEvents(self._notify_mounts)

    @property
    def polling(self) -> bool:
        """Whether inotify is not available for an existing directory. May be read in any thread."""
        return any(subscription.polling for subscription in self._subscriptions)

    def subscribe(self, pacing: Pacing | None = None) -> Subscription:
        """Return a subscription without directories. With ``pacing``, it is *paced*."""
        subscription = Subscription(self._loop, self._log, self._mounts, pacing)
        self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def unsubscribe(self, *subscriptions: Subscription) -> None:
        """Forget subscriptions, which their owner closes."""
        self._subscriptions = tuple(each for each in self._subscriptions if each not in subscriptions)

    def close(self) -> None:
        """Stop all events; no subscription is notified afterwards."""
        self._mounts.close()
        for subscription in self._subscriptions:
            subscription.close()
        self._subscriptions = ()

    def _notify_mounts(self, points: Collection[str] | None) -> None:
        for subscription in self._subscriptions:
            subscription.notify_mounts(points)
