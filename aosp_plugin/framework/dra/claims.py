"""The ResourceClaims of one driver: prepares and unprepares them for the kubelet.

``preparation`` gets a claim and waits for its devices, ``claim_host`` changes the host, ``reconciler`` repairs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.dra.allocations import device_ids
from aosp_plugin.framework.dra.claim_host import ClaimHost
from aosp_plugin.framework.dra.claim_state import ClaimState
from aosp_plugin.framework.dra.interfaces import DeviceHealth
from aosp_plugin.framework.dra.observer import NULL_DRA_OBSERVER
from aosp_plugin.framework.dra.preparation import DEFAULT_TIMINGS, ClaimTimings, Parts, Preparation
from aosp_plugin.framework.dra.records import BOOT_ID_FILE
from aosp_plugin.framework.errors import CdiError, CheckpointError, ClaimError, PluginError
from aosp_plugin.framework.observer import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.dra.claim_source import ClaimSource
    from aosp_plugin.framework.dra.interfaces import ClaimReference, PreparedDevice
    from aosp_plugin.framework.dra.observer import DraObserver, Repaired
    from aosp_plugin.framework.dra.records import ClaimRecord
    from aosp_plugin.framework.inventory import Inventory
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

_STORAGE_ERRORS = (CdiError, CheckpointError)


class Claims:
    """The claims of one driver; a ``ClaimHandler``. Belongs to the running event loop."""

    def __init__(
        self,
        backend: Backend,
        driver: str,
        node_name: str,
        *,
        source: ClaimSource,
        worker: Worker,
        inventory: Inventory,
        state_directory: str,
        cdi_directory: str,
        observer: DraObserver = NULL_DRA_OBSERVER,
        timings: ClaimTimings = DEFAULT_TIMINGS,
        boot_id_file: str = BOOT_ID_FILE,
    ) -> None:
        """``worker`` is the one that scans ``backend``, with its result in ``inventory``. The host is not accessed.

        Directories are paths of this process.
        """
        self._node_name = node_name
        self._worker = worker
        self._inventory = inventory
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        state = ClaimState(
            driver,
            state_directory=state_directory,
            cdi_directory=cdi_directory,
            changed=partial(self._in_loop, self._records_changed),
            repaired=lambda kind, ok: self._in_loop(partial(self._repaired, kind, ok=ok)),
            boot_id_file=boot_id_file,
        )
        self.host = ClaimHost(backend, state)
        self._parts = Parts(
            host=self.host,
            worker=worker,
            source=source,
            driver=driver,
            devices=self._device_ids,
            withheld=lambda: self.withheld,
            superseded=lambda: self._superseded,
            release=self.release,
            observer=observer,
            timings=timings,
        )
        self.withheld = ""
        """Why no further claim gets a device; empty if claims do."""
        self._superseded = asyncio.Event()
        self._preparing: dict[str, set[asyncio.Task[Sequence[PreparedDevice] | str]]] = {}
        self._ids: tuple[int, Mapping[tuple[str, str], str]] = (0, {})

    @property
    def prepared(self) -> Mapping[str, ClaimRecord]:
        """The records of the prepared claims, by UID."""
        return {uid: record for uid, record in self.host.records.items() if record.completed}

    @property
    def problem(self) -> str:
        """Why specs or records of claims cannot be written; empty if they can. May be read in any thread."""
        return _summary([error for error in self.host.problems.values() if isinstance(error, _STORAGE_ERRORS)])

    @property
    def notice(self) -> str:
        """Which prepared claims cannot be repaired or released, although others can. May be read in any thread."""
        return _summary([error for error in self.host.problems.values() if not isinstance(error, _STORAGE_ERRORS)])

    @property
    def superseded(self) -> asyncio.Event:
        """An event that is set at the next change of ``prepared``."""
        return self._superseded

    def health(self) -> Sequence[DeviceHealth]:
        """Return the health of each device of a prepared claim, according to the last scan."""
        devices = self._inventory.snapshot.devices
        found = []
        for record in self.prepared.values():
            for allocated in (device for request in record.requests for device in request.devices):
                device = devices.get(allocated.id)
                why = "the device does not exist any more" if device is None else device.why
                healthy = device is not None and device.healthy
                found.append(DeviceHealth(allocated.pool, allocated.name, healthy, "" if healthy else why))
        return found

    async def restore(self, timeout: float | None = None) -> None:
        """Prepare the recorded claims again after the start, and remove what is left of others.

        Raises OSError, and PluginError: the records cannot be read, or there was no scan yet.
        """
        self.check_scanned()
        await self._worker.run(partial(self.host.repair, rewrite=True), timeout, label="claim restore")

    def check_scanned(self) -> None:
        """Raise ClaimError before the first scan, after which the backend prepares devices."""
        if not self._inventory.snapshot.revision:
            raise ClaimError("the devices of this node have not been scanned yet")

    async def prepare(
        self, claims: Sequence[ClaimReference], seconds: float
    ) -> Mapping[str, Sequence[PreparedDevice] | str]:
        """Prepare claims within ``seconds``; return the devices or the error of each, by UID."""
        end = time.monotonic() + seconds
        tasks = {claim.uid: asyncio.create_task(self._prepare(claim, end)) for claim in claims}
        for uid, task in tasks.items():
            self._preparing.setdefault(uid, set()).add(task)
        try:
            if tasks:
                await asyncio.wait(tasks.values())
        finally:
            for uid, task in tasks.items():
                task.cancel()
                self._preparing[uid].discard(task)
                if not self._preparing[uid]:
                    del self._preparing[uid]
            if tasks:
                await asyncio.wait(tasks.values())
        ended = "the claim was unprepared before its preparation had ended"
        return {uid: ended if task.cancelled() else task.result() for uid, task in tasks.items()}

    async def unprepare(self, claims: Sequence[ClaimReference], seconds: float) -> Mapping[str, str]:
        """Unprepare claims within ``seconds``; return the error of each by UID, empty for success.

        A preparation of the same claim that has not ended is cancelled.
        """
        end = time.monotonic() + seconds
        references = {claim.uid: claim for claim in claims}
        errors = await asyncio.gather(*[self._unprepare(claim, end) for claim in references.values()])
        return dict(zip(references, errors, strict=True))

    async def release(self, record: ClaimRecord) -> None:
        """Unprepare a claim that does not need its devices any more, without the kubelet.

        Nothing happens if its record has changed since. Raises OSError and PluginError.
        """
        started = time.monotonic()
        function = partial(self.host.unprepare, record.uid, record)
        try:
            if not await self._worker.run(function, label="claim release"):
                return
        except (OSError, PluginError):
            self._observer.unprepared("failed", time.monotonic() - started)
            self._repaired("claim", ok=False)
            raise
        self._observer.unprepared("ok", time.monotonic() - started)
        self._repaired("claim", ok=True)
        fields = {"claim": record.full_name, "uid": record.uid, "device": ",".join(record.ids)}
        LOG.warning("claim does not exist any more, unprepared", extra=fields)

    async def _prepare(self, reference: ClaimReference, end: float) -> Sequence[PreparedDevice] | str:
        started = time.monotonic()
        ok = False
        try:
            devices = await Preparation(self._parts, reference, end).run()
            ok = True
        except (OSError, PluginError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - it is logged, and the answer
            return _unexpected(reference, error)
        finally:
            self._observer.prepared("ok" if ok else "failed", time.monotonic() - started)
        record = self.host.records.get(reference.uid)
        LOG.info(
            "claim prepared",
            extra={
                "claim": f"{reference.namespace}/{reference.name}",
                "uid": reference.uid,
                "device": ",".join(record.ids if record is not None else ()),
                "duration_ms": milliseconds(time.monotonic() - started),
            },
        )
        return devices

    async def _device_ids(self, seconds: float) -> Mapping[tuple[str, str], str]:
        """Return the ID of each device of this node by pool and name; wait for the first scan."""
        if not self._inventory.snapshot.revision:
            await wait_any(self._inventory.superseded(0), timeout=max(seconds, 0.0))
        self.check_scanned()
        snapshot = self._inventory.snapshot
        if self._ids[0] != snapshot.revision:
            self._ids = (snapshot.revision, device_ids(self._node_name, [*snapshot.devices]))
        return self._ids[1]

    async def _unprepare(self, reference: ClaimReference, end: float) -> str:
        started = time.monotonic()
        preparing = self._preparing.get(reference.uid, set()).copy()
        for task in preparing:
            task.cancel()
        ok = False
        try:
            if preparing:
                await asyncio.wait(preparing)
            function = partial(self.host.unprepare, reference.uid)
            released = await self._worker.run(function, end - time.monotonic(), label="claim unpreparation")
            ok = True
        except (OSError, PluginError) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - it is logged, and the answer
            return _unexpected(reference, error)
        finally:
            self._observer.unprepared("ok" if ok else "failed", time.monotonic() - started)
        if released:
            LOG.info(
                "claim unprepared",
                extra={
                    "claim": f"{reference.namespace}/{reference.name}",
                    "uid": reference.uid,
                    "duration_ms": milliseconds(time.monotonic() - started),
                },
            )
        return ""

    def _in_loop(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(function)

    def _records_changed(self) -> None:
        self._superseded.set()
        self._superseded = asyncio.Event()
        self._observer.claims_changed(len(self.prepared))

    def _repaired(self, kind: Repaired, *, ok: bool) -> None:
        self._observer.reconciled(kind, "ok" if ok else "failed")


def _summary(errors: Sequence[Exception]) -> str:
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"claims cannot be repaired: {errors[0]}{more}" if errors else ""


def _unexpected(reference: ClaimReference, error: Exception) -> str:
    """Log an error that is a bug; return the answer to the kubelet."""
    fields = {"claim": f"{reference.namespace}/{reference.name}", "uid": reference.uid}
    LOG.error("claim failed unexpectedly", extra=fields, exc_info=error)
    return f"internal error: {type(error).__name__}: {error}"
