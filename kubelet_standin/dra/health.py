"""The stand-in kubelet's memory of the health of DRA devices (pkg/kubelet/cm/dra/healthinfo.go)."""

from collections.abc import Callable
from typing import NamedTuple

from kubelet_standin.api import dra_health_pb2 as pb
from kubelet_standin.versions import KubeletVersion

UNKNOWN = "Unknown"
_NAMES = {pb.HEALTHY: "Healthy", pb.UNHEALTHY: "Unhealthy"}


class HealthView(NamedTuple):
    """The health of a device as the status of a pod shows it."""

    health: str
    """Healthy, Unhealthy or Unknown."""
    message: str = ""


class _Entry(NamedTuple):
    view: HealthView
    received: float
    timeout: float


class HealthCache:
    """The health of the devices of all drivers."""

    def __init__(self, version: KubeletVersion, default_timeout: float, clock: Callable[[], float]) -> None:
        self._version = version
        self._default_timeout = default_timeout
        self._clock = clock
        self._entries: dict[tuple[str, str, str], _Entry] = {}

    def update(self, driver: str, response: pb.NodeWatchResourcesResponse) -> None:
        """Remember a report. Devices that it does not name keep their health until it is too old."""
        for device in response.devices:
            seconds = device.health_check_timeout_seconds
            message = device.message if self._version.watches_health else ""
            self._entries[driver, device.device.pool_name, device.device.device_name] = _Entry(
                HealthView(_NAMES.get(device.health, UNKNOWN), message),
                self._clock(),
                float(seconds) if seconds > 0 else self._default_timeout,
            )

    def clear(self, driver: str) -> None:
        """Forget the devices of a driver, at the end of its stream."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] != driver}

    def get(self, driver: str, pool: str, device: str) -> HealthView:
        """Return the health of a device; Unknown if no report is recent enough."""
        entry = self._entries.get((driver, pool, device))
        if entry is None or self._clock() - entry.received > entry.timeout:
            return HealthView(UNKNOWN)
        return entry.view
