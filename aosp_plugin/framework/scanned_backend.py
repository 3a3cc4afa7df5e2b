"""A backend with what it runs on: its worker thread, its file events, and the inventory that scans keep current."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from aosp_plugin.framework import host_calls
from aosp_plugin.framework.errors import BackendError, PluginError, WorkerTimeoutError
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.events.pacing import QUIET, Pacing
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.observer import NULL_OBSERVER
from aosp_plugin.framework.refresher import Refresher
from aosp_plugin.framework.service.termination import EXIT_WITHIN
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.events.subscription import Subscription
    from aosp_plugin.framework.observer import Observer

LOG = logging.getLogger(__name__)

CLOSE_TIMEOUT = EXIT_WITHIN - 1.0
"""Seconds for ``Backend.close`` and the call before it, which leaves a second for the rest of the end of a process."""


class ScannedBackend:
    """Scans a backend for the first time, keeps its inventory current, and closes it. For one event loop."""

    def __init__(
        self,
        backend: Backend,
        stop: asyncio.Event,
        *,
        files: FileEvents | None = None,
        observer: Observer = NULL_OBSERVER,
        quiet: float = QUIET,
        close_timeout: float = CLOSE_TIMEOUT,
    ) -> None:
        """``stop`` ends the periodic scans. The caller that creates ``files`` also closes it.

        ``quiet``: seconds without a file event after which a scan starts. ``close_timeout``: seconds for ``close``.
        """
        self.backend = backend
        self.worker = Worker(backend.resource_name)
        self.inventory = Inventory()
        self._close_timeout = close_timeout
        self._own_files = files is None
        self.files = files if files is not None else FileEvents()
        self._subscriptions: list[Subscription] = []
        changes = self.subscribe(Pacing(quiet))
        self.refresher = Refresher(backend, self.inventory, changes, self.worker, stop, observer)
        self._prepared = False

    def subscribe(self, pacing: Pacing | None = None) -> Subscription:
        """Return a subscription to file events, to be used in ``worker``. ``close`` closes it."""
        subscription = self.files.subscribe(pacing)
        self._subscriptions.append(subscription)
        return subscription

    async def prepare(self, *, require_devices: bool = False) -> None:
        """Scan the devices for the first time, without any other effect on the host.

        Raises what makes the devices impossible to serve: OSError and PluginError of the scan, WorkerTimeoutError if it
        takes more than ``host_calls.SCAN_TIMEOUT``, and BackendError if it finds no device although ``require_devices``
        is set and the backend does not create devices.
        """
        await self.refresher.scan(host_calls.SCAN_TIMEOUT)
        self._prepared = True
        if require_devices and not self.backend.creates_devices:
            self._check_devices()

    async def start(self, *, require_devices: bool) -> None:
        """Scan and update the host before the first registration, and scan again if that changed something.

        So the devices are published all at once, and none that the failed update of the host makes unusable. Only the
        first scan can keep the plugin from serving: another plugin may have been stopped for it.
        """
        if not self._prepared:
            with contextlib.suppress(WorkerTimeoutError):  # the scan hangs, which is logged
                await self.prepare(require_devices=require_devices)
        if self._prepared:
            await self.refresher.update_host(host_calls.SCAN_TIMEOUT)
            if self.backend.creates_devices or self.backend.seconds_until_scan() == 0.0:
                with contextlib.suppress(OSError, PluginError):  # which is logged, and retried
                    await self.refresher.scan(host_calls.SCAN_TIMEOUT)
                if require_devices:
                    self._check_devices()

    def _check_devices(self) -> None:
        if not self.inventory.snapshot.devices:
            scanned = f" matches {self.backend.scanned_files}" if self.backend.scanned_files else " found"
            raise BackendError(f"no device of {self.backend.resource_name}{scanned}, and require_devices is set")

    async def close(self, *others: Awaitable[object], close_backend: bool) -> None:
        """Release everything, side by side with ``others``; call ``Backend.close`` if ``close_backend``.

        It runs in the worker thread, after the call that runs there now. What has not ended in time, because a call
        hangs or the processors are busy, is logged and left: the file events are released when it ends. Raises the
        first error.
        """
        self.files.unsubscribe(*self._subscriptions)
        if self._own_files:
            self.files.close()
        close: Callable[[], None] = self._close_all if close_backend else self._close_subscriptions
        closing = [self.worker.run(close, self._close_timeout, label="close"), *others]
        results = await asyncio.gather(*closing, return_exceptions=True)
        self.worker.close(self._close_subscriptions)
        for error in results:
            if isinstance(error, WorkerTimeoutError):
                LOG.warning("close is overdue, leaving it", extra={"error": str(error)})
            elif isinstance(error, BaseException):
                raise error

    def _close_all(self) -> None:
        self._close_subscriptions()
        self.backend.close()

    def _close_subscriptions(self) -> None:
        for subscription in self._subscriptions:
            subscription.close()
