"""What metrics, probes and log tell of a running plugin: while all is well, and while something is broken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.backend import BinderBackend
from aosp_plugin.binder.discovery.health import Reason, Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config import Config, Resource
from aosp_plugin.errors import BackendError, RegistrationRefusedError
from aosp_plugin.framework import DevicePlugin, ListedDevices, refresher
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.events.mount_events import MountEvents
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.service.heartbeat import Heartbeat
from aosp_plugin.framework.service.metrics import Metrics
from aosp_plugin.testing import Container, Kubelet, Pod
from tests.support import FAST, IN_LIFE, PATIENCE, RESOURCE, Nodes, Serve, free_port, listed, make_plugin, ready, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub
    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.deviceplugin.supervisor import Timings
    from aosp_plugin.framework.edits import ContainerEdits


class Observed(NamedTuple):
    """A running plugin, and what tells of it."""

    plugin: DevicePlugin
    metrics: Metrics
    files: FileEvents
    heartbeat: Heartbeat
    task: asyncio.Task[None]

    def value(self, name: str, **labels: str) -> float:
        """Return a series of the resource as Prometheus reads it."""
        return series(self.metrics)[name, frozenset({"resource": RESOURCE, **labels}.items())]

    def values(self, name: str, label: str) -> dict[str, float]:
        """Return those series of a metric that are not 0, by a label."""
        return {
            dict(labels)[label]: value
            for (own, labels), value in series(self.metrics).items()
            if own == f"aosp_plugin_{name}" and value
        }

    async def probes(self) -> tuple[str, str]:
        """Return what /healthz and /readyz complain of: the heartbeat is asked by another thread, as there."""
        return await asyncio.to_thread(self.heartbeat.problem) or self.plugin.unhealthy, self.plugin.unready


def series(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the value of every series by name and labels."""
    _, text = metrics.exposition()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


class Lines(logging.Handler):
    """The lines of the log, as ``serve`` writes them with --log-format json."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(logs.add_resource)
        self.setFormatter(logs.JsonFormatter())
        self.kept: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.kept.append(json.loads(self.format(record)))

    def take(self, *keys: str) -> list[tuple[Any, ...]]:
        """Return level, message and ``keys`` of the lines since this was last asked; each is of the resource."""
        taken, self.kept = self.kept, []
        assert {line["resource"] for line in taken} <= {RESOURCE}
        return [(line["level"], line["message"], *(line[key] for key in keys if key in line)) for line in taken]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Return what collects the lines of the plugin."""
    collected = Lines()
    logger = logging.getLogger("aosp_plugin")
    rooms = [logging.getLogger(f"aosp_plugin.{room}") for room in ("framework", "backend", "binder")]
    logger.setLevel(logging.INFO)
    for room in rooms:
        room.addHandler(collected)
    yield collected
    logger.setLevel(logging.NOTSET)
    for room in rooms:
        room.removeHandler(collected)


