"""The history of binder devices from scan to scan. Functions of their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Kind
from aosp_plugin.binder.discovery.health import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from aosp_plugin.binder.discovery.binder_device import FileSystem

EXPIRING = frozenset({Reason.MISSING, Reason.REPLACED})
"""Reasons that end after ``missing_device_ttl``."""


class TrackedDevice(NamedTuple):
    """A binder device as of the last scan, and its history."""

    device: BinderDevice
    file_system: FileSystem | None
    """File system of the first scan that found it healthy. None before: no container can have the device yet."""
    reason: Reason | None
    """None if it is healthy."""
    since: float
    """When the reason last changed, in seconds of the caller's clock."""


def track(
    history: Mapping[str, TrackedDevice],
    devices: Iterable[BinderDevice],
    now: float,
    missing_device_ttl: float,
    evaluate: Callable[[BinderDevice, FileSystem | None], Reason | None],
) -> dict[str, TrackedDevice]:
    """Return the state after a scan that found ``devices``, given the ``history`` before it.

    A binder device that vanished is missing for ``missing_device_ttl`` seconds and is then dropped. One that was
    missing or replaced for that time counts as new: its present file system becomes the expected one.
    """
    tracked: dict[str, TrackedDevice] = {}
    file_systems: dict[FileSystem, FileSystem] = {}  # each tuple once for all devices

    def update(known: TrackedDevice | None, device: BinderDevice) -> TrackedDevice:
        file_system = known.file_system if known is not None else None
        reason = evaluate(device, file_system)
        if reason is None and device.identity is not None:
            file_system = file_systems.setdefault(device.identity.file_system, device.identity.file_system)
        since = known.since if known is not None and known.reason is reason else now
        updated = TrackedDevice(device, file_system, reason, since)
        return known if updated == known else updated

    current = {name: known for name, known in history.items() if not _expired(known, now, missing_device_ttl)}
    for device in devices:
        tracked[device.name] = update(current.get(device.name), device)
    for name, known in current.items():
        if name not in tracked:
            tracked[name] = update(known, BinderDevice(name, known.device.path, Kind.ABSENT))
    return tracked


def _expired(known: TrackedDevice, now: float, missing_device_ttl: float) -> bool:
    return known.reason in EXPIRING and now >= known.since + missing_device_ttl


def expiries(tracked: Mapping[str, TrackedDevice], missing_device_ttl: float) -> dict[str, float]:
    """Return when each binder device with a reason that expires is due, by name, in seconds of the caller's clock."""
    return {name: known.since + missing_device_ttl for name, known in tracked.items() if known.reason in EXPIRING}
