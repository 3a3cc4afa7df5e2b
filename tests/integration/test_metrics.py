"""Metrics, probes and log lines of a running plugin, in normal operation and during failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.binder.devices.health import Reason, Verify
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.daemon.assembly import create_backends
from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.errors import AllocationError, BackendError, RegistrationRefusedError
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.observer import NULL_OBSERVER
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.service.metrics import Metrics
from kubelet_standin import AdmissionError, Container, Kubelet, Pod
from tests.support import (
    FAST,
    IN_LIFE,
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    Serve,
    listed,
    ready,
    run,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub
    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.devices import ContainerEdits
    from aosp_plugin.framework.timings import Timings

pytestmark = pytest.mark.usefixtures("no_mount_events")

WAITING, LOST = "waiting for kubelet", "connection to kubelet lost, re-registering"
REGISTRATION_FAILED = "registration failed, retrying"
SCAN_FAILED, SCAN_RECOVERED = "device scan failed, retrying", "device scan recovered"


class Observed(NamedTuple):
    """A running plugin and its metrics."""

    plugin: DevicePlugin
    metrics: Metrics
    task: asyncio.Task[None]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a series of the resource, without the common prefix of its name."""
        return series(self.metrics)[f"aosp_plugin_{name}", frozenset({"resource": RESOURCE, **labels}.items())]

    def values(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric that are not 0, by a label."""
        return {
            dict(labels)[label]: value
            for (series_name, labels), value in series(self.metrics).items()
            if series_name == f"aosp_plugin_{name}" and value
        }

    def polling(self) -> float:
        """Return the value of the metric without labels."""
        return series(self.metrics)["aosp_plugin_polling", frozenset()]


def series(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the value of each series by name and labels, as Prometheus reads it."""
    _, text = metrics.exposition()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


class LogLines(logging.Handler):
    """Collects log lines in JSON format."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(logs.add_resource)
        self.setFormatter(logs.JsonFormatter())
        self.entries: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line."""
        self.entries.append(json.loads(self.format(record)))

    def take(self, *keys: str) -> list[tuple[Any, ...]]:
        """Return level, message and ``keys`` of the lines since the last call. All must name the resource."""
        entries, self.entries = self.entries, []
        assert {entry["resource"] for entry in entries} <= {RESOURCE}
        return [(entry["level"], entry["message"], *(entry[key] for key in keys if key in entry)) for entry in entries]


@pytest.fixture
def log() -> Iterator[LogLines]:
    """Return the log lines of the plugin."""
    lines = LogLines()
    logger = logging.getLogger("aosp_plugin")
    packages = [logging.getLogger(f"aosp_plugin.{name}") for name in ("framework", "backend", "binder")]
    logger.setLevel(logging.INFO)
    for package in packages:
        package.addHandler(lines)
    yield lines
    logger.setLevel(logging.NOTSET)
    for package in packages:
        package.removeHandler(lines)


def binder(devices: DeviceDirectory) -> Backend:
    """Return the binder backend of a device directory."""
    resource = Resource(resource_name=RESOURCE, device_dir=str(devices.directory), verify=Verify.FILE)
    return create_backends(Config(resources=(resource,)))[RESOURCE]


@contextlib.asynccontextmanager
async def observed(backend: Backend, kubelet_dir: str, timings: Timings = IN_LIFE) -> AsyncIterator[Observed]:
    """Run a plugin with metrics. Its errors are in the task."""
    files = FileEvents(timings)
    metrics = Metrics(reasons=tuple(Reason), polling=lambda: files.polling)
    plugin = DevicePlugin(
        backend, kubelet_dir=kubelet_dir, timings=timings, files=files, observer=metrics.observer(RESOURCE)
    )
    task = asyncio.create_task(plugin.run())
    try:
        yield Observed(plugin, metrics, task)
    finally:
        plugin.stop()
        await asyncio.wait({task})
        files.close()


@contextlib.asynccontextmanager
async def registered(
    backend: Backend, kubelet: Kubelet, count: int, log: LogLines | None = None, timings: Timings = IN_LIFE
) -> AsyncIterator[Observed]:
    """Run a plugin, from when the kubelet has ``count`` devices of it. Earlier log lines are dropped."""
    async with observed(backend, kubelet.directory, timings) as observer:
        await listed(kubelet, count)
        await ready(observer.plugin)
        if log:
            log.take()
        yield observer


@pytest_asyncio.fixture
async def kubelet(kubelet_dir: str) -> AsyncIterator[Kubelet]:
    async with Kubelet(kubelet_dir) as running:
        yield running


@contextlib.asynccontextmanager
async def stub(kubelet: Kubelet, resource: str = RESOURCE) -> AsyncIterator[DevicePluginAsyncStub]:
    """Connect to the plugin directly."""
    endpoints = [each.endpoint for each in kubelet.registrations if each.resource_name == resource]
    async with grpc.aio.insecure_channel(f"unix:{os.path.join(kubelet.directory, endpoints[-1])}") as channel:
        yield DevicePluginStub(channel)


def allocate(*ids: str) -> pb.AllocateRequest:
    """Return a request for one container."""
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])


