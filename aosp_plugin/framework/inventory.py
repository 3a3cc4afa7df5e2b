"""Immutable snapshots of the devices, and the wait for the next one.

A snapshot is replaced as a whole. Each ListAndWatch stream remembers the revision that it sent last, so that a stale
stream cannot consume an event that a newer stream waits for.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.deviceplugin.encoding import chunks, fitting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.framework.deviceplugin.encoding import Chunk

MESSAGE_LIMIT = 4 * 1024 * 1024
"""Bytes that the kubelet accepts in one message: gRPC's default, never raised (pkg/kubelet/cm/devicemanager). One byte
more ends the stream, and with it every device of the resource."""

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


def valid_devices(devices: Sequence[Device]) -> tuple[Sequence[Device], Mapping[str, str]]:
    """Return the devices with valid and unique IDs, and the reason why its device is skipped for each other ID.

    Of several devices with the same ID, the first one stays.
    """
    ids = [device.id for device in devices]
    unique = set(ids)
    if len(unique) == len(ids) and "" not in unique and "".join(ids).isprintable():
        longest = max(map(len, ids), default=0)
        if longest <= MAX_ID_LENGTH:
            return devices, {}
    valid: dict[str, Device] = {}
    problems: dict[str, str] = {}
    for device in devices:
        problem = "another device has the same ID" if device.id in valid else id_problem(device.id)
        if problem:
            problems[device.id] = problem
        else:
            valid[device.id] = device
    return list(valid.values()), problems


class Snapshot:
    """All devices at one moment. Immutable; may be read in any thread."""

    def __init__(
        self, revision: int, devices: Sequence[Device], limit: int = MESSAGE_LIMIT, previous: Snapshot | None = None
    ) -> None:
        """``limit`` is in bytes; unchanged encoded parts of ``previous``, an earlier snapshot, are reused."""
        self.revision = revision
        self.devices = tuple(devices)
        self.chunks: Sequence[Chunk] = chunks(self.devices, previous.chunks if previous is not None else ())
        self.message, self._advertised = fitting(self.chunks, limit)
        """The encoded ListAndWatchResponse, shared by all streams."""

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        """Every device by its ID, including those that did not fit into the message."""
        return {device.id: device for device in self.devices}

    @cached_property
    def unhealthy(self) -> Sequence[Device]:
        """The unhealthy devices, including those that did not fit into the message."""
        return [device for device in self.devices if device.reason]

    @property
    def truncated(self) -> int:
        """Number of devices at the end of the list that did not fit into the message."""
        return len(self.devices) - self._advertised

    @cached_property
    def healthy(self) -> int:
        """Number of healthy devices in the message."""
        if not self.truncated:
            return self._advertised - len(self.unhealthy)
        return sum(device.healthy for device in self.devices[: self._advertised])


class Inventory:
    """The current snapshot. Belongs to one event loop."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, ())
        self._superseded = asyncio.Event()

    def publish(self, devices: Sequence[Device]) -> bool:
        """Make ``devices`` the current snapshot; return False if the current one has the same devices already."""
        before, devices = self.snapshot, tuple(devices)
        if before.revision and devices == before.devices:
            return False
        self.snapshot = Snapshot(before.revision + 1, devices, previous=before)
        self._superseded.set()
        self._superseded = asyncio.Event()
        return True

    def republish(self) -> None:
        """Send the devices again on all streams, unless they are still unknown."""
        before = self.snapshot
        if not before.revision:
            return
        self.snapshot = Snapshot(before.revision + 1, before.devices, previous=before)
        self._superseded.set()
        self._superseded = asyncio.Event()

    def superseded(self, revision: int) -> asyncio.Event:
        """Return an event that is set as soon as the current snapshot is newer than ``revision``."""
        if self.snapshot.revision <= revision:
            return self._superseded
        newer = asyncio.Event()
        newer.set()
        return newer
