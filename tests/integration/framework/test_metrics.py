"""Metrics, probes and log lines of a running plugin, in normal operation and during failures."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices.health import Reason, Verify
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.daemon.assembly import create_backends
from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.errors import AllocationError, BackendError, PreStartTimeoutError
from aosp_plugin.framework.file_events import FileEvents
from aosp_plugin.framework.listed import FoundListed
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service import logs
from kubelet_standin import Kubelet
from tests.leaks import nothing_kept
from tests.support import (
    IN_LIFE,
    PATIENCE,
    RESOURCE,
    DeviceDirectory,
    connected,
    counted,
    listed,
    ready,
    run,
    unready,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginAsyncStub
    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.timing import Timings

pytestmark = pytest.mark.usefixtures("no_mount_events")

SCAN_FAILED, SCAN_RECOVERED = "device scan failed, retrying", "device scan recovered"


def nonzero(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """Return the values of a metric that are not 0, by a label."""
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    found = {each.labels[label]: each.value for each in samples if each.name == f"device_plugin_{name}"}
    return {value: number for value, number in found.items() if number}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Return the log, with the resource of each event."""
    caplog.set_level(logging.INFO, "aosp_plugin")
    caplog.handler.addFilter(logs.add_resource)
    yield caplog
    caplog.handler.removeFilter(logs.add_resource)


def taken(log: pytest.LogCaptureFixture, *keys: str) -> list[tuple[Any, ...]]:
    """Return level, message and ``keys`` of the plugin's events since the last call. All must name the resource."""
    events = [vars(record) for record in log.records if record.name.startswith("aosp_plugin.")]
    log.clear()
    assert {event["resource"] for event in events} <= {RESOURCE}
    return [
        (event["levelname"].lower(), event["message"], *(event[key] for key in keys if key in event))
        for event in events
    ]


def binder(devices: DeviceDirectory) -> BinderBackend:
    """Return the binder backend of a device directory."""
    resource = Resource(resource_name=RESOURCE, device_dir=str(devices.directory), verify=Verify.FILE)
    return create_backends(Config(resources=(resource,)))[RESOURCE]


@contextlib.asynccontextmanager
async def registered(
    backend: Backend[Any], kubelet: Kubelet, count: int, timings: Timings = IN_LIFE
) -> AsyncIterator[tuple[DevicePlugin, Metrics]]:
    """Run a plugin with metrics, from when the kubelet has ``count`` devices of it."""
    files = FileEvents(timings)
    metrics = Metrics(reasons=tuple(Reason), polling=lambda: files.polling)
    runtime = Runtime(metrics, files=files, timings=timings)
    with contextlib.closing(files):
        async with run(DevicePlugin(backend, kubelet_dir=kubelet.directory, runtime=runtime)) as plugin:
            await listed(kubelet, count)
            await ready(plugin)
            yield plugin, metrics


@contextlib.asynccontextmanager
async def stub(kubelet: Kubelet) -> AsyncIterator[DevicePluginAsyncStub]:
    """Connect to the plugin directly."""
    async with connected(kubelet) as channel:
        yield DevicePluginStub(channel)


# -- normal operation


async def test_metrics_of_a_registered_plugin(device_directory: DeviceDirectory, kubelet: Kubelet) -> None:
    """The first list is not an update. After the end, the plugin is not registered."""
    device_directory.add(0, 1, 2)
    once = IN_LIFE._replace(retry=3600.0)
    async with registered(binder(device_directory), kubelet, 3, timings=once) as (_, metrics):
        for name, label, values in (
            ("devices", "health", {"healthy": 3}),
            ("scans_total", "result", {"ok": 1}),
            ("registrations_total", "result", {"ok": 1}),
            ("allocations_total", "code", {}),
        ):
            assert nonzero(metrics, name, label) == values
        for name, value in {
            "scan_duration_seconds_count": 1,
            "registered": 1,
            "streams_open": 1,
            "messages_sent_total": 1,
            "message_bytes": kubelet.resource(RESOURCE).last_message_size,
            "update_latency_seconds_count": 0,
            "kubelet_restarts_total": 0,
            "polling": 0,
        }.items():
            assert counted(metrics, name) == value
        assert counted(metrics, "scan_duration_seconds_sum") > 0
    assert counted(metrics, "registered") == counted(metrics, "streams_open") == 0
    assert nonzero(metrics, "registrations_total", "result") == {"ok": 1}


# -- requests

METRICS = {"Allocate": "allocations_total", "PreStartContainer": "pre_starts_total"}
"""The metric that counts the requests of an RPC."""


async def answer(plugin: DevicePluginAsyncStub, rpc: str, *ids: str) -> tuple[grpc.StatusCode, str]:
    """Send a request for the devices of one container; return the code and the text of the answer."""
    call: Any
    if rpc == "Allocate":
        containers = [pb.ContainerAllocateRequest(devices_ids=ids)]
        call = plugin.Allocate(pb.AllocateRequest(container_requests=containers), timeout=PATIENCE)
    else:
        call = plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=ids), timeout=PATIENCE)
    return await call.code(), await call.details()


