"""The health of the devices of prepared claims, and the streams by which kubelets watch it.

A kubelet shows it in the status of pods (``allocatedResourcesStatus``). It considers a health unknown that no stream
has reported for some time (pkg/kubelet/cm/dra/healthinfo.go), so each stream repeats it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.api import dra_health_pb2 as pb
from aosp_plugin.framework.timings import DEFAULT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from aosp_plugin.framework.dra.interfaces import DeviceHealth

    Context = grpc.aio.ServicerContext[bytes, bytes]

SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""The messages of both are the same."""

TIMEOUT = 30
"""Seconds without a report after which the kubelet considers the health unknown: its default, too."""

DEVICES_PER_MESSAGE = 4096
"""A response with so many devices has less than the 4 MiB that the kubelet receives."""

MAX_MESSAGE_LENGTH = 256
"""Characters of the reason why a device is unhealthy."""


class PreparedHealth:
    """The health of the devices of prepared claims. Belongs to one event loop."""

    def __init__(self) -> None:
        self.devices: tuple[DeviceHealth, ...] = ()
        self.revision = 1
        """Number of the list of devices; increases with each change."""
        self._superseded = asyncio.Event()

    def publish(self, devices: Iterable[DeviceHealth]) -> None:
        """Replace the health of all devices. It is reported at once if it has changed."""
        before, self.devices = self.devices, tuple(devices)
        if self.devices != before:
            self.revision += 1
            self._superseded.set()
            self._superseded = asyncio.Event()

    def superseded(self, revision: int) -> asyncio.Event:
        """Return an event that is set as soon as the list of devices is newer than ``revision``."""
        if self.revision <= revision:
            return self._superseded
        newer = asyncio.Event()
        newer.set()
        return newer


class HealthServicer:
    """The service DRAResourceHealth of one socket, with any number of streams."""

    def __init__(self, health: PreparedHealth, period: float = DEFAULT.health_period) -> None:
        """``period`` is in seconds."""
        self._health = health
        self._period = period
        self._finished = asyncio.Event()

    def handlers(self) -> list[grpc.GenericRpcHandler[bytes, bytes]]:
        """Return the handlers for a gRPC server."""
        method = grpc.unary_stream_rpc_method_handler(
            self._watch, pb.NodeWatchResourcesRequest.FromString, pb.NodeWatchResourcesResponse.SerializeToString
        )
        return [grpc.method_handlers_generic_handler(service, {"NodeWatchResources": method}) for service in SERVICES]

    def finish(self) -> None:
        """End all streams."""
        self._finished.set()

    async def _watch(
        self, _request: pb.NodeWatchResourcesRequest, _context: Context
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """Report the health at once, after each change and periodically, until the client or ``finish`` ends this."""
        while not self._finished.is_set():
            revision = self._health.revision
            for response in _responses(self._health.devices, int(time.time())):
                yield response
            await wait_any(self._health.superseded(revision), self._finished, timeout=self._period)


def _responses(devices: tuple[DeviceHealth, ...], now: int) -> Iterator[pb.NodeWatchResourcesResponse]:
    """Yield the reports on all devices, at least one."""
    for start in range(0, max(len(devices), 1), DEVICES_PER_MESSAGE):
        batch = devices[start : start + DEVICES_PER_MESSAGE]
        yield pb.NodeWatchResourcesResponse(devices=[_encode(device, now) for device in batch])


def _encode(device: DeviceHealth, now: int) -> pb.DeviceHealth:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=pb.HEALTHY if device.healthy else pb.UNHEALTHY,
        last_updated_time=now,
        health_check_timeout_seconds=TIMEOUT,
        message=device.message[:MAX_MESSAGE_LENGTH],
    )
