"""What the plugin writes for its Node, Events and the removal of the startup taint, and what it survives."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiClient, ApiLimits
from aosp_plugin.framework.apiserver.protocol import ApiError
from aosp_plugin.framework.backend import Device, Found
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.resource_server import Confirmation, DriverState
from aosp_plugin.framework.timing import Backoff, background_task
from aosp_plugin.report import node_events
from aosp_plugin.report.node_events import NodeEvents, Occurrence
from aosp_plugin.report.node_reporter import StartupTaint, is_ready, keep_written, problem_metric
from kubelet_standin.apiserver import ApiServer, Cut, Hang, Refuse
from tests.served_node import ServedNode, node_with_pods
from tests.simulation.loop import SimulatedLoop
from tests.static_credentials import StaticCredentials
from tests.support import RESOURCE, Clock, free_port, http_get, listed, until

NAME, KEY = "worker", "aosp.io/starting"
PATH = protocol.object_path(protocol.NODES, NAME)
STARTUP = {"key": KEY, "value": "a", "effect": "NoSchedule"}
OTHER = {"key": "example.com/other", "effect": "NoExecute"}
START = 1767323045.0  # 2026-01-02T03:04:05Z


class Node:
    """A Node object and its Events, in an API server; it is a watch that reports what a test has lost."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.conditions = Conditions()
        self._lost: list[Occurrence] = []

    def create(self, *taints: dict[str, str], allocatable: str = "1") -> None:
        """Create the Node object."""
        status = {"allocatable": {RESOURCE: allocatable}}
        self.api.objects.create(
            protocol.NODES, {"metadata": {"name": NAME}, "spec": {"taints": [*taints]}, "status": status}
        )

    @property
    def taints(self) -> list[dict[str, str]]:
        """The taints that the Node object has."""
        taints: list[dict[str, str]] = self.api.objects.get(PATH)["spec"].get("taints", [])
        return taints

    def lost(self, message: str) -> None:
        """Report that devices were lost."""
        self._lost.append(Occurrence("Warning", "DevicesLost", message))

    def occurrences(self) -> Iterator[Occurrence]:
        """Yield what was reported since the last call."""
        found, self._lost = self._lost, []
        yield from found

    def events(self, key: str = "message") -> list[Any]:
        """Return this part of each Event, sorted."""
        return sorted(each[key] for each in self.api.objects.list(protocol.events("default")))

    async def written(self, *messages: str) -> None:
        """Wait until the API server has Events with these messages."""
        await self.api.wait_for(lambda _: self.events() == [*messages])

    @contextlib.asynccontextmanager
    async def kept(self, name: str, write: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Let the plugin write all the time."""
        soon, problem = Backoff(first=0.01, cap=0.02), problem_metric(Metrics())
        async with background_task(keep_written(name, write, self.conditions, problem, interval=0.01, backoff=soon)):
            yield


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[ApiClient]:
    credentials = StaticCredentials(api_server.url)
    async with contextlib.aclosing(ApiClient(credentials, limits=ApiLimits(request=0.3))) as client:
        yield client


@pytest.fixture
def node(api_server: ApiServer) -> Node:
    return Node(api_server)


# -- Events


@pytest.fixture
async def reporting(node: Node, client: ApiClient) -> AsyncIterator[Node]:
    """Yield a node whose Events are written."""
    watch: Any = node
    async with node.kept("events", NodeEvents(client, NAME, [watch], clock=Clock(START)).write):
        yield node


async def test_an_event_whose_creation_was_not_answered_exists_once_with_its_time(reporting: Node) -> None:
    reporting.api.faults.add(Cut(after=None), verb="create", resource="events", times=1)
    reporting.lost("a")
    await reporting.api.wait_for(lambda server: server.count("create", "events") == 2)
    reporting.lost("b")
    await reporting.written("a", "b")
    for key, value in {
        "firstTimestamp": "2026-01-02T03:04:05Z",
        "lastTimestamp": "2026-01-02T03:04:05Z",
        "count": 1,
    }.items():
        assert reporting.events(key) == [value] * 2


async def test_a_server_that_hangs_or_fails_gets_the_events_later_and_the_problem_is_logged_once(
    reporting: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    hang = reporting.api.faults.add(Hang(), resource="events")
    reporting.lost("a")
    await reporting.api.wait_for(lambda server: server.count("create", "events") >= 2)
    reporting.lost("b")
    hang.remove()
    await reporting.written("a", "b")
    await until(lambda: not reporting.conditions.of(""))
    refused = reporting.api.faults.add(Refuse(403, "Forbidden", "no"), resource="events")
    reporting.lost("c")
    await reporting.api.wait_for(lambda _: refused.hits >= 3)
    assert [each.subject for each in reporting.conditions.of("")] == ["events"]
    refused.remove()
    await reporting.written("a", "b", "c")
    await until(lambda: not reporting.conditions.of(""))
    assert [record.message for record in caplog.records] == ["node task failed, retrying", "node task recovered"] * 2
    assert "the service account requires the verb create on events" in vars(caplog.records[2])["error"]


def test_the_pauses_of_a_task_that_fails_grow_and_respect_the_server() -> None:
    """They begin again after a success."""
    loop, times, away = SimulatedLoop(), list[float](), OSError("away")
    outcomes = iter([away, away, away, ApiError(None, "429", status=429, retry_after=100.0), None, away])

    async def write() -> None:
        times.append(loop.time())
        outcome = next(outcomes, asyncio.CancelledError())
        if outcome is not None:
            raise outcome

    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(keep_written("a", write, Conditions(), problem_metric(Metrics()), interval=7.0))
    loop.close()
    limits = [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0), (100.0, 120.0), (6.9, 7.1), (0.5, 1.0)]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert all(least <= pause <= most for pause, (least, most) in zip(pauses, limits, strict=True)), pauses


# -- the startup taint


class Server(SimpleNamespace):
    """The state of a device plugin that is ready, as a test changes it."""

    def __init__(self, **changes: Any) -> None:
        self.resource_name = RESOURCE
        self.is_ready = True
        self.read = asyncio.Event()
        """Set when the state is read."""
        self.driver = None
        self.inventory = Inventory()
        self.inventory.publish(Found([Device("a")]))
        self.confirmation = Confirmation(RESOURCE, Conditions(), Metrics())
        self.confirmation.record(1, 1)
        super().__init__(**changes)

    @property
    def ready(self) -> bool:
        """Whether the plugin is ready."""
        self.read.set()
        return bool(self.is_ready)


@pytest.fixture
def server() -> Any:
    return Server()


async def test_a_registration_makes_the_plugin_read_the_node_again_at_once(
    node: Node, client: ApiClient, server: Any
) -> None:
    node.create()
    async with node.kept("startup_taint", StartupTaint(client, NAME, KEY, [server]).write):
        await node.api.wait_for(lambda api: api.count("get", "nodes") == 1)
        node.api.objects.delete(PATH)
        node.create(STARTUP)
        server.is_ready = False
        server.read.clear()
        await server.read.wait()
        server.is_ready = True
        await node.api.wait_for(lambda _: node.taints == [])


async def test_taints_that_change_between_read_and_patch_are_read_again(
    node: Node, client: ApiClient, server: Any
) -> None:
    node.create(STARTUP, OTHER)
    moved = False

    def move(api: ApiServer) -> bool:
        nonlocal moved
        if not moved and api.count("get", "nodes") == 1:
            moved = True
            changed = api.objects.get(PATH)
            changed["spec"]["taints"] = [OTHER, STARTUP]
            api.objects.update(PATH, changed)
        return node.taints == [OTHER]

    async with node.kept("startup_taint", StartupTaint(client, NAME, KEY, [server], recheck=0.02).write):
        await node.api.wait_for(move)
    assert not node.conditions.of("")


@pytest.mark.parametrize(
    "changes",
    [{"is_ready": False}, {"inventory": Inventory()}, {"driver": DriverState("binder.aosp.io", 0, 0, 0)}],
    ids=["unready", "no devices", "no slices"],
)
def test_a_resource_is_not_ready(changes: dict[str, Any]) -> None:
    server: Any = Server(**changes)
    assert not is_ready(server)


# -- the whole plugin


@pytest.fixture
async def plugin(short_directory: Path, node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedNode]:
    """Yield a node whose plugin knows the API server by its address, and is to write Events and remove the taint."""
    monkeypatch.setattr(node_events, "DELAY", 0.1)
    monkeypatch.setattr(node_events, "PAUSE", 0.1)
    account = short_directory / "account"
    account.mkdir()
    node.api.write_service_account(str(account))
    node.create(STARTUP, allocatable="3")
    keys: dict[str, Any] = {
        "node_events": True,
        "startup_taint": KEY,
        "shared_devices": [],
        "service_account_dir": str(account),
    }
    async with node_with_pods(short_directory, port=free_port(), **keys) as plugin:
        plugin.environment = {**node.api.environment, "NODE_NAME": NAME}
        yield plugin


@pytest.mark.api_server(tls=True)
async def test_the_taint_goes_when_the_kubelet_has_the_devices_and_lost_devices_are_an_event(
    node: Node, plugin: ServedNode
) -> None:
    plugin.devices.add(0, 1, 2)
    async with plugin.serve():
        await node.api.wait_for(lambda _: node.taints == [])
        plugin.devices.remove(1, 2)
        await node.api.wait_for(lambda _: "DevicesLost" in node.events("reason"))
        plugin.devices.add(1)
        await node.api.wait_for(lambda _: "DevicesRecovered" in node.events("reason"))
        _, _, metrics = await http_get(plugin.port, "/metrics")
    lost = f"2 devices of {RESOURCE} lost: 2 missing (aosp_binder1, aosp_binder2); 1 of 3 are healthy"
    assert node.events() == [f"1 device of {RESOURCE} healthy now (aosp_binder1); 2 of 3 are healthy", lost]
    for task in ("events", "startup_taint"):
        assert f'aosp_plugin_node_problem{{task="{task}"}} 0.0' in metrics


@pytest.mark.api_server(tls=True)
async def test_an_api_server_that_hangs_affects_neither_devices_nor_the_end(node: Node, plugin: ServedNode) -> None:
    hang = node.api.faults.add(Hang())
    plugin.devices.add(0, 1)
    async with plugin.serve() as process:
        await listed(plugin.kubelet, 2)
        await node.api.wait_for(lambda _: hang.hits)
        plugin.devices.remove(0)
        await listed(plugin.kubelet, 1)
        assert (await http_get(plugin.port, "/readyz"))[0] == 200
        process.signal(signal.SIGTERM)
        assert await process.finish() == 0
        assert "forced exit" not in "".join(process.log)
