"""The devices at one moment, as the kubelet is told of them, and those who wait for the next moment.

A snapshot is immutable and replaced as a whole. Each stream remembers the revision that it sent last, so
that a stale stream can't take an event away from a newer one.
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

    def __init__(
        self, revision: int, devices: Sequence[Device], limit: int = MESSAGE_LIMIT, before: Snapshot | None = None
    ) -> None:
        """``before`` is an earlier snapshot, from which is taken what is still the same."""
        self.revision = revision
        self.devices = tuple(devices)
        self.chunks: Sequence[Chunk] = chunks(self.devices, before.chunks if before is not None else ())
        self.message, self._told = fitting(self.chunks, limit)
        """The encoded ListAndWatchResponse: built once, whatever the number of streams."""

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        """Every device, advertised or left out, by its ID."""
        return {device.id: device for device in self.devices}

    @cached_property
    def unhealthy(self) -> Sequence[Device]:
        """Those that the kubelet must not hand out, advertised or left out."""
        return [device for device in self.devices if device.reason]

    @property
    def truncated(self) -> int:
        """How many devices, the last ones in order, did not fit into the message."""
        return len(self.devices) - self._told

    @cached_property
    def healthy(self) -> int:
        """How many devices the kubelet may hand out."""
        if not self.truncated:
            return self._told - len(self.unhealthy)
        return sum(device.healthy for device in self.devices[: self._told])


class Inventory:
    """The newest snapshot. For one event loop."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, ())
        self._superseded = asyncio.Event()

    def publish(self, devices: Sequence[Device]) -> bool:
        """Make ``devices`` the newest snapshot; False where they are what it holds already."""
        before, devices = self.snapshot, tuple(devices)
        if before.revision and devices == before.devices:
            return False
        self.snapshot = Snapshot(before.revision + 1, devices, before=before)
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