@pytest.fixture(autouse=True)
def _no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep mounts that others make on this machine from causing looks."""
    monkeypatch.setattr(MountEvents, "subscribe", lambda _self, _callback: None)


def binder(nodes: Nodes) -> Backend:
    """Return the binder backend over stand-in nodes."""
    of_nodes = Resource(resource_name=RESOURCE, device_dir=str(nodes.directory), verify=Verify.FILE)
    return BinderBackend(Host(), of_nodes, cdi_dir=Config().cdi_dir)


@contextlib.asynccontextmanager
async def observed(backend: Backend, kubelet_dir: str, timings: Timings = IN_LIFE) -> AsyncIterator[Observed]:
    """Run a plugin that is observed while the context lasts; what it raises is for whoever asks the task."""
    files, heartbeat = FileEvents(), Heartbeat()
    metrics = Metrics(Reason, polling=lambda: files.polling)
    plugin = DevicePlugin(
        backend,
        kubelet_dir=kubelet_dir,
        timings=timings,
        files=files,
        observer=metrics.observer(RESOURCE),
    )
    beating = asyncio.create_task(heartbeat.run())
    task = asyncio.create_task(plugin.run())
    try:
        yield Observed(plugin, metrics, files, heartbeat, task)
    finally:
        beating.cancel()
        plugin.stop()
        await asyncio.wait({task})
        files.close()


@pytest_asyncio.fixture
async def kubelet(kubelet_dir: str) -> AsyncIterator[Kubelet]:
    """Return a running kubelet."""
    async with Kubelet(kubelet_dir) as running:
        yield running


@contextlib.asynccontextmanager
async def stub(kubelet: Kubelet, resource: str = RESOURCE) -> AsyncIterator[DevicePluginAsyncStub]:
    """Talk to the plugin past the kubelet."""
    endpoint = [one.endpoint for one in kubelet.registrations if one.resource_name == resource][-1]
    path = os.path.join(kubelet.directory, endpoint)
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield DevicePluginStub(channel)


def allocate(*ids: str) -> pb.AllocateRequest:
    """Return a request for one container."""
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])


def calls(monkeypatch: pytest.MonkeyPatch, target: object, name: str) -> Callable[[int], Any]:
    """Count the calls of a method; return what waits until there were so many."""
    original, count, called = getattr(target, name), 0, asyncio.Event()

    def counted(*arguments: object) -> None:
        nonlocal count
        original(*arguments)
        count += 1
        called.set()

    async def reached(number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while count < number:
                called.clear()
                await called.wait()

    monkeypatch.setattr(target, name, counted)
    return reached


async def test_a_plugin_that_registers(nodes: Nodes, kubelet: Kubelet) -> None:
    """It has looked once, is registered, and its one stream was sent the devices; that was no update."""
    nodes.make(0, 1, 2)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 3)
        await ready(one.plugin)
        assert one.values("devices", "health") == {"healthy": 3}
        assert one.values("scans_total", "result") == {"ok": 1}
        assert one.value("aosp_plugin_scan_duration_seconds_count") == 1
        assert one.value("aosp_plugin_scan_duration_seconds_sum") > 0
        assert one.values("registrations_total", "result") == {"ok": 1}
        assert one.value("aosp_plugin_registered") == 1
        assert one.value("aosp_plugin_streams_open") == 1
        assert one.value("aosp_plugin_messages_sent_total") == 1
        assert one.value("aosp_plugin_message_bytes") == kubelet.resource(RESOURCE).last_message_size
        assert one.value("aosp_plugin_update_latency_seconds_count") == 0
        assert one.value("aosp_plugin_kubelet_restarts_total") == 0
        assert one.values("allocations_total", "code") == {}
        assert series(one.metrics)["aosp_plugin_polling", frozenset()] == 0
    assert one.value("aosp_plugin_registered") == 0
    assert one.value("aosp_plugin_streams_open") == 0
    assert one.values("registrations_total", "result") == {"ok": 1}


async def test_a_node_that_comes_and_goes(nodes: Nodes, kubelet: Kubelet) -> None:
    """Each change is a look, a message, and an update that took some time."""
    nodes.make(0, 1)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 2)
        nodes.make(2)
        await listed(kubelet, 3)
        assert one.values("devices", "health") == {"healthy": 3}
        assert one.value("aosp_plugin_update_latency_seconds_count") == 1
        took = one.value("aosp_plugin_update_latency_seconds_sum")
        assert took >= refresher.QUIET
        nodes.remove(0)
        await listed(kubelet, 2)
        assert one.values("devices", "reason") == {"": 2, "missing": 1}
        assert one.value("aosp_plugin_update_latency_seconds_count") == 2
        assert one.value("aosp_plugin_update_latency_seconds_sum") > took
        assert one.value("aosp_plugin_messages_sent_total") == 3
        assert one.values("scans_total", "result") == {"ok": 3}


async def test_allocations_that_are_met_and_refused(nodes: Nodes, kubelet: Kubelet, lines: Lines) -> None:
    """Each counts by its code, and what is refused is logged with the device."""
    nodes.make(0, 1)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 2)
        await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 1})]))
        nodes.remove(1)
        await listed(kubelet, 1)
        lines.take()
        async with stub(kubelet) as plugin:
            for request in (allocate("aosp_binder9"), allocate("aosp_binder0", "aosp_binder1"), pb.AllocateRequest()):
                with pytest.raises(grpc.aio.AioRpcError):
                    await plugin.Allocate(request)
        assert one.values("allocations_total", "code") == {
            "OK": 1,
            "NOT_FOUND": 1,
            "FAILED_PRECONDITION": 1,
            "INVALID_ARGUMENT": 1,
        }
        assert one.value("aosp_plugin_allocation_duration_seconds_count") == 4
        assert one.value("aosp_plugin_allocation_duration_seconds_sum") > 0
        refused = ("warning", "request refused", "Allocate")
        assert lines.take("rpc", "code", "device") == [
            (*refused, "NOT_FOUND", "aosp_binder9"),
            (*refused, "FAILED_PRECONDITION", "aosp_binder0,aosp_binder1"),
            (*refused, "INVALID_ARGUMENT", ""),
        ]


class Broken(ListedDevices):
    """A device whose host fails, or whose plugin has a fault."""

    def __init__(self, error: Exception) -> None:
        super().__init__(RESOURCE, lambda: ["/dev/a"], directories=())
        self._error = error

    def allocate(self, _ids: Sequence[str]) -> ContainerEdits:
        """Fail."""
        raise self._error

    def pre_start(self, _ids: Sequence[str]) -> None:
        """Fail."""
        raise self._error


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (BackendError("no room"), grpc.StatusCode.INTERNAL, "error"),
        (OSError(5, "no room"), grpc.StatusCode.INTERNAL, "error"),
        (KeyError("no room"), grpc.StatusCode.UNKNOWN, ""),
    ],
)
async def test_requests_that_fail(
    kubelet: Kubelet, lines: Lines, error: Exception, code: grpc.StatusCode, level: str
) -> None:
    """A host that fails is INTERNAL, and an error in the log; a fault of the plugin is UNKNOWN, and for gRPC to log."""
    async with observed(Broken(error), kubelet.directory) as one:
        await listed(kubelet, 1)
        await ready(one.plugin)
        lines.take()
        async with stub(kubelet) as plugin:
            with pytest.raises(grpc.aio.AioRpcError, match="no room") as raised:
                await plugin.Allocate(allocate("a"))
            assert raised.value.code() is code
            with pytest.raises(grpc.aio.AioRpcError, match="no room") as raised:
                await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["a"]))
            assert raised.value.code() is code
        assert one.values("allocations_total", "code") == {code.name: 1}
        assert one.values("recreations_total", "result") == {"failed": 1}
        told = [(level, "request failed", rpc, code.name, "a") for rpc in ("Allocate", "PreStartContainer") if level]
        assert lines.take("rpc", "code", "device") == told


async def test_each_request_is_logged_for_who_looks_for_it(
    nodes: Nodes, kubelet: Kubelet, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the level debug, with the device; the IDs that are free, which may be thousands, are not."""
    monkeypatch.setattr(lines, "level", logging.DEBUG)
    nodes.make(0, 1)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 2)
        await ready(one.plugin)
        logging.getLogger("aosp_plugin").setLevel(logging.DEBUG)
        lines.take()
        await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 1})]))
        async with stub(kubelet) as plugin:
            await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["aosp_binder0"]))
        answered = ("debug", "request answered")
        assert lines.take("rpc", "code", "device") == [
            (*answered, "GetPreferredAllocation", "OK", ""),
            (*answered, "Allocate", "OK", "aosp_binder0"),
            (*answered, "PreStartContainer", "OK", "aosp_binder0"),
        ]
        assert one.values("recreations_total", "result") == {"ok": 1}
        nodes.make(2)
        await listed(kubelet, 3)
        assert ("debug", "devices sent", 2) in lines.take("revision")


