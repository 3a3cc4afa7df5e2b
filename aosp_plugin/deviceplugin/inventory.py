"""The devices at one moment, as the kubelet is told of them, and those who wait for the next moment.

A snapshot is immutable and replaced as a whole. Each stream remembers the revision that it sent last, so
that a stale stream can't take an event away from a newer one.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.deviceplugin.api.deviceplugin_pb2 import (
    Device as DeviceMessage,
)
from aosp_plugin.deviceplugin.api.deviceplugin_pb2 import (
    ListAndWatchResponse,
    NUMANode,
    TopologyInfo,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""The two words the kubelet knows (pkg/apis/deviceplugin/v1beta1/constants.go)."""

MESSAGE_LIMIT = 4 * 1024 * 1024
"""Bytes the kubelet takes in one message: gRPC's default, never raised (pkg/kubelet/cm/devicemanager). One byte
more ends the stream, and with it every device of the resource."""


class Device(NamedTuple):
    """One device as it is advertised."""

    id: str
    reason: str = ""
    """Why it is unhealthy, in a word; empty where it is healthy."""
    numa_nodes: tuple[int, ...] = ()
    detail: str = ""
    """The same at more length, where there is more to say."""

    @property
    def healthy(self) -> bool:
        """Say whether the kubelet may hand it out."""
        return not self.reason

    @property
    def why(self) -> str:
        """Why it is unhealthy, for people."""
        return self.detail or self.reason


class Snapshot:
    """All devices at one moment."""

    def __init__(self, revision: int, devices: Sequence[Device], limit: int = MESSAGE_LIMIT) -> None:
        self.revision = revision
        self.devices = tuple(devices)
        self._limit = limit

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        """Every device, advertised or left out, by its ID."""
        return {device.id: device for device in self.devices}

    @property
    def message(self) -> bytes:
        """The encoded ListAndWatchResponse: built once, whatever the number of streams."""
        return self._encoded[0]

    @property
    def left_out(self) -> int:
        """How many devices, the last ones in order, did not fit into the message."""
        return len(self.devices) - self._encoded[1]

    @property
    def healthy(self) -> int:
        """How many devices the kubelet may hand out."""
        return sum(device.healthy for device in self.devices[: self._encoded[1]])

    @cached_property
    def _encoded(self) -> tuple[bytes, int]:
        return encode(self.devices, self._limit)


def encode(devices: Sequence[Device], limit: int = MESSAGE_LIMIT) -> tuple[bytes, int]:
    """Encode as many of ``devices`` as fit into ``limit`` bytes; return the message and how many they are.

    Each counts as long as it would be when unhealthy, so that a change of health never pushes another device
    out. Protobuf messages may be joined by joining their bytes; repeated fields then add up.
    """
    growth = len(UNHEALTHY) - len(HEALTHY)
    parts: list[bytes] = []
    size = 0
    for device in devices:
        part = _encode_one(device)
        size += len(part) + (growth if device.healthy else 0)
        if size > limit:
            break
        parts.append(part)
    return b"".join(parts), len(parts)


def _encode_one(device: Device) -> bytes:
    message = DeviceMessage(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY)
    if device.numa_nodes:
        message.topology.CopyFrom(TopologyInfo(nodes=[NUMANode(ID=node) for node in device.numa_nodes]))
    return ListAndWatchResponse(devices=[message]).SerializeToString()


class Inventory:
    """The newest snapshot. For one event loop."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, ())
        self._superseded = asyncio.Event()

    def publish(self, devices: Sequence[Device]) -> bool:
        """Make ``devices`` the newest snapshot; False where they are what it holds already."""
        if self.snapshot.revision and tuple(devices) == self.snapshot.devices:
            return False
        self.snapshot = Snapshot(self.snapshot.revision + 1, devices)
        self._superseded.set()
        self._superseded = asyncio.Event()
        return True

    def superseded(self, revision: int) -> asyncio.Event:
        """Return an event that is set once there is a snapshot newer than ``revision``."""
        if self.snapshot.revision <= revision:
            return self._superseded
        newer = asyncio.Event()
        newer.set()
        return newer
