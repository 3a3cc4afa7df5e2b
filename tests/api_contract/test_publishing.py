"""What the publisher of ResourceSlices makes of an API server: it has the rights of a driver, and nothing else."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.backend import Device, Found
from aosp_plugin.framework.dra.publisher import SlicePublisher
from aosp_plugin.framework.dra.slices import Attributes, Identity, device_name, taint_probe
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import background_task
from tests.api_contract.common import (
    DRIVER,
    PATIENCE,
    RIGHTS,
    SLICES,
    Server,
    delete_collection,
    next_change,
    version_of,
    watching,
)
from tests.e2e.common.report import say
from tests.support import causes, reported


class Publishing(NamedTuple):
    """A publisher that runs on a node of its own."""

    client: ApiClient
    """The administrator's."""
    node: str
    inventory: Inventory
    publisher: SlicePublisher

    @property
    def selector(self) -> str:
        """Selects its slices."""
        return f"spec.nodeName={self.node},spec.driver={DRIVER}"

    async def slices(self) -> list[dict[str, Any]]:
        """Return its slices."""
        return [*await self.client.list(SLICES, field_selector=self.selector)]

    async def publish(self, devices: Sequence[Device]) -> None:
        """Publish devices, and wait until the server has them and the publisher knows it."""
        self.inventory.publish(Found(devices))
        free = {device_name(device.id) for device in devices if device.healthy}
        await self.until(lambda slices: {name for name, taints in devices_of(slices).items() if not taints} == free)
        await self.fine()

    async def fine(self) -> None:
        """Wait until everything is confirmed, without a problem."""
        await eventually(lambda: self.publisher.confirmed and not reported(self.publisher))

    async def until(self, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until its slices fulfil a condition."""
        async with asyncio.timeout(PATIENCE):
            while not condition(await self.slices()):  # noqa: ASYNC110 - a server has no events for this
                await asyncio.sleep(0.02)

    async def create_node(self) -> str:
        """Create the Node object, and return its UID."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node}}
        return str((await self.client.create(protocol.NODES, node))["metadata"]["uid"])


@contextlib.asynccontextmanager
async def publishing(server: Server, name: str, attributes: Attributes = lambda _: {}) -> AsyncIterator[Publishing]:
    """Run a publisher with the rights of a driver; its slices are deleted at the end."""
    token = await server.token(f"publisher-{uuid.uuid4()}", RIGHTS)
    async with server.client() as client, server.client(token=token) as own_client:
        inventory = Inventory()
        node = f"{name}-{uuid.uuid4().hex[:6]}"
        publisher = SlicePublisher(
            own_client,
            DRIVER,
            node,
            inventory,
            lambda _, each: attributes(each),
            resource="example.com/phone",
            runtime=Runtime(),
        )
        running = Publishing(client, node, inventory, publisher)
        await running.create_node()
        task = asyncio.create_task(publisher.run())
        try:
            yield running
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await delete_collection(client, f"spec.nodeName={node}")


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - a publisher has no events for this
            await asyncio.sleep(0.005)


def devices_of(slices: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the taints of all devices by name."""
    devices = [device for each in slices for device in each["spec"].get("devices") or []]
    return {device["name"]: device.get("taints") or [] for device in devices}


def phones(count: int, **reasons: str) -> list[Device]:
    """Return phone0.. with the reasons why some are unhealthy."""
    return [Device(f"phone{number}", reasons.get(f"phone{number}", ""), (0,)) for number in range(count)]


def _owner(found: dict[str, Any]) -> str:
    (reference,) = found["metadata"]["ownerReferences"]
    return str(reference["uid"])


async def test_at_rest(server: Server) -> None:
    """At rest, nothing is written, whatever reason there is to look."""

    def attributes(device: str) -> dict[str, bool | int | str]:
        return {"kind": "c", "slot": int(device.removeprefix("phone")), "rust": False}

    async with publishing(server, "at-rest", attributes) as running:
        await running.publish(phones(70, phone1="missing"))
        before = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in await running.slices()}
        version = await version_of(running.client, SLICES)
        async with (
            watching(running.client, running.node, version) as events,
            background_task(next_change(events)) as event,
        ):
            for _ in range(3):
                running.publisher.check()
                running.inventory.republish()
                await asyncio.sleep(0.5)
            assert not event.done(), event
        after = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in await running.slices()}
        assert after == before


async def test_unhealthy(server: Server) -> None:
    """An unhealthy device has a taint where the server keeps taints, and is omitted where it drops them."""
    async with publishing(server, "unhealthy") as running:
        probe = taint_probe(Identity("probe.example.com", running.node, "1"))
        kept = "taints" in (await running.client.create(SLICES, probe, dry_run=True))["spec"]["devices"][0]
        say(f"# this server {'keeps' if kept else 'drops'} taints")
        await running.publish(phones(2))
        version = await version_of(running.client, SLICES)
        async with watching(running.client, running.node, version) as events:
            await running.publish(phones(3, phone1="missing"))
            event = await next_change(events)  # the first one that has the unhealthy device, or no longer
        assert devices_of([event.object]).keys() == ({"phone0", "phone1", "phone2"} if kept else {"phone0", "phone2"})
        found = devices_of(await running.slices())
        if kept:
            (taint,) = found["phone1"]
            assert (taint["key"], taint["value"], taint["effect"]) == (f"{DRIVER}/unhealthy", "missing", "NoSchedule")
            await running.publish(phones(4, phone1="missing"))
            (kept_taint,) = devices_of(await running.slices())["phone1"]
            assert {**kept_taint, "timeAdded": ""} == {**taint, "timeAdded": ""}  # each update sets the times again
        await running.publish(phones(3))
        assert devices_of(await running.slices()) == {"phone0": [], "phone1": [], "phone2": []}


async def test_strangers_name(server: Server) -> None:
    """A slice of another node with the name does not keep a node from publishing."""
    async with publishing(server, "strangers-name") as running:
        stranger = f"stranger-of-{running.node}"
        name = f"00000-{DRIVER}-{running.node}"
        pool = {"name": stranger, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": stranger, "pool": pool, "devices": []}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
        await running.client.create(SLICES, body)
        try:
            await running.publish(phones(1))
            (own,) = await running.slices()
            assert own["metadata"]["name"] != name
        finally:
            await delete_collection(running.client, f"spec.nodeName={stranger}")


async def test_node_replaced(server: Server) -> None:
    """Slices follow a Node that is deleted and created again."""
    async with publishing(server, "node-replaced") as running:
        await running.publish(phones(1))
        await running.client.delete(protocol.object_path(protocol.NODES, running.node))
        await delete_collection(running.client, running.selector)  # as the garbage collector does
        await eventually(lambda: f"there is no Node {running.node}" in causes(running.publisher))
        uid = await running.create_node()
        await running.until(lambda slices: [_owner(each) for each in slices] == [uid])
        await running.fine()


async def test_odd_names(server: Server) -> None:
    """Every device ID has a name that the server accepts, and texts that are too long for it are omitted."""
    odd: dict[str, bool | int | str] = {
        **{f"a{number}": number for number in range(20)},
        "example.com/x": "\u00fc" * 32,
        "example.com/y": "\u00fc" * 33,
    }
    ids = [
        "aosp_binder7",
        "ttyUSB0",
        "x" * 63,
        "\u00fc" * 63,
        "-",
        "_",
        "a-",
        "a--b",
        "A b",
        "7",
        "0" * 63,
        "\U0001f4f1",
    ]
    async with publishing(server, "odd-names", lambda _: dict(reversed(odd.items()))) as running:
        await running.publish([Device(each, "of a \u00fc-reason: " * 9 if each == "7" else "") for each in ids])