async def test_a_kubelet_that_restarts(nodes: Nodes, kubelet: Kubelet) -> None:
    """It counts once, and so does each registration with it; the list that it is sent was no update."""
    nodes.make(0, 1)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 2)
        await ready(one.plugin)
        for restarts in (1, 2):
            await kubelet.restart()
            await listed(kubelet, 2)
            await ready(one.plugin)
            assert one.value("aosp_plugin_kubelet_restarts_total") == restarts
            assert one.value("aosp_plugin_registrations_total", result="ok") == restarts + 1
            assert one.value("aosp_plugin_registered") == 1
            assert one.value("aosp_plugin_streams_open") == 1
        assert one.value("aosp_plugin_update_latency_seconds_count") == 0


async def test_a_registration_that_fails_for_a_while(nodes: Nodes, kubelet: Kubelet) -> None:
    """Each attempt counts, by how it came out."""
    kubelet.faults.refuse_register = "not today"
    async with observed(binder(nodes), kubelet.directory) as one:
        await kubelet.wait_for(lambda k: len(k.registrations) >= 3)
        assert one.value("aosp_plugin_registered") == 0
        kubelet.faults.refuse_register = None
        await ready(one.plugin)
        failed = len(kubelet.registrations) - 1
        assert one.values("registrations_total", "result") == {"ok": 1, "failed": failed}
        assert one.value("aosp_plugin_registered") == 1


