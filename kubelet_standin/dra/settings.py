"""Durations and faults of the stand-in kubelet's DRA half, and the record of a registration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class DraTimings(NamedTuple):
    """Durations in seconds, as in a kubelet. Tests shorten those that they wait for."""

    reconcile: float = 1.0
    """Between two rounds of the plugin manager (pkg/kubelet/pluginmanager/plugin_manager.go)."""
    dial: float = 10.0
    """For the connection to a new socket (operation_generator.go)."""
    get_info: float = 1.0
    """For GetInfo."""
    notify: float = 5.0
    """For NotifyRegistrationStatus."""
    first_retry: float = 0.5
    """After the first registration of a socket that failed; then twice as long each time (exponential_backoff.go)."""
    last_retry: float = 122.0
    """The longest pause between two attempts."""
    call: float = 45.0
    """For NodePrepareResources and NodeUnprepareResources (dra_plugin.go)."""
    wipe: float = 30.0
    """From the end of the last connection to a driver to the deletion of its ResourceSlices (cm/dra/manager.go)."""
    wipe_retry: float = 1.0
    """After a deletion of ResourceSlices that failed; then twice as long each time, up to 300 times as long."""
    health_retry: float = 5.0
    """Between the end of a health stream and the next one (dra_plugin_manager.go)."""
    health: float = 30.0
    """After which a health that was not repeated is unknown (healthinfo.go)."""


@dataclass
class DraFaults:
    """Faults of the kubelet. They can be changed at any time."""

    miss_sockets: bool = False
    """Sockets that appear are not noticed, as if their events were lost; a restart finds them."""

    refuse: str | None = None
    """Drivers are refused with this text, as by a validation that fails."""

    skip_notify: bool = False
    """NotifyRegistrationStatus never reaches the driver."""


@dataclass
class DraRegistration:
    """One attempt to register a socket, and its outcome."""

    path: str
    driver: str = ""
    endpoint: str = ""
    """The path of the services of the driver."""
    supported_versions: tuple[str, ...] = field(default=())
    outcome: str = "pending"
    """``pending``, ``ok``, or the error."""
