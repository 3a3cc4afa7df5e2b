"""The whole plugin with stand-ins for kubelet and API server: what it writes for its Node, and what it survives."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.report import node_events
from kubelet_standin import Kubelet, PodResources
from kubelet_standin.apiserver import ApiServer, Hang
from tests.served_node import ServedNode
from tests.support import RESOURCE, free_port, http_get, listed

KEY = "aosp.io/starting"
NODE = protocol.object_path(protocol.NODES, "worker")
EVENTS = protocol.events("default")


class Node(ServedNode):
    """A node with an API server, which the plugin knows by its address."""

    def __init__(self, directory: Path, server: ApiServer, kubelet: Kubelet) -> None:
        super().__init__(
            directory,
            kubelet,
            port=free_port(),
            pod_resources_socket=f"{directory}/pods.sock",
            service_account_dir=f"{directory}/account",
            shared_devices=[],
        )
        self.environment = {**server.environment, "NODE_NAME": "worker"}
        self.server = server
        (directory / "account").mkdir()
        server.write_service_account(str(directory / "account"))
        body = {
            "metadata": {"name": "worker"},
            "spec": {"taints": [{"key": KEY, "effect": "NoSchedule"}]},
            "status": {"allocatable": {RESOURCE: "3"}},
        }
        server.objects.create(protocol.NODES, body)

    @property
    def events(self) -> dict[str, str]:
        """The messages of the Events by reason."""
        return {event["reason"]: event["message"] for event in self.server.objects.list(EVENTS)}

    @property
    def taints(self) -> list[dict[str, str]]:
        """The taints of the Node object."""
        taints: list[dict[str, str]] = self.server.objects.get(NODE)["spec"]["taints"]
        return taints

    async def metrics(self) -> list[str]:
        """Return the metrics about the Node."""
        _, _, text = await http_get(self.port, "/metrics")
        return [line for line in text.splitlines() if line.startswith("aosp_plugin_node_")]


@pytest.fixture
async def node(short_directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(node_events, "DELAY", 0.1)
    monkeypatch.setattr(node_events, "PAUSE", 0.1)
    async with (
        ApiServer(tls=True) as server,
        Kubelet(short_directory / "k") as kubelet,
        PodResources(kubelet, f"{short_directory}/pods.sock"),
    ):
        yield Node(short_directory, server, kubelet)


async def test_the_taint_goes_when_the_kubelet_has_the_devices_and_lost_devices_are_an_event(node: Node) -> None:
    node.devices.add(0, 1, 2)
    async with node.serve(node_events=True, startup_taint=KEY):
        await node.server.wait_for(lambda _: node.taints == [])
        node.devices.remove(1, 2)
        await node.server.wait_for(lambda _: "DevicesLost" in node.events)
        node.devices.add(1)
        await node.server.wait_for(lambda _: "DevicesRecovered" in node.events)
        metrics = await node.metrics()
    lost = f"2 devices of {RESOURCE} lost: 2 missing (aosp_binder1, aosp_binder2); 1 of 3 are healthy"
    recovered = f"1 device of {RESOURCE} healthy now (aosp_binder1); 2 of 3 are healthy"
    assert node.events == {"DevicesLost": lost, "DevicesRecovered": recovered}
    assert 'aosp_plugin_node_problem{task="events"} 0.0' in metrics
    assert 'aosp_plugin_node_problem{task="startup_taint"} 0.0' in metrics


async def test_an_api_server_that_hangs_affects_neither_devices_nor_the_end(node: Node) -> None:
    hang = node.server.faults.add(Hang())
    node.devices.add(0, 1)
    async with node.serve(node_events=True, startup_taint=KEY) as plugin:
        await listed(node.kubelet, 2)
        await node.server.wait_for(lambda _: hang.hits)
        node.devices.remove(0)
        await listed(node.kubelet, 1)
        status, _, _ = await http_get(node.port, "/readyz")
        assert status == 200
        plugin.signal(signal.SIGTERM)
        assert await plugin.finish() == 0
        assert "forced exit" not in "".join(plugin.log)