def count_calls(monkeypatch: pytest.MonkeyPatch, target: object, name: str) -> Callable[[int], Any]:
    """Count the calls of a method. Return a function that waits for a number of calls."""
    original, count, called = getattr(target, name), 0, asyncio.Event()

    def counting(*arguments: object) -> None:
        nonlocal count
        original(*arguments)
        count += 1
        called.set()

    async def reached(number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while count < number:
                called.clear()
                await called.wait()

    monkeypatch.setattr(target, name, counting)
    return reached


# -- normal operation


async def test_metrics_of_a_registered_plugin(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    """The first list is not an update. After the end, the plugin is not registered."""
    device_directory.add(0, 1, 2)
    async with registered(binder(device_directory), kubelet, 3) as observer:
        assert observer.values("devices", "health") == {"healthy": 3}
        assert observer.values("scans_total", "result") == {"ok": 1}
        assert observer.value("scan_duration_seconds_count") == 1
        assert observer.value("scan_duration_seconds_sum") > 0
        assert observer.values("registrations_total", "result") == {"ok": 1}
        assert observer.value("registered") == 1
        assert observer.value("streams_open") == 1
        assert observer.value("messages_sent_total") == 1
        assert observer.value("message_bytes") == kubelet.resource(RESOURCE).last_message_size
        assert observer.value("update_latency_seconds_count") == 0
        assert observer.value("kubelet_restarts_total") == 0
        assert observer.values("allocations_total", "code") == {}
        assert observer.polling() == 0
    assert observer.value("registered") == 0
    assert observer.value("streams_open") == 0
    assert observer.values("registrations_total", "result") == {"ok": 1}


async def test_each_device_change_is_a_scan_a_message_and_an_update(
    device_directory: DeviceDirectory, kubelet: Kubelet
) -> None:
    device_directory.add(0, 1)
    async with observed(binder(device_directory), kubelet.directory) as observer:
        await listed(kubelet, 2)
        device_directory.add(2)
        await listed(kubelet, 3)
        assert observer.values("devices", "health") == {"healthy": 3}
        assert observer.value("update_latency_seconds_count") == 1
        latency = observer.value("update_latency_seconds_sum")
        assert latency >= IN_LIFE.quiet
        device_directory.remove(0)
        await listed(kubelet, 2)
        assert observer.values("devices", "reason") == {"": 2, "missing": 1}
        assert observer.value("update_latency_seconds_count") == 2
        assert observer.value("update_latency_seconds_sum") > latency
        assert observer.value("messages_sent_total") == 3
        assert observer.values("scans_total", "result") == {"ok": 3}


@pytest.mark.usefixtures("no_inotify")
async def test_polling_is_reported_and_has_no_update_latency(
    device_directory: DeviceDirectory, kubelet: Kubelet
) -> None:
    """Without inotify the time of a change is unknown."""
    async with registered(binder(device_directory), kubelet, 0, timings=IN_LIFE._replace(poll=0.05)) as observer:
        device_directory.add(0)
        await listed(kubelet, 1)
        assert observer.polling() == 1
        assert observer.value("update_latency_seconds_count") == 0


async def test_directory_without_inotify_is_polled_until_it_has_one(tmp_path: Path) -> None:
    """One directory is enough for the metric. A missing directory does not count."""
    with contextlib.closing(FileEvents()) as files:
        subscription, other = files.subscribe(), files.subscribe()
        other.watch([str(tmp_path)])
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        subscription.watch([str(tmp_path), str(loop)])
        before = files.polling
        loop.unlink()
        subscription.watch([str(tmp_path), str(loop)])
        assert (before, files.polling) == (True, False)


async def test_first_change_is_the_time_of_the_first_event(tmp_path: Path) -> None:
    """It is reported once for any number of events."""
    with contextlib.closing(FileEvents()) as files:
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


# -- requests


async def test_refused_allocations_are_counted_and_logged(
    device_directory: DeviceDirectory, kubelet: Kubelet, log: LogLines
) -> None:
    device_directory.add(0, 1)
    async with observed(binder(device_directory), kubelet.directory) as observer:
        await listed(kubelet, 2)
        await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 1})]))
        device_directory.remove(1)
        await listed(kubelet, 1)
        log.take()
        async with stub(kubelet) as plugin:
            for request in (allocate("aosp_binder9"), allocate("aosp_binder0", "aosp_binder1"), pb.AllocateRequest()):
                with pytest.raises(grpc.aio.AioRpcError):
                    await plugin.Allocate(request)
        assert observer.values("allocations_total", "code") == {
            "OK": 1,
            "NOT_FOUND": 1,
            "FAILED_PRECONDITION": 1,
            "INVALID_ARGUMENT": 1,
        }
        assert observer.value("allocation_duration_seconds_count") == 4
        assert observer.value("allocation_duration_seconds_sum") > 0
        refused = ("warning", "request refused", "Allocate")
        assert log.take("rpc", "code", "device") == [
            (*refused, "NOT_FOUND", "aosp_binder9"),
            (*refused, "FAILED_PRECONDITION", "aosp_binder0,aosp_binder1"),
            (*refused, "INVALID_ARGUMENT", ""),
        ]


