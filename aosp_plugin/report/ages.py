"""Since when each device and each resource is in its state.

``ResourceAges`` observes the plugin of a resource; ``endpoints`` passes it the results of the podresources API and of
leak detection. A state that was there before the plugin started, or before a result showed it, counts from then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Literal

    from aosp_plugin.framework.inventory import Snapshot
    from aosp_plugin.framework.podresources_client import Owner


class Since(NamedTuple):
    """When each state began, in seconds since the epoch. Immutable; may be read in any thread."""

    registered: bool = False
    """Whether the resource is registered and the kubelet has an open stream."""
    registration: float = 0.0
    """When ``registered`` changed last, or the plugin started."""
    problem: float | None = None
    """When the resource's problem began; None if there is none."""
    unhealthy: Mapping[str, float] = {}
    """By device ID, also for devices that are truncated from the kubelet's list."""
    allocated: Mapping[str, float] = {}
    """By device ID: when its present owners got it."""
    gone: Mapping[str, float] = {}
    """By ID: devices that pods have and that no longer exist."""
    leaked: Mapping[str, float] = {}
    """By the name of the binder device."""


class ResourceAges(Observer):
    """Keeps ``since`` of one resource current. Its methods must be called in the event loop.

    A call costs time only for devices that are unhealthy or allocated, except that the first one after a change of the
    devices has to index all of them if pods have any.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._owners: Mapping[str, tuple[Owner, ...]] = {}
        self._troubles = {"registration": clock()}
        self.since = Since(registration=clock())
        """Replaced by a single assignment, and only by a change: equal values are the same object."""

    def published(self, snapshot: Snapshot, _since: float | None) -> None:
        """Record which devices have become unhealthy, or are gone."""
        self._snapshot, now, before = snapshot, self._clock(), self.since.unhealthy
        unadvertised = [*snapshot.devices.values()][len(snapshot.devices) - snapshot.truncated :]
        unhealthy = {device.id: before.get(device.id, now) for device in (*snapshot.unhealthy, *unadvertised)}
        self.since = self.since._replace(unhealthy=unhealthy, gone=self._gone(now))

    def allocated(self, owners: Mapping[str, tuple[Owner, ...]]) -> None:
        """Record the owners of the resource's devices. An object that was recorded before costs nothing."""
        if owners is self._owners:
            return
        now, before, previous = self._clock(), self.since.allocated, self._owners
        self._owners = owners
        allocated = {
            device_id: before[device_id] if previous.get(device_id) == pods else now
            for device_id, pods in owners.items()
        }
        self.since = self.since._replace(allocated=allocated, gone=self._gone(now))

    def leaked(self, binder_devices: Collection[str], scanned: float) -> None:
        """Record the leaked binder devices that a leak scan at the time ``scanned`` has found."""
        before = self.since.leaked
        if binder_devices != before.keys():
            self.since = self.since._replace(leaked={name: before.get(name, scanned) for name in binder_devices})

    def has_problem(self, *, problem: bool) -> None:
        """Record whether the resource has a problem. It began with the first of the known troubles, or now."""
        if problem and self.since.problem is None:
            self.since = self.since._replace(problem=min(self._troubles.values(), default=self._clock()))
        elif not problem and self.since.problem is not None:
            self.since = self.since._replace(problem=None)

    def registration(self, result: Literal["ok", "failed", "refused"]) -> None:
        """Record the registration."""
        if result == "ok":
            self._trouble("registration", result)
            self.since = self.since._replace(registered=True, registration=self._clock())

    def unregistered(self) -> None:
        """Record the end of a registration."""
        if self.since.registered:
            self._troubles["registration"] = now = self._clock()
            self.since = self.since._replace(registered=False, registration=now)

    def scanned(self, result: Literal["ok", "failed", "hung"], seconds: float) -> None:
        """Record whether scans fail or hang."""
        self._trouble("scan", result, seconds if result == "hung" else 0.0)

    def host_updated(self, result: str) -> None:
        """Record whether updates of the host fail."""
        self._trouble("host update", result)

    def _trouble(self, name: str, result: str, seconds: float = 0.0) -> None:
        """Record whether there is a trouble, which began ``seconds`` ago."""
        if result == "ok":
            ended = self._troubles.pop(name, None)
            if ended is not None and not self._troubles:  # a later problem is another one
                self.has_problem(problem=False)
        else:
            self._troubles.setdefault(name, self._clock() - seconds)

    def _gone(self, now: float) -> Mapping[str, float]:
        """Return since when each device that pods have is gone; empty before the first scan."""
        before, snapshot = self.since.gone, self._snapshot
        if snapshot is None or not self._owners:
            return {}
        return {device_id: before.get(device_id, now) for device_id in self._owners.keys() - snapshot.devices.keys()}
