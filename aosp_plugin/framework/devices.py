"""A device as it is advertised to the kubelet, and the check of its ID."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ID_LENGTH = 63
"""Characters in a device ID (comment at ``Device.ID`` in the kubelet's api.proto)."""


class Device(NamedTuple):
    """One device as it is advertised to the kubelet."""

    id: str
    reason: str = ""
    """Why the device is unhealthy, as one word for metrics and logs; empty if it is healthy."""
    numa_nodes: tuple[int, ...] = ()
    detail: str = ""
    """A longer description of the reason, for messages; optional."""

    @property
    def healthy(self) -> bool:
        """Whether the kubelet may allocate the device."""
        return not self.reason

    @property
    def why(self) -> str:
        """Why the device is unhealthy, in the most detailed form available."""
        return self.detail or self.reason


def id_problem(device_id: str) -> str | None:
    """Return why this device ID cannot be advertised; None if it is valid.

    ``str.isprintable`` is false for control characters, and for the surrogates that represent bytes that are not UTF-8,
    which a protobuf string cannot carry.
    """
    if not device_id:
        return "the ID is empty"
    if len(device_id) > MAX_ID_LENGTH:
        return f"the ID has {len(device_id)} characters; the limit is {MAX_ID_LENGTH}"
    if not device_id.isprintable():
        return "the ID has characters that are not printable"
    return None


def valid_devices(devices: Iterable[Device]) -> tuple[list[Device], dict[str, str]]:
    """Return the devices with valid and unique IDs, and the reason why its device is skipped for each other ID.

    Of several devices with the same ID, the first one stays.
    """
    valid: dict[str, Device] = {}
    problems: dict[str, str] = {}
    for device in devices:
        problem = "another device has the same ID" if device.id in valid else id_problem(device.id)
        if problem:
            problems[device.id] = problem
        else:
            valid[device.id] = device
    return [*valid.values()], problems