async def test_a_kubelet_that_does_not_listen(nodes: Nodes, kubelet: Kubelet) -> None:
    """An attempt after which nobody asks for the devices has failed."""
    kubelet.faults.never_open_stream = True
    async with observed(binder(nodes), kubelet.directory, FAST) as one:
        await until(lambda: "did not ask for its devices" in one.plugin.unready)
        assert one.values("registrations_total", "result") == {"failed": 1}
        assert one.value("aosp_plugin_messages_sent_total") == 0
        kubelet.faults.never_open_stream = False
        await ready(one.plugin)
        assert one.values("registrations_total", "result") == {"ok": 1, "failed": 1}


async def test_a_change_while_there_is_no_kubelet_is_no_update(nodes: Nodes, kubelet_dir: str) -> None:
    """What a kubelet that comes is told first was not late."""
    async with observed(binder(nodes), kubelet_dir) as one:
        await until(lambda: "waiting for the kubelet" in one.plugin.unready)
        nodes.make(0)
        await until(lambda: one.values("devices", "health") == {"healthy": 1})
        async with Kubelet(kubelet_dir) as kubelet:
            await listed(kubelet, 1)
            assert one.value("aosp_plugin_messages_sent_total") == 1
            assert one.value("aosp_plugin_update_latency_seconds_count") == 0


async def test_an_attempt_that_is_given_up_has_not_failed(nodes: Nodes, kubelet: Kubelet) -> None:
    """The plugin was told to stop before the kubelet has answered."""
    kubelet.faults.hang_register = True
    async with observed(binder(nodes), kubelet.directory) as one:
        await kubelet.wait_for(lambda k: len(k.registrations) == 1)
    assert one.values("registrations_total", "result") == {}


