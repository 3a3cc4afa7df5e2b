"""Devices that pods have through the other API: the node was moved between the device plugin API and DRA.

Pods that were started before keep their devices, and their containers may be restarted. The kubelet reports which
devices they have. Until it has done so, those phones count as held whose mount was made for the other API.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery.health import Problem, Reason
from aosp_plugin.binder.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aosp_plugin.binder.devices.sets import DeviceSet


_REPLICA = re.compile(r"::\d+$")


class Holds:
    """The devices of one resource that are held. For any thread."""

    def __init__(self, suspects: Callable[[], Collection[str]]) -> None:
        """``suspects`` returns the phones that were mounted for the other API."""
        self._suspects = suspects
        self.reported: frozenset[str] | None = None
        """The devices that pods have through the other API; None while unknown. Set by a single assignment."""
        self.unknown = ""
        """Why it stays unknown which devices pods have; empty while the kubelet answers or may soon."""

    def report(self, ids: Collection[str]) -> None:
        """Set the devices that pods have through the other API, as IDs of that API, which may be those of replicas."""
        self.reported = frozenset(_REPLICA.sub("", device_id) for device_id in ids)

    @property
    def ids(self) -> frozenset[str]:
        """The IDs of the devices that are held."""
        reported = self.reported
        return frozenset(self._suspects()) if reported is None else reported

    def check(self) -> None:
        """Raise HostError if devices are held because the kubelet does not answer."""
        if self.unknown and self.ids:
            text = (
                f"{len(self.ids)} devices stay unhealthy, because the pods that have them are unknown: {self.unknown}"
            )
            raise HostError(f"{Reason.IN_USE_BY_OTHER_API}: {text}")

    def problem(self, group: DeviceSet) -> Problem | None:
        """Return that a device is held; None if it is not."""
        if group.id not in self.ids:
            return None
        reason = Reason.IN_USE_BY_OTHER_API
        unknown = ": the kubelet has not answered yet which pods have it" if self.reported is None else ""
        return Problem(reason, f"{reason}{unknown}")
