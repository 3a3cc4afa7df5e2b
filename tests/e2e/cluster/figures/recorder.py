"""Records what a watch on the API server reports, with the time of each event."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.e2e.cluster.api import Api

RESOURCE: Final = "/apis/resource.k8s.io/v1"
SLICES: Final = f"{RESOURCE}/resourceslices"
_RUN: Final = 7200.0
"""Seconds of a watch; longer than a run."""
_FOR_GOOD: Final = 2.0
"""Seconds in which a kubelet deletes all slices."""


class Total(NamedTuple):
    """The number of a driver's devices in all slices after an event."""

    at: float
    """Seconds since the epoch, as in the logs of other processes."""
    devices: int


class SliceRecorder:
    """The devices of each driver over time, recorded in a thread until the process ends."""

    def __init__(self, api: Api) -> None:
        """Start the watch."""
        self._api = api
        self._sizes: dict[tuple[str, str], int] = {}
        self._totals: dict[str, list[Total]] = {}
        threading.Thread(target=self._record, name="watch on slices", daemon=True).start()

    def wait(self, driver: str, devices: int, since: float, *, seconds: float = 4 * PATIENCE) -> float:
        """Wait until a driver has this number of devices, and return the time when that began, not before ``since``."""
        return until(
            lambda: self._find(driver, devices, since), f"slices of {driver} have {devices} devices", seconds=seconds
        )

    def wait_fewer(self, driver: str, devices: int, since: float, *, seconds: float = 4 * PATIENCE) -> float:
        """Wait until a driver has less than this number of devices, and return the time when that began."""
        what = f"slices of {driver} have less than {devices} devices"
        return until(
            lambda: next((total.at for total in self._after(driver, since) if total.devices < devices), 0.0),
            what,
            seconds=seconds,
        )

    def away(self, driver: str, devices: int, since: float, *, seconds: float) -> float:
        """Wait until a driver has this number of devices again, for good, and return for how many seconds it had less.

        The slices of a driver may be deleted one after the other, so that the first ones are back before.
        """
        gone = self.wait_fewer(driver, devices, since)
        self.wait(driver, devices, gone, seconds=seconds)
        time.sleep(_FOR_GOOD)
        after = self._after(driver, gone)
        fewer = max(number for number, total in enumerate(after) if total.devices < devices)
        back = next((total.at for total in after[fewer:] if total.devices == devices), 0.0)
        return (back or self.wait(driver, devices, after[-1].at, seconds=seconds)) - gone

    def _find(self, driver: str, devices: int, since: float) -> float:
        return next((total.at for total in self._after(driver, since) if total.devices == devices), 0.0)

    def _after(self, driver: str, since: float) -> list[Total]:
        return [total for total in self._totals.get(driver, ()) if total.at >= since]

    def _record(self) -> None:
        for event in self._api.watch(SLICES, _RUN):
            at, found = time.time(), event["object"]
            driver, name = found["spec"]["driver"], found["metadata"]["name"]
            self._sizes[driver, name] = 0 if event["type"] == "DELETED" else len(found["spec"].get("devices") or ())
            sizes = [size for (owner, _), size in self._sizes.items() if owner == driver]
            self._totals.setdefault(driver, []).append(Total(at, sum(sizes)))


class PodRecorder:
    """The time at which each pod of a namespace is first reported as running."""

    def __init__(self, api: Api, path: str) -> None:
        """Start the watch on the collection ``path``."""
        self._api = api
        self._path = path
        self._running: dict[str, float] = {}
        threading.Thread(target=self._record, name="watch on pods", daemon=True).start()

    def wait_running(self, name: str) -> float:
        """Wait until a pod runs, and return the time when that was reported."""
        return until(lambda: self._running.get(name, 0.0), f"{name} runs", seconds=4 * PATIENCE)

    def _record(self) -> None:
        for event in self._api.watch(self._path, _RUN):
            pod: dict[str, Any] = event["object"]
            if pod["status"].get("phase") == "Running":
                self._running.setdefault(pod["metadata"]["name"], time.time())
