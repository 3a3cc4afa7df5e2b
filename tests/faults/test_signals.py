"""The table of failures in signals.md, cell by cell, on ``aosp-plugin serve`` in each state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import Kubelet, PodResources
from tests.faults.hanging_fs import HangingFileSystem
from tests.support import PATIENCE, DeviceDirectory, Serve, free_port, http_get, listed, mounted_tmpfs

DOCUMENT = Path(__file__).with_name("signals.md").read_text(encoding="utf-8")


class Signals(NamedTuple):
    """The cells of one failure."""

    readyz: str
    healthz: str
    metrics: str
    log: str
    alerts: str


def _table() -> dict[str, Signals]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.splitlines() if "|" in line]
    return {name: Signals(*cells) for name, *cells in rows[2:]}


TABLE = _table()


class Node(NamedTuple):
    """Two devices, a kubelet, and the place of everything else."""

    directory: Path
    devices: DeviceDirectory
    kubelet: Kubelet
    environment: dict[str, str]

    @contextlib.asynccontextmanager
    async def serving(self, healthy: int = 2, **environment: str) -> AsyncIterator[Plugin]:
        """Run a plugin whose devices the kubelet has."""
        port = free_port()
        flags = ("--listen", f"127.0.0.1:{port}")
        variables = self.environment | environment
        async with Serve(self.devices, self.kubelet.directory, *flags, environment=variables) as serve:
            await listed(self.kubelet, healthy)
            await serve.logged("registered")
            yield Plugin(serve, port)


class Plugin(NamedTuple):
    """The process whose signals are compared."""

    serve: Serve
    port: int

    async def answer(self, path: str) -> str:
        """Return status and body; a process that does not answer is described as in the table."""
        try:
            status, _, body = await http_get(self.port, path)
        except OSError:
            return "no answer"
        return f"{status} {body}"

    async def metrics(self) -> Mapping[str, float]:
        """Return the value of each series, by its name and labels as a PromQL selector finds them."""
        _, _, text = await http_get(self.port, "/metrics")
        return {
            f"{sample.name}{sorted(sample.labels.items())}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
async def node(device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path) -> AsyncIterator[Node]:
    device_directory.add(0, 1)
    socket = os.path.join(kubelet_dir, "pods.sock")
    async with Kubelet(kubelet_dir) as kubelet, PodResources(kubelet, socket):
        yield Node(tmp_path, device_directory, kubelet, {"AOSP_PLUGIN_POD_RESOURCES_SOCKET": socket})


# -- the states


@contextlib.asynccontextmanager
async def kubelet_stopped(node: Node) -> AsyncIterator[Plugin]:
    """Kill the kubelet, which leaves its socket."""
    async with node.serving() as plugin:
        await node.kubelet.stop()
        yield plugin


@contextlib.asynccontextmanager
async def scan_hangs(node: Node) -> AsyncIterator[Plugin]:
    """Make one device a link into a FUSE file system."""
    with _hanging() as files:
        node.devices.remove(1)
        with open(f"{files.source}/aosp_binder1", "wb"):  # noqa: ASYNC230 - does not hang
            pass
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
        device_list = "envvar,cdi-cri"
        async with node.serving(AOSP_PLUGIN_CDI_DIR=spec, AOSP_PLUGIN_DEVICE_LIST=device_list) as plugin:
            filler = directory / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            node.devices.add(2)
            yield plugin


BUG = """\
import asyncio
from aosp_plugin.daemon.allocations import AllocationWatch

async def record(_, servers, _end):
    assert not any(server.registered for server in servers)
    await asyncio.sleep(1)

