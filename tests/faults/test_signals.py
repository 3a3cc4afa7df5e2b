"""What ``aosp-plugin serve`` tells in each state that ``make test-deploy`` has alerts for: probes, metrics and log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import yaml

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet, PodResources
from tests.faults.hanging_fs import HangingFileSystem
from tests.served_node import ServedNode
from tests.support import PATIENCE, Serve, fill, free_port, http_get, listed, mounted_tmpfs


class Node(ServedNode):
    """Two devices, a kubelet, and processes, each with a configuration of its own."""

    @contextlib.asynccontextmanager
    async def serving(self, environment: Mapping[str, str] = {}, **keys: object) -> AsyncIterator[Plugin]:
        """Run a plugin whose devices the kubelet has."""
        port = free_port()
        self.configure(listen=f"127.0.0.1:{port}", **keys)
        async with self.process(environment=environment) as serve:
            await listed(self.kubelet, 2)
            await serve.logged("registered")
            yield Plugin(serve, port)


class Plugin(NamedTuple):
    """The process."""

    serve: Serve
    port: int

    async def differs(self, state: State) -> str:
        """Return what is different from the state, or an empty text."""
        for path, expected in {"/readyz": state.readyz, "/healthz": "200 ok"}.items():
            code, _, body = await http_get(self.port, path)
            if not re.match(expected, answer := f"{code} {body}"):
                return f"{path} is {answer}, not {expected}"
        _, _, text = await http_get(self.port, "/metrics")
        for series, expected_value in state.metrics.items():
            name, _, label = series.rstrip("}").partition("{")
            lines = [line for line in text.splitlines() if line.startswith(f"aosp_plugin_{name}{{") and label in line]
            value = sum(float(line.rpartition(" ")[2]) for line in lines)
            if not lines or (value <= 0 if expected_value is POSITIVE else value != expected_value):
                return f"{series} is {lines}, not {expected_value}"
        return ""


@pytest.fixture
def node(kubelet: Kubelet, pod_resources: PodResources, tmp_path: Path) -> Node:
    node = Node(tmp_path, kubelet, pod_resources_socket=str(pod_resources.path))
    node.devices.add(0, 1)
    return node


@contextlib.asynccontextmanager
async def kubelet_stopped(node: Node) -> AsyncIterator[Plugin]:
    """Kill the kubelet, which leaves its socket."""
    async with node.serving() as plugin:
        await node.kubelet.stop()
        yield plugin


@contextlib.asynccontextmanager
async def scan_hangs(node: Node) -> AsyncIterator[Plugin]:
    """Make one device a link into a FUSE file system."""
    with tempfile.TemporaryDirectory() as directory, HangingFileSystem(f"{directory}/hanging") as files:
        node.devices.remove(1)
        Path(files.source, "aosp_binder1").touch()  # noqa: ASYNC240 - does not hang
        (node.devices.directory / "aosp_binder1").symlink_to(f"{files.directory}/aosp_binder1")
        async with node.serving() as plugin:
            files.hang()
            (node.devices.directory / "event").touch()
            yield plugin
            files.release()


@contextlib.asynccontextmanager
async def stream_lost(node: Node) -> AsyncIterator[Plugin]:
    """Close the stream, and let the kubelet hang from then on."""
    async with node.serving() as plugin:
        node.kubelet.faults.hang_register = True
        await node.kubelet.drop_streams()
        yield plugin
        node.kubelet.faults.release_register()


@contextlib.asynccontextmanager
async def foreign_stream(node: Node) -> AsyncIterator[Plugin]:
    """Call ListAndWatch as a tool on the host does."""
    async with node.serving() as plugin:
        path = os.path.join(node.kubelet.directory, node.kubelet.registrations[-1].endpoint)
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stream = DevicePluginStub(channel).ListAndWatch(pb.Empty())
            await stream.read()
            yield plugin


@contextlib.asynccontextmanager
async def second_plugin(node: Node) -> AsyncIterator[Plugin]:
    """Run another one with the same devices, which registers later."""
    async with node.serving() as plugin, node.serving():
        yield plugin


@contextlib.asynccontextmanager
async def cdi_directory_full(node: Node) -> AsyncIterator[Plugin]:
    """Fill it, and add a device that containers would get by the spec only."""
    directory = node.directory / "cdi"
    directory.mkdir()
    with mounted_tmpfs(directory):
        spec = str(directory / "specs")
        async with node.serving(cdi_dir=spec, device_list=["envvar", "cdi-cri"]) as plugin:
            fill(directory)
            node.devices.add(2)
            yield plugin


POSITIVE = None


class State(NamedTuple):
    """A failure, and its signals. ``/healthz`` fails in none of these: a restart of the container would not help."""

    failure: Callable[[Node], AbstractAsyncContextManager[Plugin]]
    readyz: str
    """A pattern of status code and text."""
    metrics: Mapping[str, float | None]
    """Value of each series, without ``aosp_plugin_`` in its name."""
    logged: tuple[str, ...] = ()


STATES = {
    "the kubelet is stopped": State(
        kubelet_stopped,
        "503 .*(registration failed, retrying: UNAVAILABLE|waiting for kubelet)",
        {
            "registered": 0,
            "streams_open": 0,
            'registrations_total{result="failed"}': POSITIVE,
            'devices{health="healthy"}': 2,
        },
        ("WARNING connection to kubelet lost, re-registering", "WARNING registration failed, retrying"),
    ),
    "a file system hangs that a scan reads": State(
        scan_hangs,
        "503 .*device scan has been hanging for",
        {'scans_total{result="hung"}': 1, 'devices{health="healthy"}': 2, "registered": 1, "kubelet_allocatable": 2},
        ("ERROR device scan is hanging",),
    ),
    "a stream is lost, and the kubelet does not accept the next registration": State(
        stream_lost,
        "503 .*connection to kubelet lost, re-registering: the kubelet's stream ended",
        {"registered": 0, "streams_open": 0, "kubelet_restarts_total": 0},
        ("WARNING connection to kubelet lost, re-registering",),
    ),
    "another client opens a stream": State(
        foreign_stream,
        "200 .*2 of 2 healthy devices allocatable",
        {"streams_open": 2, "registered": 1, 'registrations_total{result="ok"}': 1},
    ),
    "a second plugin serves the resource": State(
        second_plugin,
        "200 .*another plugin of this resource runs on this node",
        {"other_plugins": 1, "registered": 1},
        ("WARNING another plugin of the resource is running",),
    ),
    "the CDI directory is full": State(
        cdi_directory_full,
        "503 .*host update failed",
        {
            'host_updates_total{result="failed"}': POSITIVE,
            'devices{reason="not-in-cdi-spec"}': 1,
            'devices{health="healthy"}': 2,
            "registered": 1,
        },
        ("ERROR host update failed, retrying",),
    ),
}
ALERTS = yaml.safe_load((Path(__file__).parents[1] / "e2e/deploy/alerts.yaml").read_text(encoding="utf-8"))
"""The states of which ``make test-deploy`` checks the alerts."""
DEAD = "a task of the plugin dies"


@pytest.mark.parametrize("name", STATES)
async def test_probes_metrics_and_log_tell_the_failure(node: Node, name: str) -> None:
    state, difference = STATES[name], "no answer"
    async with state.failure(node) as plugin:
        for line in state.logged:
            if not any(f" {line}" in each for each in plugin.serve.log):
                await plugin.serve.logged(f" {line}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while difference := await plugin.differs(state):
                    pass
        assert not difference


BUG = """\
import asyncio
from aosp_plugin.daemon.allocations import AllocationWatch

async def record(_, servers, _end):
    assert not any(server.registered for server in servers)
    await asyncio.sleep(1)

AllocationWatch._record_changes = record
"""


async def test_process_whose_task_dies_ends(node: Node) -> None:
    """There is a bug in the task that asks for allocations."""
    (node.directory / "sitecustomize.py").write_text(BUG)
    path = os.pathsep.join([str(node.directory), os.environ.get("PYTHONPATH", "")])
    async with node.serving({"PYTHONPATH": path}) as plugin:
        await plugin.serve.logged(" ERROR task failed, exiting")
        assert await plugin.serve.finish() == 1
        with pytest.raises(OSError, match="Connect"):
            await http_get(plugin.port, "/healthz")


def test_each_failure_has_its_alerts_tested() -> None:
    assert {*STATES, DEAD} <= ALERTS.keys()