class FailingDevices(ListedDevices):
    """A device whose requests raise an error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(RESOURCE, lambda: ["/dev/a"])
        self._error = error

    def allocate(self, _ids: Sequence[str]) -> Any:
        """Raise the error."""
        raise self._error

    def pre_start(self, _ids: Sequence[str]) -> None:
        """Raise the error."""
        raise self._error


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (BackendError("no room"), grpc.StatusCode.INTERNAL, "error"),
        (OSError(5, "no room"), grpc.StatusCode.INTERNAL, "error"),
        (BackendError("no room \udcff"), grpc.StatusCode.INTERNAL, "error"),
        (KeyError("no room"), grpc.StatusCode.UNKNOWN, ""),
        (ValueError("no room \udcff"), grpc.StatusCode.UNKNOWN, ""),
        (StopIteration("no room"), grpc.StatusCode.UNKNOWN, ""),
        (SystemExit("no room"), grpc.StatusCode.UNKNOWN, ""),
    ],
)
async def test_failing_requests_are_counted_and_logged(
    kubelet: Kubelet,
    log: LogLines,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: grpc.StatusCode,
    level: str,
) -> None:
    """An error of the host is INTERNAL. A bug of the plugin is UNKNOWN, and gRPC logs it.

    Each is answered, even one whose text is not UTF-8, or that Python replaces in a coroutine: the kubelet sets no
    deadline for Allocate.
    """
    # pytest-xdist cannot send a captured line whose text is not UTF-8.
    monkeypatch.setattr(logging.getLogger("grpc._cython.cygrpc"), "propagate", False)
    async with registered(FailingDevices(error), kubelet, 1, log) as observer:
        async with stub(kubelet) as plugin:
            with pytest.raises(grpc.aio.AioRpcError, match=r"no room|StopIteration") as raised:
                await plugin.Allocate(allocate("a"), timeout=PATIENCE)
            assert raised.value.code() is code
            with pytest.raises(grpc.aio.AioRpcError, match=r"no room|StopIteration") as raised:
                await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["a"]), timeout=PATIENCE)
            assert raised.value.code() is code
        assert observer.values("allocations_total", "code") == {code.name: 1}
        assert observer.values("recreations_total", "result") == {"failed": 1}
        rpcs = ("Allocate", "PreStartContainer") if level else ()
        assert log.take("rpc", "code", "device") == [(level, "request failed", rpc, code.name, "a") for rpc in rpcs]


# -- registration


@pytest.mark.parametrize(("fault", "value"), [("refuse_register", "not today"), ("never_open_stream", True)])
async def test_each_failed_registration_is_counted(
    device_directory: DeviceDirectory, kubelet: Kubelet, fault: str, value: object
) -> None:
    """A registration without a stream has failed, too."""
    setattr(kubelet.faults, fault, value)
    async with observed(binder(device_directory), kubelet.directory, FAST) as observer:
        await until(lambda: observer.values("registrations_total", "result").get("failed", 0) >= 1)
        assert observer.value("registered") == 0
        assert observer.value("messages_sent_total") == 0
        setattr(kubelet.faults, fault, None)
        await ready(observer.plugin)
        failed = len(kubelet.registrations) - 1
        assert observer.values("registrations_total", "result") == {"ok": 1, "failed": failed}
        assert observer.value("registered") == 1


async def test_refused_registration_is_counted_and_a_cancelled_one_is_not(
    device_directory: DeviceDirectory, kubelet: Kubelet
) -> None:
    """A registration is cancelled if the plugin stops before the kubelet answers."""
    kubelet.faults.hang_register = True
    async with observed(binder(device_directory), kubelet.directory) as observer:
        await kubelet.wait_for(lambda k: len(k.registrations) == 1)
    assert observer.values("registrations_total", "result") == {}
    kubelet.faults.release_register()
    kubelet.faults.refuse_register = f'the ResourceName "{RESOURCE}" is invalid'
    async with observed(binder(device_directory), kubelet.directory) as observer:
        with pytest.raises(RegistrationRefusedError):
            await observer.task
        assert observer.values("registrations_total", "result") == {"refused": 1}


async def test_stopped_kubelet_makes_the_plugin_unready(
    device_directory: DeviceDirectory, kubelet: Kubelet, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is counted, and the failure is logged once."""
    device_directory.add(0)
    async with registered(binder(device_directory), kubelet, 1) as observer:
        attempts = count_calls(monkeypatch, observer.plugin._registration._observer, "registration")
        log.take()
        await kubelet.stop()
        await attempts(3)
        unready = observer.plugin.unready
        assert unready.startswith(f"{REGISTRATION_FAILED}: UNAVAILABLE: ")
        assert observer.value("registrations_total", result="failed") >= 3
        assert observer.value("registrations_total", result="ok") == 1
        assert observer.value("registered") == 0
        assert observer.value("streams_open") == 0
        assert observer.values("devices", "health") == {"healthy": 1}
        assert [entry[:2] for entry in log.take()] == [("warning", LOST), ("warning", REGISTRATION_FAILED)]
        await kubelet.start()
        await listed(kubelet, 1)
        await ready(observer.plugin)
        assert observer.plugin.unready == ""
        assert observer.value("registered") == 1
        assert observer.value("streams_open") == 1
        assert observer.value("kubelet_restarts_total") == 1
        assert observer.value("update_latency_seconds_count") == 0
        assert log.take()[-1] == ("info", "registered")


