"""Immutable snapshots of the devices, and the wait for the next one.

A snapshot is replaced as a whole. Each ListAndWatch stream remembers the revision that it sent last, so that a stale
stream cannot consume an event that a newer stream waits for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from aosp_plugin.framework.deviceplugin.encoding import chunks, fitting
from aosp_plugin.framework.devices import Devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aosp_plugin.framework.deviceplugin.encoding import Chunk
    from aosp_plugin.framework.devices import Device

MESSAGE_LIMIT = 4 * 1024 * 1024
"""Bytes that the kubelet accepts in one message: gRPC's default, never raised (pkg/kubelet/cm/devicemanager). One byte
more ends the stream, and with it every device of the resource."""


class Snapshot:
    """All devices at one moment. Immutable; may be read in any thread."""

    def __init__(
        self, revision: int, devices: Sequence[Device], limit: int = MESSAGE_LIMIT, previous: Snapshot | None = None
    ) -> None:
        """``limit`` is in bytes; unchanged encoded parts of ``previous``, an earlier snapshot, are reused."""
        self.revision = revision
        self.devices = Devices.of(devices)
        self.chunks: Sequence[Chunk] = chunks(self.devices, previous.chunks if previous is not None else ())
        self.message, self._advertised = fitting(self.chunks, limit)
        """The encoded ListAndWatchResponse, shared by all streams."""

    @cached_property
    def unhealthy(self) -> Sequence[Device]:
        """The unhealthy devices in their order, including those that did not fit into the message."""
        return [device for device in self.devices.among(self.devices.ids).values() if device.reason]

    @property
    def truncated(self) -> int:
        """Number of devices at the end of the list that did not fit into the message."""
        return len(self.devices) - self._advertised

    @cached_property
    def reasons(self) -> Mapping[str, int]:
        """Number of devices in the message by reason; healthy devices have an empty one."""
        special = self.devices.among(self.devices.ids[: self._advertised]).values()
        counts = Counter(device.reason for device in special)
        counts[""] += self._advertised - len(special)
        return counts

    @property
    def healthy(self) -> int:
        """Number of healthy devices in the message."""
        return self.reasons[""]


class Inventory:
    """The current snapshot. Belongs to one event loop; ``snapshot`` may be read in any thread."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, ())
        self.listeners: set[Callable[[], None]] = set()
        """Called in the event loop when there is a new snapshot; they must return at once."""
        self._superseded = asyncio.Event()

    def publish(self, devices: Sequence[Device]) -> bool:
        """Make ``devices`` the current snapshot; return False if the current one has the same devices already."""
        before, devices = self.snapshot, Devices.of(devices)
        if before.revision and devices == before.devices:
            return False
        self._replace(Snapshot(before.revision + 1, devices, previous=before))
        return True

    def republish(self) -> None:
        """Send the devices again on all streams, unless they are still unknown."""
        before = self.snapshot
        if not before.revision:
            return
        self._replace(Snapshot(before.revision + 1, before.devices, previous=before))

    def superseded(self, revision: int) -> asyncio.Event:
        """Return an event that is set as soon as the current snapshot is newer than ``revision``."""
        if self.snapshot.revision <= revision:
            return self._superseded
        newer = asyncio.Event()
        newer.set()
        return newer

    def _replace(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._superseded.set()
        self._superseded = asyncio.Event()
        for listener in self.listeners:
            listener()
