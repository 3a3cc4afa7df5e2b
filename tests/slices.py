"""A publisher of ResourceSlices with the stand-in API server, for tests."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.backend import Device, Found
from aosp_plugin.framework.dra.publisher import SlicePublisher
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Timings
from kubelet_standin.apiserver import ApiServer
from tests.static_credentials import StaticCredentials
from tests.support import RESOURCE, causes, until

DRIVER, NODE = "phone.aosp.io", "worker"
NODE_PATH = protocol.object_path(protocol.NODES, NODE)
SLICES = protocol.RESOURCE_SLICES
OURS = f"spec.nodeName={NODE},spec.driver={DRIVER}"

WATCH_ONLY = Timings(slice_relist=600.0, watch_pause=(0.0, 0.01))
"""No list without a reason, so that a test shows what the watch does alone."""


def phones(count: int, **reasons: str) -> list[Device]:
    """Return devices phone0.. with the reasons why some are unhealthy."""
    return [Device(f"phone{number}", reasons.get(f"phone{number}", "")) for number in range(count)]


def slice_name(block: int) -> str:
    """Return the name of a slice of phones."""
    return f"{block:05}-{DRIVER}-{NODE}"


def slice_path(block: int) -> str:
    """Return the path of a slice of phones."""
    return protocol.object_path(SLICES, slice_name(block))


class Publishing:
    """A publisher that runs, with its inventory and its API server."""

    def __init__(self, server: ApiServer, client: ApiClient) -> None:
        self.server = server
        self.inventory = Inventory()
        self.metrics = Metrics()
        self.publisher = SlicePublisher(
            client,
            DRIVER,
            NODE,
            self.inventory,
            lambda *_: {},
            resource=RESOURCE,
            runtime=Runtime(self.metrics, timings=WATCH_ONLY),
            rng=random.Random(1),  # noqa: S311 - repeatable
        )
        self.task = asyncio.create_task(self.publisher.run())

    async def confirmed(self) -> None:
        """Wait until every slice is confirmed."""
        await until(lambda: self.publisher.confirmed)

    async def repaired(self, count: int) -> dict[str, float]:
        """Wait until the damage of so many slices was noticed and repaired; return their number by reason."""
        await until(lambda: sum(self.repairs().values()) >= count)
        await self.confirmed()
        return self.repairs()

    def repairs(self) -> dict[str, float]:
        """Return the number of slices that were damaged, by reason."""
        samples = next(iter(self.metrics.slice_repairs.collect())).samples
        return {sample.labels["reason"]: sample.value for sample in samples}

    async def compared(self) -> None:
        """Wait until the publisher has compared everything, with what the server has now."""
        for _ in range(2):  # the second comparison begins after the end of the first one
            lists, nodes = self.server.count("list", "resourceslices"), self.server.count("get", "nodes")
            self.publisher.check()
            await self.server.wait_for(lambda s, count=lists: s.count("list", "resourceslices") > count)  # type: ignore[misc]
            await self.server.wait_for(lambda s, count=nodes: s.count("get", "nodes") > count)  # type: ignore[misc]

    async def problem(self, text: str) -> None:
        """Wait until the problem contains a text."""
        await until(lambda: text in causes(self.publisher))

    async def fine(self) -> None:
        """Wait until there is no problem."""
        await until(lambda: not causes(self.publisher))

    async def published(self, devices: Sequence[Device]) -> None:
        """Publish devices, and wait until all slices are confirmed."""
        self.inventory.publish(Found(devices))
        await self.shown([device.id for device in devices if device.healthy])

    async def shown(self, names: Sequence[str]) -> None:
        """Wait until the API server has exactly these devices without a taint, and the publisher knows it."""
        await self.server.wait_for(lambda _: sorted(self.free()) == sorted(names))
        await self.confirmed()

    def free(self) -> list[str]:
        """Return the devices that a scheduler would give away."""
        return [name for name, taints in self.taints().items() if not taints]

    def taints(self) -> Mapping[str, list[str]]:
        """Return the values of the taints of each device that is published."""
        return {
            device["name"]: [taint.get("value", "") for taint in device.get("taints", [])]
            for each in self.slices()
            for device in each["spec"].get("devices") or []
        }

    def slices(self) -> Sequence[dict[str, Any]]:
        """Return the driver's slices."""
        return self.server.objects.list(SLICES, OURS)

    def wipe(self) -> int:
        """Delete the slices of the node, as a kubelet that starts."""
        return self.server.objects.delete_collection(SLICES, f"spec.nodeName={NODE}")

    def edit(self, block: int, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a slice, as another client."""
        found = self.server.objects.get(slice_path(block))
        change(found)
        self.server.objects.update(slice_path(block), found)

    def writes(self) -> int:
        """Return the number of requests that write slices."""
        return sum(self.server.count(verb, "resourceslices") for verb in ("create", "update", "delete"))


@contextlib.asynccontextmanager
async def publishing(
    server: ApiServer,
    devices: Sequence[Device] | None = None,
    *,
    client_type: type[ApiClient] = ApiClient,
) -> AsyncIterator[Publishing]:
    """Run a publisher; with ``devices``, its slices are confirmed. Its error is raised on exit."""
    if not server.objects.list(NODE_PATH):
        server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
    async with contextlib.aclosing(client_type(StaticCredentials(server.url))) as client:
        running = Publishing(server, client)
        try:
            if devices is not None:
                await running.published(devices)
            yield running
        finally:
            running.task.cancel()
            async with asyncio.timeout(10):
                with contextlib.suppress(asyncio.CancelledError):
                    await running.task
