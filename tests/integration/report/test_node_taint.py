"""The startup taint: when it is removed from the Node, what stays, and what happens to it later."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.backend import Device, Found
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.resource_server import Confirmation, DriverState
from aosp_plugin.framework.timing import Backoff, background_task
from aosp_plugin.report.node_reporter import StartupTaint, is_ready, keep_written, problem_metric
from kubelet_standin.apiserver import ApiServer
from tests.static_credentials import StaticCredentials

RESOURCE = "aosp.io/binder"
KEY = "aosp.io/starting"
NODE = protocol.object_path(protocol.NODES, "worker")
STARTUP = {"key": KEY, "value": "a", "effect": "NoSchedule"}
OTHER = {"key": "example.com/other", "effect": "NoExecute"}


class Server(SimpleNamespace):
    """The state of a device plugin that is ready, as a test changes it."""

    def __init__(self, *, ready: bool = True, **changes: Any) -> None:
        self.resource_name = RESOURCE
        self.read = asyncio.Event()
        self._ready = ready
        self.driver = None
        self.inventory = Inventory()
        self.inventory.publish(Found([Device("a")]))
        self.confirmation = Confirmation(RESOURCE, Conditions(), Metrics())
        self.confirmation.record(1, 1)
        super().__init__(**changes)

    @property
    def ready(self) -> bool:
        """Whether the plugin is ready; ``read`` is set by each reading."""
        self.read.set()
        return self._ready

    @ready.setter
    def ready(self, ready: bool) -> None:
        self._ready = ready


def ready_server(**changes: Any) -> Any:
    """Return a server, with other attributes if the test requires them."""
    return Server(**changes)


class Node:
    """A Node object, and the plugin that may remove its taint."""

    def __init__(self, api: ApiServer, plugin: Server, conditions: Conditions) -> None:
        self.api = api
        self.plugin = plugin
        self.conditions = conditions

    def create(self, *taints: dict[str, str], allocatable: str = "1") -> None:
        """Create the Node object."""
        self.api.objects.create(
            protocol.NODES,
            {
                "metadata": {"name": "worker"},
                "spec": {"taints": list(taints)},
                "status": {"allocatable": {RESOURCE: allocatable}},
            },
        )

    @property
    def taints(self) -> list[dict[str, str]]:
        """The taints that the Node object has."""
        taints: list[dict[str, str]] = self.api.objects.get(NODE)["spec"].get("taints", [])
        return taints

    def taint(self, *taints: dict[str, str]) -> None:
        """Replace the taints, as another client does."""
        node = self.api.objects.get(NODE)
        node["spec"]["taints"] = list(taints)
        self.api.objects.update(NODE, node)

    def report(self, allocatable: str) -> None:
        """Report the number of devices, as the kubelet does."""
        self.api.objects.update(
            f"{NODE}/status", {"metadata": {"name": "worker"}, "status": {"allocatable": {RESOURCE: allocatable}}}
        )

    async def asked(self) -> None:
        """Wait until the plugin has read the Node twice more."""
        before = self.api.count("get", "nodes")
        await self.api.wait_for(lambda server: server.count("get", "nodes") >= before + 2)


@contextlib.asynccontextmanager
async def kept(taint: StartupTaint, conditions: Conditions) -> AsyncIterator[None]:
    """Let the plugin read its state and write the Node all the time."""
    work = keep_written(
        "startup_taint",
        taint.write,
        conditions,
        problem_metric(Metrics()),
        interval=0.01,
        backoff=Backoff(first=0.01, cap=0.02),
    )
    async with background_task(work):
        yield


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Yield a Node that does not exist yet."""
    plugin, conditions = ready_server(), Conditions()
    async with ApiServer() as server, contextlib.aclosing(ApiClient(StaticCredentials(server.url))) as client:
        taint = StartupTaint(client, "worker", KEY, [plugin], recheck=0.02, settled=0.05)
        async with kept(taint, conditions):
            yield Node(server, plugin, conditions)


async def test_all_taints_with_the_key_are_removed_and_the_others_stay(node: Node) -> None:
    node.create(STARTUP, OTHER, {"key": KEY, "effect": "NoExecute"})
    await node.api.wait_for(lambda _: node.taints == [OTHER])
    assert node.api.count("patch", "nodes") == 1


async def test_the_taint_stays_until_the_node_object_has_devices(node: Node) -> None:
    node.create(STARTUP, allocatable="0")
    await node.asked()
    assert node.taints == [STARTUP]
    node.report("1")
    await node.api.wait_for(lambda _: node.taints == [])


async def test_a_registration_makes_the_plugin_read_the_node_again_at_once() -> None:
    plugin = ready_server()
    async with ApiServer() as server, contextlib.aclosing(ApiClient(StaticCredentials(server.url))) as client:
        node = Node(server, plugin, Conditions())
        node.create()
        async with kept(StartupTaint(client, "worker", KEY, [plugin]), Conditions()):
            await server.wait_for(lambda _: server.count("get", "nodes") == 1)
            server.objects.delete(NODE)
            node.create(STARTUP)
            plugin.ready = False
            plugin.read.clear()
            await plugin.read.wait()
            plugin.ready = True
            await server.wait_for(lambda _: node.taints == [])


async def test_taints_that_change_between_read_and_patch_are_read_again(node: Node) -> None:
    node.plugin.ready = False
    node.create(STARTUP, OTHER)
    moved = False

    def move(server: ApiServer) -> bool:
        nonlocal moved
        if not moved and server.count("get", "nodes") == 1:
            moved = True
            node.taint(OTHER, STARTUP)
        return node.taints == [OTHER]

    node.plugin.ready = True
    await node.api.wait_for(move)
    assert not node.conditions.of("")


@pytest.mark.parametrize(
    "changes",
    [
        {"ready": False},
        {"inventory": Inventory()},
        {"driver": DriverState("binder.aosp.io", 0, 0, 0)},
    ],
    ids=["unready", "no devices", "no slices"],
)
def test_a_resource_is_not_ready(changes: dict[str, Any]) -> None:
    assert not is_ready(ready_server(**changes))