AllocationWatch._record_changes = record
"""


@contextlib.asynccontextmanager
async def task_dies(node: Node) -> AsyncIterator[Plugin]:
    """Put a bug into the task that asks for allocations."""
    (node.directory / "sitecustomize.py").write_text(BUG)
    path = os.pathsep.join([str(node.directory), os.environ.get("PYTHONPATH", "")])
    async with node.serving(PYTHONPATH=path) as plugin:
        yield plugin


@contextlib.contextmanager
def _hanging() -> Iterator[HangingFileSystem]:
    with tempfile.TemporaryDirectory() as directory, HangingFileSystem(f"{directory}/hanging") as files:
        yield files


STATES: dict[str, Callable[[Node], AbstractAsyncContextManager[Plugin]]] = {
    "the kubelet is stopped": kubelet_stopped,
    "a file system hangs that a scan reads": scan_hangs,
    "a stream is lost, and the kubelet does not accept the next registration": stream_lost,
    "another client opens a stream": foreign_stream,
    "a second plugin serves the resource": second_plugin,
    "the CDI directory is full": cdi_directory_full,
    "a task of the plugin dies": task_dies,
}
"""How each failure of the table comes about."""
ALERTS = yaml.safe_load((Path(__file__).parents[1] / "e2e/deploy/alerts.yaml").read_text(encoding="utf-8"))
"""The states of which ``make test-deploy`` checks the alerts."""


# -- the cells


def test_the_table_has_each_state() -> None:
    assert TABLE.keys() == STATES.keys()


@pytest.mark.parametrize("failure", STATES)
async def test_signals_of_a_failure_are_those_in_the_table(node: Node, failure: str) -> None:
    cells = TABLE[failure]
    async with STATES[failure](node) as plugin:
        for message in re.findall(r"`(.*?)`", cells.log):
            line = next((line for line in plugin.serve.log if message in line), "")
            line = line or await plugin.serve.logged(message)
            assert re.search(rf" {cells.log.split()[0].rstrip('s').upper()} {re.escape(message)}", line)
        await until("/readyz", cells.readyz, partial(probe_differs, plugin, "/readyz", cells.readyz))
        await until("metrics", cells.metrics, partial(metrics_differ, plugin, cells.metrics))
        assert (await plugin.answer("/healthz")).startswith(cells.healthz)
        if cells.healthz == "no answer":
            assert await plugin.serve.finish() == 1


@pytest.mark.parametrize("failure", STATES)
def test_alerts_of_a_failure_are_those_of_its_state(failure: str) -> None:
    firing = {alert for alerts in ALERTS[failure]["alerts"].values() for alert in alerts}
    assert firing == set(re.findall(r"\[(\w+)\]", TABLE[failure].alerts))


async def until(signal_name: str, cell: str, difference: Callable[[], Awaitable[str]]) -> None:
    """Wait until a signal is as in its cell."""
    difference_now = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while difference_now := await difference():
                pass
    assert not difference_now, f"{signal_name} should be {cell!r}: {difference_now}"


async def probe_differs(plugin: Plugin, path: str, cell: str) -> str:
    """Return the answer of a probe if it is not the one in the cell: its status, and one of the texts."""
    answer = await plugin.answer(path)
    texts = re.findall(r"`(.*?)`", cell)
    same = answer.startswith(cell.split(" `", maxsplit=1)[0]) and (not texts or any(text in answer for text in texts))
    return "" if same else answer


async def metrics_differ(plugin: Plugin, cell: str) -> str:
    """Return the first value that differs from the cell."""
    wanted = re.findall(r"`(\w+)(?:\{(.*?)\})? (> )?(\d+)`", cell)
    if not wanted:
        return "" if await plugin.answer("/metrics") == "no answer" else "the process answers"
    series = await plugin.metrics()
    for name, label, more, number in wanted:
        selector = re.sub(r'(\w+)="(.*?)"', r"('\1', '\2')", label)
        values = [value for key, value in series.items() if key.startswith(f"aosp_plugin_{name}[") and selector in key]
        if not values or (sum(values) <= float(number) if more else sum(values) != float(number)):
            return f"{name}{{{label}}} is {values}"
    return ""
