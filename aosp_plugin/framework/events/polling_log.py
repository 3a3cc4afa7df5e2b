"""Log events about directories that have to be polled."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aosp_plugin.framework.events.subscription import Subscription

LOG = logging.getLogger(__name__)

POLL_INTERVAL = 1.0
"""Seconds between two scans if inotify is not available, or a directory does not exist."""


class PollingLog:
    """Logs once when a directory has to be polled, and once when it is watched again. To be used in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for the next one
        self._errors: dict[tuple[str, Subscription], str] = {}

    def record(self, subscription: Subscription, path: str, error: OSError | None) -> None:
        """Record that a subscription polls ``path`` (empty: every directory), or (None) watches it."""
        with self._lock:
            before = self._state(path)
            if error is not None:
                self._errors[path, subscription] = str(error)
            else:
                self._errors.pop((path, subscription), None)
            after = self._state(path)
        if after and after != before:
            LOG.warning(
                "inotify unavailable, falling back to polling",
                extra={"path": path or "all", "error": "; ".join(after), "interval": POLL_INTERVAL},
            )
        elif before and not after:
            LOG.info("inotify available again", extra={"path": path or "all"})

    def forget(self, subscription: Subscription) -> None:
        """Drop what was recorded for a subscription that ends."""
        with self._lock:
            self._errors = {key: text for key, text in self._errors.items() if key[1] is not subscription}

    def _state(self, path: str) -> list[str]:
        """Return the different errors of a path."""
        return sorted({text for (other, _), text in self._errors.items() if other == path})
