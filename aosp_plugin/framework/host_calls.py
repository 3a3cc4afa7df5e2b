"""The calls of a backend in its worker thread: a failure, a hang and their end are logged once each."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Literal, TypeVar

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.observer import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.framework.observer import Observer
    from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

T = TypeVar("T")

Label = Literal["device scan", "host update"]

SCAN_TIMEOUT = 10.0
"""Seconds after which a scan or a host update that has not returned counts as hanging."""


class HostCalls:
    """Runs scans and host updates, and keeps their problems."""

    def __init__(self, worker: Worker, observer: Observer) -> None:
        self._worker = worker
        self._observer = observer
        # Other threads read both; each is replaced by a single assignment.
        self._failures: dict[Label, str] = {}
        self._hanging: dict[Label, float] = {}

    @property
    def failed(self) -> bool:
        """Whether the last call of one kind failed, or timed out."""
        return bool(self._failures or self._hanging)

    @property
    def problem(self) -> str:
        """What hangs or has failed; empty if nothing. May be read in any thread."""
        waiting = [
            f"{label} has been hanging for {time.monotonic() - started:.0f} s"
            for label, started in self._hanging.items()
        ]
        hanging = self._worker.hanging(SCAN_TIMEOUT) or "; ".join(waiting)
        return "; ".join(filter(None, [hanging, *self._failures.values()]))

    async def run(self, label: Label, function: Callable[[], T], timeout: float | None) -> T:
        """Run a call in the worker thread, and return its result. A failure is in ``problem`` until a call succeeds.

        Raises what the call raises; WorkerTimeoutError after ``timeout`` seconds.
        """
        started = time.monotonic()
        async with background_task(self._worker.run(function, timeout, label=label)) as call:
            done, _ = await asyncio.wait({call}, timeout=SCAN_TIMEOUT)
            if not done:
                self._log_hanging(label, started)
            try:
                result = await call
            except WorkerTimeoutError:
                self._log_hanging(label, started)
                raise
            except (OSError, PluginError) as error:
                self._log_no_longer_hanging(label)
                self._log_failure(label, str(error))
                raise
        self._log_no_longer_hanging(label)
        self._log_recovery(label)
        return result

    def _log_hanging(self, label: Label, started: float) -> None:
        if label in self._hanging:
            return
        self._hanging = {**self._hanging, label: started}
        if label == "device scan":
            self._observer.scanned("hung", time.monotonic() - started)
            LOG.error("device scan is hanging", extra=_duration(started))
        else:
            LOG.error("host update is hanging", extra=_duration(started))

    def _log_no_longer_hanging(self, label: Label) -> None:
        started = self._hanging.get(label)
        if started is None:
            return
        self._hanging = {other: since for other, since in self._hanging.items() if other != label}
        if label == "device scan":
            LOG.info("device scan is no longer hanging", extra=_duration(started))
        else:
            LOG.info("host update is no longer hanging", extra=_duration(started))

    def _log_failure(self, label: Label, error: str) -> None:
        problem = f"{label} failed: {error}"
        if self._failures.get(label) == problem:
            return
        self._failures = {**self._failures, label: problem}
        if label == "device scan":
            LOG.error("device scan failed, retrying", extra={"error": error})
        else:
            LOG.error("host update failed, retrying", extra={"error": error})

    def _log_recovery(self, label: Label) -> None:
        if label not in self._failures:
            return
        self._failures = {other: problem for other, problem in self._failures.items() if other != label}
        if label == "device scan":
            LOG.info("device scan recovered")
        else:
            LOG.info("host update recovered")


def _duration(started: float) -> dict[str, float]:
    return {"duration_ms": milliseconds(time.monotonic() - started)}
