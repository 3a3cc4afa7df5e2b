"""Immutable snapshots of the devices, and the wait for the next one.

A snapshot is replaced as a whole. Each ListAndWatch stream remembers the revision that it sent last, so that a stale
stream cannot consume an event that a newer stream waits for.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, islice

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.devices import Device, id_problem

LOG = logging.getLogger(__name__)

MESSAGE_LIMIT = 4 * 1024 * 1024
"""Bytes that the kubelet accepts in one message: gRPC's default, never raised (pkg/kubelet/cm/devicemanager). One byte
more ends the stream, and with it every device of the resource."""

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""The two states that the kubelet knows (pkg/apis/deviceplugin/v1beta1/constants.go)."""

GROWTH = 4
"""Bytes by which the message of a device grows at most when it becomes unhealthy."""


class Snapshot:
    """All devices at one moment. Immutable; may be read in any thread."""

    def __init__(self, revision: int, devices: Iterable[Device], limit: int = MESSAGE_LIMIT) -> None:
        """Take devices whose IDs are valid and unique, see ``valid_devices``. ``limit`` is in bytes."""
        self.revision = revision
        self.devices: Mapping[str, Device] = {device.id: device for device in devices}
        """All devices by ID, in their order."""
        messages = _encoded(self.devices.values())
        self.truncated = 0
        """Number of devices at the end of the list that did not fit into the message."""
        if sum(map(len, messages)) + GROWTH * len(messages) > limit:
            # Each device counts with its size when unhealthy, so that a change of health never displaces another one.
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


def _encoded(devices: Iterable[Device]) -> list[bytes]:
    """Return an encoded ListAndWatchResponse for each device. Joined, they are that of all of them."""
    response = pb.ListAndWatchResponse()
    message = response.devices.add()  # and then each field: keywords take twice as long
    encoded = []
    for device in devices:
        message.ID = device.id
        message.health = UNHEALTHY if device.reason else HEALTHY
        if device.numa_nodes:
            message.topology.nodes.extend([pb.NUMANode(ID=node) for node in device.numa_nodes])
        encoded.append(response.SerializeToString())
        if device.numa_nodes:  # without them, there is no topology
            message.ClearField("topology")
    return encoded


class Inventory:
    """The current snapshot. Belongs to one event loop; ``snapshot`` may be read in any thread."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(0, ())
        self._superseded = asyncio.Event()
        self._skipped: Mapping[str, str] = {}

    def publish(self, devices: Iterable[Device]) -> bool:
        """Make ``devices`` the current snapshot; return False if the current one has the same devices already.

        Those with invalid IDs are skipped, which is logged once for each reason.
        """
        before, skipped_before = self.snapshot, self._skipped
        by_id, self._skipped = valid_devices(devices)
        for device_id, problem in self._skipped.items():
            if skipped_before.get(device_id) != problem:
                LOG.warning("device skipped", extra={"device": device_id, "reason": problem})
        if before.revision and by_id == before.devices:
            return False
        self._replace(by_id)
        return True

    def republish(self) -> None:
        """Send the devices again on all streams, unless they are still unknown."""
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
    return valid, problems
