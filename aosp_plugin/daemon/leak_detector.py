"""Scans for leaked devices at an interval and logs each leak once. ``leaks`` has the scan itself."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from aosp_plugin.daemon import leaks
from aosp_plugin.errors import HostError
from aosp_plugin.framework.aio import run_in_daemon_thread, wait_any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.daemon.leaks import Holder, Leaks

LOG = logging.getLogger(__name__)


class LeakDetector:
    """Keeps the leaks of all resources as of the latest scan."""

    def __init__(self, backends: Mapping[str, BinderBackend], kubelet_dir: str, interval: float) -> None:
        """Prepare scans of ``backends``, by resource name, every ``interval`` seconds."""
        self._backends = backends
        self._checkpoint = os.path.join(kubelet_dir, leaks.CHECKPOINT)
        self._interval = interval
        self._open_leaks: dict[str, Sequence[Holder]] = {}
        self._incomplete = False
        self._failure = ""
        self.latest: Mapping[str, Leaks] = {}
        """By resource name; empty before the first scan."""
        self.scanned: float | None = None
        """When the scan of ``latest`` ended, in seconds since the epoch."""

    @property
    def problem(self) -> str:
        """Why ``latest`` may be outdated; empty if it is not. May be read in any thread."""
        return f"leak scan failed: {self._failure}" if self._failure else ""

    async def run(self, stop: asyncio.Event) -> None:
        """Scan at every interval until ``stop`` is set. A failed scan leaves ``latest`` as it was."""
        while not await wait_any(stop, timeout=self._interval):
            try:
                await self.scan()
            except OSError as error:
                self._log_failure(str(error))
            else:
                self._log_failure("")

    async def scan(self) -> Mapping[str, Leaks]:
        """Scan once in a worker thread, log what changed, and return the leaks by resource name."""
        self.latest = await run_in_daemon_thread(self._scan_all, "leaks")
        self.scanned = time.time()
        for resource, resource_leaks in self.latest.items():
            self._log_changes(resource, resource_leaks)
        return self.latest

    def _scan_all(self) -> dict[str, Leaks]:
        return {resource: self._scan_backend(resource, backend) for resource, backend in self._backends.items()}

    def _scan_backend(self, resource: str, backend: BinderBackend) -> Leaks:
        device_sets = backend.binder_devices()

        def owners() -> dict[str, frozenset[str]] | None:
            pods = self._read_owners(resource)
            if pods is None:
                return None
            return {
                binder_device.name: frozenset().union(*(pods.get(id_, ()) for id_ in backend.advertised_ids(device_id)))
                for device_id, device_set in device_sets.items()
                for binder_device in device_set
            }

        return leaks.scan([device for device_set in device_sets.values() for device in device_set], owners)

    def _read_owners(self, resource: str) -> dict[str, frozenset[str]] | None:
        """Return the UIDs of the pods that own each device ID; None if the kubelet's checkpoint cannot be read."""
        try:
            with open(self._checkpoint, "rb") as file:
                return leaks.parse_checkpoint(file.read(), [resource])
        except (OSError, HostError) as error:
            LOG.debug("cannot read kubelet checkpoint", extra={"resource": resource, "error": str(error)})
            return None

    def _log_failure(self, failure: str) -> None:
        """Log why the scan failed, or (empty) that it succeeds again; once for each change."""
        if failure == self._failure:
            return
        self._failure = failure
        if failure:
            LOG.error("leak scan failed, retrying", extra={"error": failure})
        else:
            LOG.info("leak scan recovered")

    def _log_changes(self, resource: str, resource_leaks: Leaks) -> None:
        changes = leaks.compare(self._open_leaks.get(resource, ()), resource_leaks)
        self._open_leaks[resource] = changes.open
        for holder in changes.appeared:
            LOG.warning("leaked device: held open by a process outside its pod", extra=_log_fields(resource, holder))
        for holder in changes.released:
            LOG.info("leaked device released", extra=_log_fields(resource, holder))
        if resource_leaks.incomplete and not self._incomplete:
            LOG.warning(
                "leak detection incomplete: missing hostPID, SYS_PTRACE or DAC_READ_SEARCH",
                extra={"unreadable": resource_leaks.unreadable},
            )
        self._incomplete = resource_leaks.incomplete


def _log_fields(resource: str, holder: Holder) -> dict[str, object]:
    return {
        "resource": resource,
        "device": holder.binder_device,
        "pid": holder.pid,
        "command": holder.command,
        "container": holder.container,
        "pod_uid": holder.pod_uid,
    }