async def test_a_lost_stream_is_told_before_its_server_has_stopped(
    nodes: Nodes, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that are under way may keep the server for a second, in which /readyz must not be well."""
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 0)
        await ready(one.plugin)
        own = os.path.join(kubelet.directory, kubelet.registrations[-1].endpoint)
        served: list[bool] = []
        observer = one.plugin._supervisor._observer
        monkeypatch.setattr(observer, "unregistered", lambda: served.append(os.path.exists(own)))
        await kubelet.drop_streams()
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        assert served == [True]


async def test_a_kubelet_that_refuses_for_good(nodes: Nodes, kubelet: Kubelet) -> None:
    """That is counted as well, for whoever looks before the process ends."""
    kubelet.faults.refuse_register = f'the ResourceName "{RESOURCE}" is invalid'
    async with observed(binder(nodes), kubelet.directory) as one:
        with pytest.raises(RegistrationRefusedError):
            await one.task
        assert one.values("registrations_total", "result") == {"refused": 1}


async def test_a_look_that_fails_and_recovers(nodes: Nodes, kubelet: Kubelet, lines: Lines) -> None:
    """While it fails the process is unhealthy and its devices are as they were; the log tells the begin and the end."""
    nodes.make(0)
    elsewhere = nodes.directory.with_name("elsewhere")
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 1)
        await ready(one.plugin)
        lines.take()
        nodes.directory.rename(elsewhere)
        nodes.directory.symlink_to(nodes.directory)  # a link that leads to itself can't be listed
        one.plugin.rescan()
        await until(lambda: one.plugin.unhealthy != "")
        healthy, unready = await one.probes()
        assert healthy.startswith("device scan failed: [Errno 40]")
        assert unready == ""
        failed = one.value("aosp_plugin_scans_total", result="failed")
        assert failed >= 1
        assert one.values("devices", "health") == {"healthy": 1}
        nodes.directory.unlink()
        elsewhere.rename(nodes.directory)
        one.plugin.rescan()
        await until(lambda: one.plugin.unhealthy == "")
        assert await one.probes() == ("", "")
        assert one.value("aosp_plugin_scans_total", result="ok") >= 2
        told = [line for line in lines.take() if "device scan" in line[1]]
        assert told == [("error", "device scan failed, retrying"), ("info", "device scan recovered")]


async def test_an_update_that_a_failing_look_held_up(
    kubelet: Kubelet, tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured from the event that the failing look was for, though what succeeded came without one; and once."""
    directory = tmp_path / "dev"
    directory.mkdir()
    broken: list[OSError] = []
    further: list[str] = []

    def list_devices() -> list[str]:
        for error in broken:
            raise error
        return sorted(f"/dev/{path.name}" for path in directory.iterdir()) + further

    async with observed(ListedDevices(RESOURCE, list_devices, directories=[str(directory)]), kubelet.directory) as one:
        await listed(kubelet, 0)
        await ready(one.plugin)
        looks = calls(monkeypatch, one.plugin._refresher._observer, "scanned")
        monkeypatch.setattr(refresher, "RETRY_INTERVAL", 3600.0)
        lines.take()
        broken.append(OSError(5, "gone"))
        (directory / "a").touch()
        await looks(1)
        one.plugin.rescan()
        await looks(2)
        assert lines.take("error") == [("error", "device scan failed, retrying", "[Errno 5] gone")]
        broken.clear()
        one.plugin.rescan()
        await listed(kubelet, 1)
        assert one.value("aosp_plugin_update_latency_seconds_count") == 1
        assert one.values("scans_total", "result") == {"ok": 2, "failed": 2}
        further.append("/dev/b")
        one.plugin.rescan()
        await listed(kubelet, 2)
        assert one.value("aosp_plugin_update_latency_seconds_count") == 1


async def test_without_inotify_nodes_are_found_and_no_latency_is_known(
    nodes: Nodes, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That directories are polled is shown, and nobody knows when a node came."""
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.POLL_INTERVAL", 0.05)
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.FileEvents.inotify", lambda _: None)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 0)
        nodes.make(0)
        await listed(kubelet, 1)
        assert series(one.metrics)["aosp_plugin_polling", frozenset()] == 1
        assert one.value("aosp_plugin_update_latency_seconds_count") == 0
        assert one.value("aosp_plugin_messages_sent_total") == 2


async def test_a_directory_that_inotify_refuses_is_polled_until_it_does_not(tmp_path: Path) -> None:
    """One of several is enough; a directory that is not there yet is no fault of inotify's."""
    files = FileEvents()
    subscription, other = files.subscribe(), files.subscribe()
    other.watch([str(tmp_path)])
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    subscription.watch([str(tmp_path), str(loop)])
    before = files.polling
    loop.unlink()
    subscription.watch([str(tmp_path), str(loop)])
    assert (before, files.polling) == (True, False)
    files.close()


async def test_the_first_change_is_told_once(tmp_path: Path) -> None:
    """That of a burst's first event, however many follow until somebody asks."""
    files = FileEvents()
    subscription = files.subscribe()
    subscription.watch([str(tmp_path)])
    assert subscription.first_change() is None
    started = time.monotonic()
    (tmp_path / "a").touch()
    await subscription.changed.wait()
    subscription.changed.clear()
    between = time.monotonic()
    (tmp_path / "b").touch()
    await subscription.changed.wait()
    first = subscription.first_change()
    assert first is not None
    assert started <= first <= between
    assert subscription.first_change() is None
    files.close()


async def test_a_kubelet_that_is_stopped(
    nodes: Nodes, kubelet: Kubelet, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/readyz says that registering fails, /healthz is well, metrics count each try, and the log says it once."""
    nodes.make(0)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 1)
        await ready(one.plugin)
        attempts = calls(monkeypatch, one.plugin._supervisor._observer, "registration")
        lines.take()
        await kubelet.stop()
        await attempts(3)
        healthy, unready = await one.probes()
        assert healthy == ""
        assert unready.startswith("registration failed and is tried again: UNAVAILABLE: ")
        assert one.value("aosp_plugin_registrations_total", result="failed") >= 3
        assert one.value("aosp_plugin_registrations_total", result="ok") == 1
        assert one.value("aosp_plugin_registered") == 0
        assert one.value("aosp_plugin_streams_open") == 0
        assert one.values("devices", "health") == {"healthy": 1}
        assert lines.take("reason") == [
            ("warning", "registering again", "the kubelet's stream ended"),
            ("warning", "registration failed and is tried again"),
        ]
        await kubelet.start()
        await listed(kubelet, 1)
        await ready(one.plugin)
        assert await one.probes() == ("", "")
        assert one.value("aosp_plugin_registered") == 1
        assert one.value("aosp_plugin_kubelet_restarts_total") == 1
        assert lines.take()[-1] == ("info", "registered")


async def test_a_look_that_hangs(kubelet: Kubelet, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """/healthz says so, /readyz is well as the kubelet knows the devices, and the log has an error, once."""
    go_on = threading.Event()
    go_on.set()

    def list_devices() -> list[str]:
        go_on.wait()
        return ["/dev/a"]

    async with observed(ListedDevices(RESOURCE, list_devices, directories=()), kubelet.directory) as one:
        await listed(kubelet, 1)
        await ready(one.plugin)
        lines.take()
        monkeypatch.setattr(refresher, "HUNG_AFTER", 0.0)
        go_on.clear()
        one.plugin.rescan()
        await until(lambda: one.plugin.unhealthy != "")
        healthy, unready = await one.probes()
        assert healthy.startswith("device scan has been hanging for ")
        assert unready == ""
        assert one.values("scans_total", "result") == {"ok": 1, "hung": 1}
        assert one.value("aosp_plugin_scan_duration_seconds_count") == 1
        assert one.value("aosp_plugin_registered") == 1
        ((level, message, duration),) = lines.take("duration_ms")
        assert (level, message) == ("error", "device scan is hanging")
        assert float(duration) >= 0
        go_on.set()
        await until(lambda: one.plugin.unhealthy == "")
        assert await one.probes() == ("", "")
        assert one.values("scans_total", "result") == {"ok": 2, "hung": 1}
        assert one.value("aosp_plugin_scan_duration_seconds_count") == 2
        assert lines.take() == [("info", "device scan is no longer hanging")]


async def test_a_first_look_that_hangs(kubelet: Kubelet, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the process that follows one that was ended for it: /healthz fails again, and nothing is registered."""
    monkeypatch.setattr(refresher, "HUNG_AFTER", 0.0)
    go_on = threading.Event()

    def list_devices() -> list[str]:
        go_on.wait()
        return ["/dev/a"]

    async with observed(ListedDevices(RESOURCE, list_devices, directories=()), kubelet.directory) as one:
        await until(lambda: one.plugin.unhealthy != "")
        healthy, unready = await one.probes()
        assert healthy.startswith("device scan has been hanging for ")
        assert unready == "not registered yet"
        assert one.values("scans_total", "result") == {"hung": 1}
        assert one.value("aosp_plugin_registered") == 0
        assert lines.take() == [("error", "device scan is hanging")]
        go_on.set()
        await listed(kubelet, 1)
        await ready(one.plugin)
        assert await one.probes() == ("", "")


async def test_a_stream_that_is_lost(nodes: Nodes, kubelet: Kubelet, lines: Lines) -> None:
    """/readyz says so from that moment until there is another one; /healthz is well; no kubelet has restarted."""
    nodes.make(0)
    async with observed(binder(nodes), kubelet.directory) as one:
        await listed(kubelet, 1)
        await ready(one.plugin)
        lines.take()
        kubelet.faults.hang_register = True
        await kubelet.drop_streams()
        await until(lambda: one.plugin.unready != "")
        assert await one.probes() == ("", "registering again: the kubelet's stream ended")
        assert one.value("aosp_plugin_registered") == 0
        assert one.value("aosp_plugin_streams_open") == 0
        assert lines.take("reason") == [("warning", "registering again", "the kubelet's stream ended")]
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        assert await one.probes() == ("", "registering again: the kubelet's stream ended")
        kubelet.faults.release_register()
        await ready(one.plugin)
        assert await one.probes() == ("", "")
        assert one.value("aosp_plugin_registered") == 1
        assert one.value("aosp_plugin_streams_open") == 1
        assert one.values("registrations_total", "result") == {"ok": 2}
        assert one.value("aosp_plugin_kubelet_restarts_total") == 0
        assert lines.take() == [("info", "registered")]


async def test_nothing_but_events_is_written(nodes: Nodes, kubelet: Kubelet) -> None:
    """Each line of a process is an object, also where a connection breaks of which gRPC's C core would tell itself."""
    nodes.make(0)
    async with Serve(nodes, kubelet.directory, "--log-format", "json") as serve:
        await listed(kubelet, 1)
        for _ in range(3):
            kubelet.faults.hang_register = True
            count = len(kubelet.registrations)
            await kubelet.restart()
            await kubelet.wait_for(lambda k, count=count: len(k.registrations) > count)  # type: ignore[misc]
            await kubelet.restart()
            kubelet.faults.release_register()
            await listed(kubelet, 1)
        serve.process.terminate()
        assert await serve.finish() == 0
    events = [json.loads(line) for line in "".join(serve.log).splitlines()]
    of_all = {event["message"] for event in events if "resource" not in event}
    assert of_all == {"starting", "stopped"}
    assert {event["resource"] for event in events if "resource" in event} == {RESOURCE}
    assert {event["resources"] for event in events if "resources" in event} == {RESOURCE}


async def test_the_lines_of_two_resources_are_told_apart(
    nodes: Nodes, kubelet: Kubelet, lines: Lines, tmp_path: Path
) -> None:
    """Whatever happens in one process, each line says of which of them it is: of looks, of streams, of requests."""
    nodes.make(0)
    others = Nodes(tmp_path / "others")
    others.make(0, 1)
    names = ("aosp.io/a", "aosp.io/b")
    plugins = [
        make_plugin(own, kubelet.directory, resource=name) for name, own in zip(names, (nodes, others), strict=True)
    ]
    running = [asyncio.create_task(plugin.run()) for plugin in plugins]
    for count, (name, plugin) in enumerate(zip(names, plugins, strict=True), 1):
        await listed(kubelet, count, name)
        await ready(plugin)
        async with stub(kubelet, name) as direct:
            with pytest.raises(grpc.aio.AioRpcError):
                await direct.Allocate(allocate("aosp_binder9"))
    for plugin in plugins:
        plugin.stop()
    await asyncio.gather(*running)
    for count, name in enumerate(names, 1):
        own = {event["message"]: event for event in lines.kept if event["resource"] == name}
        assert own.keys() >= {"devices changed", "registered", "request refused"}
        assert own["devices changed"]["devices"] == count
    assert {event["resource"] for event in lines.kept} == set(names)


async def answer(port: int, path: str) -> tuple[int, str]:
    """Ask the process for a path, and return status and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE)).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_a_process_tells_the_same_over_http(nodes: Nodes, kubelet: Kubelet) -> None:
    """Metrics and probes of ``serve``, with its kubelet and without."""
    port = free_port()
    nodes.make(0, 1)
    of_resource = f'{{resource="{RESOURCE}"}}'
    async with Serve(nodes, kubelet.directory, "--listen", f"127.0.0.1:{port}") as serve:
        await listed(kubelet, 2)
        await serve.logged("registered")
        assert await answer(port, "/healthz") == (200, "ok\n")
        assert await answer(port, "/readyz") == (200, "ok\n")
        status, text = await answer(port, "/metrics")
        assert status == 200
        assert f'aosp_plugin_devices{{health="healthy",reason="",resource="{RESOURCE}"}} 2.0' in text
        assert f"aosp_plugin_registered{of_resource} 1.0" in text
        assert f"aosp_plugin_streams_open{of_resource} 1.0" in text
        assert "\naosp_plugin_polling 0.0" in text
        assert "\nprocess_open_fds " in text
        await kubelet.stop()
        assert "registering again" in await serve.logged("WARNING")
        await serve.logged("registration failed and is tried again")
        assert await answer(port, "/healthz") == (200, "ok\n")
        status, text = await answer(port, "/readyz")
        assert status == 503
        assert text.startswith("registration failed and is tried again: UNAVAILABLE: ")
        _, text = await answer(port, "/metrics")
        assert f"aosp_plugin_registered{of_resource} 0.0" in text
        assert f"aosp_plugin_streams_open{of_resource} 0.0" in text