async def test_lost_stream_makes_the_plugin_unready_until_the_next_one(
    device_directory: DeviceDirectory, kubelet: Kubelet, log: LogLines
) -> None:
    """It is not a kubelet restart."""
    device_directory.add(0)
    async with registered(binder(device_directory), kubelet, 1, log) as observer:
        kubelet.faults.hang_register = True
        await kubelet.drop_streams()
        await until(lambda: observer.plugin.unready != "")
        unready = observer.plugin.unready
        assert unready.partition(":")[0] == LOST
        assert observer.value("registered") == 0
        assert observer.value("streams_open") == 0
        assert [entry[:2] for entry in log.take()] == [("warning", LOST)]
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        assert observer.plugin.unready == unready
        kubelet.faults.release_register()
        await ready(observer.plugin)
        assert observer.plugin.unready == ""
        assert observer.value("registered") == 1
        assert observer.value("streams_open") == 1
        assert observer.values("registrations_total", "result") == {"ok": 2}
        assert observer.value("kubelet_restarts_total") == 0
        assert log.take() == [("info", "registered")]


async def test_lost_stream_is_reported_before_the_old_server_stops(
    device_directory: DeviceDirectory, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests in progress may delay the stop by a second, in which /readyz must fail."""
    async with registered(binder(device_directory), kubelet, 0) as observer:
        old_socket = os.path.join(kubelet.directory, kubelet.registrations[-1].endpoint)
        serving: list[bool] = []
        monkeypatch.setattr(
            observer.plugin._registration._observer,
            "unregistered",
            lambda: serving.append(os.path.exists(old_socket)),
        )
        await kubelet.drop_streams()
        await kubelet.wait_for(lambda k: len(k.registrations) == 2)
        assert serving == [True]


# -- scans


async def test_failing_scan_makes_the_plugin_unhealthy(
    kubelet: Kubelet, tmp_path: Path, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device list stays, and begin and end are logged once.

    The latency of the next update counts from the event before the failing scan, even if the successful scan had none.
    """
    directory = tmp_path / "dev"
    directory.mkdir()
    errors: list[OSError] = []

    def list_devices() -> list[str]:
        for error in errors:
            raise error
        return sorted(f"/dev/{path.name}" for path in directory.iterdir())

    (directory / "a").touch()
    backend = ListedDevices(RESOURCE, list_devices, directories=[str(directory)])
    async with registered(backend, kubelet, 1, log, IN_LIFE._replace(retry=3600.0)) as observer:
        scans = count_calls(monkeypatch, observer.plugin._scanned._observer, "scanned")
        errors.append(OSError(5, "gone"))
        (directory / "b").touch()
        await scans(1)
        observer.plugin.rescan()
        await scans(2)
        assert observer.plugin.unready == f"{SCAN_FAILED.partition(',')[0]}: [Errno 5] gone"
        assert observer.values("devices", "health") == {"healthy": 1}
        errors.clear()
        observer.plugin.rescan()
        await listed(kubelet, 2)
        await ready(observer.plugin)
        assert observer.value("update_latency_seconds_count") == 1
        assert observer.values("scans_total", "result") == {"ok": 2, "failed": 2}
        events = [entry for entry in log.take("error") if "device scan" in entry[1]]
        assert events == [("error", SCAN_FAILED, "[Errno 5] gone"), ("info", SCAN_RECOVERED)]
        observer.plugin.rescan()
        await scans(4)
        assert observer.value("update_latency_seconds_count") == 1


# -- processes and several resources


async def test_every_line_of_the_process_is_an_event(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    """Broken connections, of which gRPC would log details itself, do not change that."""
    device_directory.add(0)
    async with Serve(device_directory, kubelet.directory, "--log-format", "json") as serve:
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
    assert {event["message"] for event in events if "resource" not in event} == {"starting", "stopped"}
    assert {event["resource"] for event in events if "resource" in event} == {RESOURCE}
    assert {event["resources"] for event in events if "resources" in event} == {RESOURCE}


class ExhaustedError(AllocationError):
    """An error of a backend, with a code that no error of the framework has."""

    code = "RESOURCE_EXHAUSTED"


class Exhausted(ListedDevices):
    """A backend whose devices are used up."""

    def allocate(self, ids: Sequence[str]) -> ContainerEdits:
        """Refuse."""
        raise ExhaustedError(f"{ids[0]} has no memory left")


@pytest.mark.parametrize("with_metrics", [True, False])
async def test_code_of_a_backends_own_error_reaches_the_kubelet(kubelet: Kubelet, *, with_metrics: bool) -> None:
    """With metrics and without. It gets a series of its own."""
    metrics = Metrics()
    observer = metrics.observer(RESOURCE) if with_metrics else NULL_OBSERVER
    plugin = DevicePlugin(Exhausted(RESOURCE, lambda: ["/dev/a"]), kubelet_dir=kubelet.directory, observer=observer)
    async with run(plugin):
        await listed(kubelet, 1)
        with pytest.raises(AdmissionError, match="code = ResourceExhausted desc = a has no memory left"):
            await kubelet.admit(Pod("game", [Container("main", {RESOURCE: 1})]))
    if with_metrics:
        labels = {"resource": RESOURCE, "code": "RESOURCE_EXHAUSTED"}
        assert series(metrics)["aosp_plugin_allocations_total", frozenset(labels.items())] == 1
