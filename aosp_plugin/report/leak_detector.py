"""Scans for leaked devices at an interval and logs each leak once. ``leaks`` has the scan itself.

The owners of devices come from the kubelet's checkpoints: the podresources API does not name the UIDs of pods, by which
a process in a container is known.

``leaks`` is imported with the first scan: psutil takes a megabyte, and ten milliseconds of the start.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.config.values import Api
from aosp_plugin.framework.dra import driver_names
from aosp_plugin.framework.dra.driver_names import driver_name
from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.observer import LastingProblem
from aosp_plugin.framework.timings import DEFAULT
from aosp_plugin.framework.worker import Worker
from aosp_plugin.report.leaks import Holder, Leaks

LOG = logging.getLogger(__name__)

PodUids: TypeAlias = "dict[str, frozenset[str]]"
"""By device ID."""

CHECKPOINT = "kubelet_internal_checkpoint"
"""File in the kubelet's device plugin directory, readable by root only (pkg/kubelet/cm/devicemanager/types.go)."""

CLAIMS_CHECKPOINT = "dra_manager_state"
"""File in the kubelet's root directory, readable by root only (pkg/kubelet/cm/dra/manager.go)."""


class LeakDetector:
    """Keeps the leaks of all resources as of the latest scan."""

    def __init__(
        self,
        backends: Mapping[str, BinderBackend],
        kubelet_dir: str,
        interval: float,
        timeout: float = DEFAULT.leak_scan,
    ) -> None:
        """Prepare scans of ``backends``, by resource name, every ``interval`` seconds."""
        self._backends = backends
        self._checkpoint = os.path.join(kubelet_dir, CHECKPOINT)
        self._claims_checkpoint = os.path.join(os.path.dirname(os.path.normpath(kubelet_dir)), CLAIMS_CHECKPOINT)
        self._interval = interval
        self._timeout = timeout
        self._worker = Worker("leaks")
        self._open_leaks: dict[str, Sequence[Holder]] = {}
        self._causes: dict[str, frozenset[str]] = {}
        """Why the last scan was incomplete, by resource name."""
        self._failure = LastingProblem(LOG, "leak scan failed, retrying", "leak scan recovered", logging.ERROR)
        self.latest: Mapping[str, Leaks] = {}
        """By resource name; empty before the first scan."""
        self.scanned: float | None = None
        """When the scan of ``latest`` ended, in seconds since the epoch."""

    @property
    def problem(self) -> str:
        """Why ``latest`` may be outdated; empty if it is not. May be read in any thread."""
        return self._worker.hanging(self._timeout) or self._failure.text

    async def run(self) -> None:
        """Scan at every interval until cancelled. A failed scan leaves ``latest`` as it was."""
        try:
            while True:
                await asyncio.sleep(self._interval)
                try:
                    await self.scan()
                except Exception as error:
                    if not _is_survived(error):
                        raise
                    text = str(error) or repr(error)
                    self._failure.set(f"leak scan failed: {text}", error=text)
                else:
                    self._failure.set("")
        finally:
            self._worker.close()

    async def scan(self) -> Mapping[str, Leaks]:
        """Scan once in the worker thread, log what changed, and return the leaks by resource name.

        Raises WorkerTimeoutError if the scan, or the one before it, hangs. There is never more than one scan.
        """
        self.latest = await self._worker.run(self._scan_all, self._timeout, label="leak scan")
        self.scanned = time.time()
        for resource, resource_leaks in self.latest.items():
            self._log_changes(resource, resource_leaks)
        return self.latest

    def _scan_all(self) -> dict[str, Leaks]:
        return {resource: self._scan_backend(resource, backend) for resource, backend in self._backends.items()}

    def _scan_backend(self, resource: str, backend: BinderBackend) -> Leaks:
        device_sets = backend.binder_devices()

        def owners() -> dict[str, frozenset[str]] | None:
            pods = self._read_owners(resource, backend)
            if pods is None:
                return None
            return {
                binder_device.name: frozenset().union(*(pods.get(id_, ()) for id_ in backend.advertised_ids(device_id)))
                for device_id, device_set in device_sets.items()
                for binder_device in device_set
            }

        from aosp_plugin.report import leaks  # noqa: PLC0415 - see above

        return leaks.scan([device for device_set in device_sets.values() for device in device_set], owners)

    def _read_owners(self, resource: str, backend: BinderBackend) -> PodUids | None:
        """Return the UIDs of the pods that own each device ID; None if the kubelet's checkpoint cannot be read.

        There are two checkpoints. That of the other API may not exist; it has owners only after a change of ``api``.
        That of claims is in a directory that has the secrets of all pods, and that containers therefore do not have: a
        container with the host's PID namespace, without which leak detection is incomplete, reads it in the root of
        process 1.
        """
        import psutil  # noqa: PLC0415 - see above

        ids, path = [*backend.binder_devices()], self._claims_checkpoint
        by_plugin = self._read(resource, [self._checkpoint], lambda text: parse_checkpoint(text, resource))
        by_claim = self._read(
            resource,
            [path, f"{psutil.PROCFS_PATH}/1/root{path}"],
            lambda text: parse_claims_checkpoint(text, driver_name(resource), ids),
        )
        if (by_claim if backend.api is Api.DRA else by_plugin) is None:
            return None
        both = [owners for owners in (by_plugin, by_claim) if owners is not None]
        return {id_: frozenset().union(*(owners.get(id_, ()) for owners in both)) for id_ in set().union(*both)}

    @staticmethod
    def _read(resource: str, paths: Sequence[str], parse: Callable[[bytes], PodUids]) -> PodUids | None:
        for path in paths:
            try:
                with open(path, "rb") as file:
                    return parse(file.read())
            except (OSError, HostError) as error:
                LOG.debug("cannot read kubelet checkpoint", extra={"resource": resource, "error": str(error)})
        return None

    def _log_changes(self, resource: str, resource_leaks: Leaks) -> None:
        from aosp_plugin.report import leaks  # noqa: PLC0415 - see above

        changes = leaks.compare(self._open_leaks.get(resource, ()), resource_leaks)
        self._open_leaks[resource] = changes.open
        for holder in changes.appeared:
            LOG.warning("leaked device: held open by a process outside its pod", extra=_log_fields(resource, holder))
        for holder in changes.released:
            LOG.info("leaked device released", extra=_log_fields(resource, holder))
        before = self._causes.get(resource, frozenset())
        for gap in resource_leaks.gaps:
            if gap.cause not in before:
                extra = {"resource": resource, "error": str(gap), "unreadable": resource_leaks.unreadable}
                LOG.warning("leak detection incomplete", extra=extra)
        self._causes[resource] = frozenset(gap.cause for gap in resource_leaks.gaps)


