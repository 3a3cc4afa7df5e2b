"""Immutable snapshots of the devices, and the wait for the next one.

A snapshot is replaced as a whole. Each ListAndWatch stream remembers the revision that it sent last, so that a stale
stream cannot consume the event of a newer stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, NamedTuple

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.backend import Device, Found
from aosp_plugin.framework.errors import UnhealthyDeviceError, UnknownDeviceError

LOG = logging.getLogger(__name__)

MESSAGE_LIMIT = 4 * 1024 * 1024
"""Bytes that the kubelet accepts in one message: gRPC's default, never raised (pkg/kubelet/cm/devicemanager). One byte
more ends the stream, and with it every device of the resource."""

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""The two states that the kubelet knows (pkg/apis/deviceplugin/v1beta1/constants.go)."""

MAX_ID_LENGTH = 63
"""Characters in a device ID (comment at ``Device.ID`` in the kubelet's api.proto)."""

GROWTH = 4
"""Bytes by which the message of a device grows at most when it becomes unhealthy."""


class Changes(NamedTuple):
    """IDs of the devices that differ between two snapshots, in the order of the snapshots."""

    unhealthy: Mapping[str, Sequence[str]]
    """Unhealthy devices with another reason than before, by reason."""
    removed: Sequence[str]
    healthy: Sequence[str]
    """Devices that were unhealthy before."""
    added: Sequence[str]
    """New devices, healthy or not."""


class Snapshot:
    """All devices at one moment. Immutable; may be read in any thread."""

    def __init__(self, revision: int, devices: Iterable[Device], limit: int = MESSAGE_LIMIT) -> None:
        """``devices`` have valid and unique IDs, see ``valid_devices``. ``limit`` is in bytes."""
        self.revision = revision
        self.devices: Mapping[str, Device] = {device.id: device for device in devices}
        """All devices by ID, in their order."""
        messages = _encoded(self.devices.values())
        self.truncated = 0
        """Number of devices at the end of the list that did not fit into the message."""
        if sum(map(len, messages)) + GROWTH * len(messages) > limit:
            # Each device counts with its size when unhealthy, so that a change of health displaces no other device.
            sizes = map(len, _encoded(device._replace(reason=UNHEALTHY) for device in self.devices.values()))
            self.truncated = sum(size > limit for size in accumulate(sizes))
            del messages[len(messages) - self.truncated :]
        self.message = b"".join(messages)
        """The encoded ListAndWatchResponse, shared by all streams."""

    @cached_property
    def unhealthy(self) -> Sequence[Device]:
        """The unhealthy devices in their order, including those that did not fit into the message."""
        return [device for device in self.devices.values() if device.reason]

    @cached_property
    def reasons(self) -> Mapping[str, int]:
        """Number of devices in the message by reason; healthy devices have an empty one."""
        advertised = islice(self.devices.values(), len(self.devices) - self.truncated)
        counts = Counter({"": 0})
        counts.update(device.reason for device in advertised)
        return counts

    @property
    def healthy(self) -> int:
        """Number of healthy devices in the message."""
        return self.reasons[""]

    def require(self, ids: Iterable[str], *, by_owner: bool = False) -> None:
        """Require that a new pod may get the devices, or, ``by_owner``, that the pod that has them may start again.

        Raises UnknownDeviceError and UnhealthyDeviceError.
        """
        for device_id in ids:
            device = self.devices.get(device_id)
            if device is None:
                raise UnknownDeviceError(f"device {device_id!r} is unknown")
            if not (device.healthy or (by_owner and device.open_to_owner)):
                raise UnhealthyDeviceError(f"device {device_id!r} is unhealthy: {device.detail or device.reason}")

    def changes_since(self, before: Snapshot) -> Changes:
        """Return what differs from an earlier snapshot."""
        reasons_before = {device.id: device.reason for device in before.unhealthy}
        unhealthy: dict[str, list[str]] = {}
        for device in self.unhealthy:
            if reasons_before.get(device.id) != device.reason:
                unhealthy.setdefault(device.reason, []).append(device.id)
        return Changes(
            unhealthy,
            removed=[i for i in before.devices if i not in self.devices],
            healthy=[i for i in reasons_before if i in self.devices and not self.devices[i].reason],
            added=[i for i in self.devices if i not in before.devices],
        )


def _encoded(devices: Iterable[Device]) -> list[bytes]:
    """Return an encoded ListAndWatchResponse for each device; joined, they are the response with all devices."""
    response = pb.ListAndWatchResponse()
    message = response.devices.add()  # and then each field: keywords take twice as long
    encoded = []
    for device in devices:
        message.ID = device.id
        message.health = UNHEALTHY if device.reason else HEALTHY
        if device.numa_nodes:
            message.topology.nodes.extend([pb.NUMANode(ID=node) for node in device.numa_nodes])
        encoded.append(response.SerializeToString())
        if device.numa_nodes:  # the message is used again
            message.ClearField("topology")
    return encoded


class Inventory:
    """The result of the last scan. Belongs to one event loop; ``snapshot`` and ``found`` may be read in any thread."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, ())
        """The devices of ``found`` as they are published."""
        self.found: Any = None
        """The last result of ``Backend.scan``, of the type of the backend; None before the first scan."""
        self.changed_since: float | None = None
        """Time of the first file event of a change that no stream has sent (``time.monotonic``); None if unknown."""
        self._superseded = asyncio.Event()
        self._skipped: Mapping[str, str] = {}

    def publish(self, found: Found, since: float | None = None) -> bool:
        """Make the devices of ``found`` the current snapshot; return False if it has the same devices already.

        ``since`` is the time of the first file event of the change; None if there was no event. Devices with invalid
        IDs are skipped, which is logged once for each reason.
        """
        before, skipped_before = self.snapshot, self._skipped
        by_id, self._skipped = valid_devices(found.devices)
        self.found = found
        for device_id, problem in self._skipped.items():
            if skipped_before.get(device_id) != problem:
                LOG.warning("device skipped", extra={"device": device_id, "reason": problem})
        if before.revision and by_id == before.devices:
            return False
        if self.changed_since is None:
            self.changed_since = since
        self._replace(by_id)
        return True

    def republish(self) -> None:
        """Send the devices again on all streams, if they have been scanned."""
        if self.snapshot.revision:
            self._replace(self.snapshot.devices)

    def superseded(self, revision: int) -> asyncio.Event:
        """Return an event that is set as soon as the current snapshot is newer than ``revision``."""
        if self.snapshot.revision <= revision:
            return self._superseded
        newer = asyncio.Event()
        newer.set()
        return newer

    def _replace(self, devices: Mapping[str, Device]) -> None:
        self.snapshot = Snapshot(self.snapshot.revision + 1, devices.values())
        self._superseded.set()
        self._superseded = asyncio.Event()


def valid_devices(devices: Iterable[Device]) -> tuple[dict[str, Device], dict[str, str]]:
    """Return the devices with valid and unique IDs, and why the devices with other IDs are skipped, by ID.

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
    return valid, problems


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