@pytest.mark.parametrize("rpc", METRICS)
async def test_refused_requests_are_counted_and_logged(
    device_directory: DeviceDirectory, kubelet: Kubelet, log: pytest.LogCaptureFixture, rpc: str
) -> None:
    """Whether a device is unknown, or closed to its own pod: the container does not start, which an alert tells."""
    device_directory.add(0, 1)
    async with registered(binder(device_directory), kubelet, 2) as (_, metrics), stub(kubelet) as plugin:
        device_directory.remove(1)
        await listed(kubelet, 1)
        await answer(plugin, rpc, "aosp_binder0")
        log.clear()
        for ids in (["aosp_binder9"], ["aosp_binder0", "aosp_binder1"], []):
            await answer(plugin, rpc, *ids)
        codes = ("NOT_FOUND", "FAILED_PRECONDITION", "INVALID_ARGUMENT")
        assert nonzero(metrics, METRICS[rpc], "code") == dict.fromkeys(("OK", *codes), 1)
        devices = ("aosp_binder9", "aosp_binder0,aosp_binder1", "")
        refused = [("warning", "request refused", rpc, *each) for each in zip(codes, devices, strict=True)]
        assert taken(log, "rpc", "code", "device") == refused
        durations = 4 if rpc == "Allocate" else 0
        assert counted(metrics, "allocation_duration_seconds_count") == durations
        assert (counted(metrics, "allocation_duration_seconds_sum") > 0) == bool(durations)


class FailingDevices(ListedDevices):
    """A device whose requests raise an error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(RESOURCE, lambda: ["/dev/a"])
        self._error = error

    def allocate(self, _found: FoundListed, _ids: Sequence[str]) -> Any:
        """Raise the error."""
        raise type(self._error)(*self._error.args)

    def pre_start(self, _found: FoundListed, _ids: Sequence[str]) -> None:
        """Raise the error."""
        raise type(self._error)(*self._error.args)


class ExhaustedError(AllocationError):
    """An error of a backend, with a code that no error of the framework has."""

    code = "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("error", "code", "level"),
    [
        (ExhaustedError("no room"), grpc.StatusCode.RESOURCE_EXHAUSTED, "warning"),
        (BackendError("no room"), grpc.StatusCode.INTERNAL, "error"),
        (OSError(5, "no room"), grpc.StatusCode.INTERNAL, "error"),
        (PreStartTimeoutError("no room"), grpc.StatusCode.DEADLINE_EXCEEDED, "error"),
        (BackendError("no room \udcff"), grpc.StatusCode.INTERNAL, "error"),
        (KeyError("no room"), grpc.StatusCode.UNKNOWN, ""),
        (ValueError("no room \udcff"), grpc.StatusCode.UNKNOWN, ""),
        (StopIteration("no room"), grpc.StatusCode.UNKNOWN, ""),
        (SystemExit("no room"), grpc.StatusCode.UNKNOWN, ""),
    ],
)
async def test_failing_requests_are_counted_and_logged(
    kubelet: Kubelet,
    log: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: grpc.StatusCode,
    level: str,
) -> None:
    """A refusal has its own code, an error of the host is INTERNAL. A bug of the plugin is UNKNOWN, and gRPC logs it.

    A host that hangs exceeds the deadline. Each is answered, even one whose text is not UTF-8, or that Python replaces
    in a coroutine: the kubelet sets no deadline for Allocate. Nothing is left of it.
    """
    # pytest-xdist cannot send a captured line whose text is not UTF-8.
    monkeypatch.setattr(logging.getLogger("grpc._cython.cygrpc"), "propagate", False)
    async with registered(FailingDevices(error), kubelet, 1) as (_, metrics):
        log.clear()
        async with stub(kubelet) as plugin, nothing_kept():
            for rpc, name in METRICS.items():
                found, text = await answer(plugin, rpc, "a")
                assert (found, "no room" in text or "StopIteration" in text) == (code, True)
                assert nonzero(metrics, name, "code") == {code.name: 1}
        event = "request failed" if level == "error" else "request refused"
        logged = [(level, event, rpc, code.name, "a") for rpc in METRICS] if level else []
        assert taken(log, "rpc", "code", "device") == logged


# -- scans


async def test_failing_scan_makes_the_plugin_unhealthy(
    kubelet: Kubelet, tmp_path: Path, log: pytest.LogCaptureFixture
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
    async with registered(backend, kubelet, 1, IN_LIFE._replace(retry=3600.0)) as (plugin, metrics):
        log.clear()

        async def scans(failed: int) -> None:
            await until(lambda: counted(metrics, "scans_total", result="failed") == failed)

        errors.append(OSError(5, "gone"))
        (directory / "b").touch()
        await scans(1)
        plugin.rescan()
        await scans(2)
        assert unready(plugin) == f"{SCAN_FAILED.partition(',')[0]}: [Errno 5] gone"
        assert nonzero(metrics, "devices", "health") == {"healthy": 1}
        errors.clear()
        plugin.rescan()
        await listed(kubelet, 2)
        await ready(plugin)
        assert counted(metrics, "update_latency_seconds_count") == 1
        assert nonzero(metrics, "scans_total", "result") == {"ok": 2, "failed": 2}
        events = [entry for entry in taken(log, "error") if "device scan" in entry[1]]
        assert events == [("error", SCAN_FAILED, "[Errno 5] gone"), ("info", SCAN_RECOVERED)]
        plugin.rescan()
        await until(lambda: counted(metrics, "scans_total", result="ok") == 3)
        assert counted(metrics, "update_latency_seconds_count") == 1