def _is_survived(error: Exception) -> bool:
    """Return whether the next scan may succeed. Any other error is a bug, and ends the process.

    Descriptors or memory ran out, a file system hangs, or /proc has unexpected content.
    """
    if isinstance(error, (OSError, WorkerTimeoutError)):
        return True
    import psutil  # noqa: PLC0415 - see above

    from aosp_plugin.report import leaks  # noqa: PLC0415 - see above

    return isinstance(error, (psutil.Error, *leaks.UNEXPECTED_CONTENT))


def _log_fields(resource: str, holder: Holder) -> dict[str, object]:
    return {
        "resource": resource,
        "device": holder.binder_device,
        "pid": holder.pid,
        "command": holder.command,
        "container": holder.container,
        "pod_uid": holder.pod_uid,
    }


def parse_checkpoint(checkpoint: bytes, resource: str) -> PodUids:
    """Return the UIDs of the pods that own each device ID of a resource. Raises HostError if it cannot be parsed.

    Device IDs are grouped by NUMA node since 1.20 (pkg/kubelet/cm/devicemanager/checkpoint). The kubelet replaces the
    file atomically, and writes it when it first lists a plugin: a missing file means unknown owners, not none.
    """
    owners: PodUids = {}
    try:
        for entry in _decoded(checkpoint)["Data"]["PodDeviceEntries"] or ():
            devices = itertools.chain.from_iterable(entry["DeviceIDs"].values())
            for device in devices if entry["ResourceName"] == resource else ():
                owners[device] = owners.get(device, frozenset()) | {entry["PodUID"]}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(f"{CHECKPOINT} does not have the format of kubelet 1.20 or later: {error!r}") from error
    return owners


def parse_claims_checkpoint(checkpoint: bytes, driver: str, ids: Collection[str]) -> PodUids:
    """Return the UIDs of the pods that have each device of ``driver`` by a claim, as of the file's last version.

    ``ids`` are the known device IDs. The kubelet writes the file before it prepares a claim
    (pkg/kubelet/cm/dra/state/checkpoint.go); ``Data`` in it is JSON as text. Raises HostError if it cannot be parsed.
    """
    owners: PodUids = {}
    try:
        claims = _decoded(_decoded(checkpoint)["Data"])["ClaimInfoStateList"] or ()
        known = driver_names.ids_by_name(ids)
        for claim in claims:
            for device in (claim["DriverState"] or {}).get(driver, {}).get("Devices") or ():
                device_id = driver_names.device_id(device["DeviceName"], known)
                owners[device_id] = owners.get(device_id, frozenset()).union(claim["PodUIDs"] or ())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(f"{CLAIMS_CHECKPOINT} does not have the format of kubelet 1.34 or later: {error!r}") from error
    return owners


def _decoded(text: bytes | str) -> Any:
    import json  # noqa: PLC0415 - with the first leak scan, after the start

    return json.loads(text)
