"""The leak detector with real processes that hold devices open, and the kubelet's checkpoint."""

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.scanner import BinderDevice
from aosp_plugin.config.values import Api
from aosp_plugin.report import leaks
from aosp_plugin.report.leak_detector import CHECKPOINT, CLAIMS_CHECKPOINT, LeakDetector
from aosp_plugin.report.leaks import Leaks
from kubelet_standin.checkpoint import Checkpoint, CheckpointEntry, encode
from tests.backends import binder_backend
from tests.support import RESOURCE, DeviceDirectory

APPEARED, RELEASED = "leaked device: held open by a process outside its pod", "leaked device released"


@pytest.fixture
def devices(tmp_path: Path) -> DeviceDirectory:
    directory = DeviceDirectory(tmp_path / "dev")
    directory.add(0, 1, 2)
    return directory


@pytest.fixture
def detector(devices: DeviceDirectory, kubelet_dir: str) -> LeakDetector:
    """Return a detector of three devices with two replicas each."""
    backend = binder_backend(devices.directory, replicas=2)
    backend.scan()
    return LeakDetector({RESOURCE: backend}, kubelet_dir, 0.01)


@contextlib.asynccontextmanager
async def holding(path: Path) -> AsyncIterator[int]:
    """Run a process that holds a file open; yield its PID."""
    program = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(path)), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield process.pid
    finally:
        await process.communicate(b"")


def write_checkpoint(directory: str, data: bytes) -> None:
    Path(directory, CHECKPOINT).write_bytes(data)


def claims_checkpoint(pod: str) -> bytes:
    """Return the kubelet's checkpoint with a claim of a pod for aosp_binder1."""
    device = {"PoolName": "node/00000", "DeviceName": "aosp-binder1"}
    claim = {"PodUIDs": {pod: {}}, "DriverState": {"binder.aosp.io": {"Devices": [device]}}}
    return json.dumps({"Data": json.dumps({"ClaimInfoStateList": [claim]})}).encode()


async def test_leak_is_logged_when_it_appears_and_when_it_is_released(
    detector: LeakDetector, devices: DeviceDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is logged once, with the fields that identify the process."""
    caplog.set_level(logging.INFO)
    async with holding(devices.directory / "aosp_binder1") as pid:
        (holder,) = (await detector.scan())[RESOURCE].leaked
        assert (holder.pid, holder.binder_device) == (pid, "aosp_binder1")
        assert (await detector.scan())[RESOURCE].leaked == (holder,)
    for _ in range(2):
        assert (await detector.scan())[RESOURCE].leaked == ()
    records = [record for record in caplog.records if record.getMessage() in {APPEARED, RELEASED}]
    assert [record.getMessage() for record in records] == [APPEARED, RELEASED]
    expected = {"resource": RESOURCE, "device": "aosp_binder1", "pid": pid, "command": holder.command}
    assert [{name: vars(record)[name] for name in expected} for record in records] == [expected] * 2


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the owners that the detector passes to each scan."""
    passed: list[object] = []

    def scan(_devices: Iterable[BinderDevice], owners: Callable[[], object]) -> Leaks:
        passed.append(owners())
        return Leaks((), (), frozenset(), ())

    monkeypatch.setattr(leaks, "scan", scan)
    return passed


async def test_owners_of_a_binder_device_are_the_pods_of_all_its_replicas(
    detector: LeakDetector, kubelet_dir: str, owners: list[object]
) -> None:
    """They come from the kubelet's checkpoint; other resources are ignored."""
    entries = [
        CheckpointEntry("one", "main", RESOURCE, {-1: ["aosp_binder0::0"]}, b""),
        CheckpointEntry("two", "main", RESOURCE, {-1: ["aosp_binder0::1", "aosp_binder1::0"]}, b""),
        CheckpointEntry("three", "main", "example.com/other", {-1: ["aosp_binder2::0"]}, b""),
    ]
    write_checkpoint(kubelet_dir, encode(Checkpoint(entries)))
    await detector.scan()
    assert owners == [{"aosp_binder0": {"one", "two"}, "aosp_binder1": {"two"}, "aosp_binder2": frozenset()}]


@pytest.mark.parametrize("checkpoint", [None, b"{", b"{}"])
async def test_owners_are_unknown_without_a_valid_checkpoint(
    detector: LeakDetector, kubelet_dir: str, owners: list[object], checkpoint: bytes | None
) -> None:
    if checkpoint is not None:
        write_checkpoint(kubelet_dir, checkpoint)
    await detector.scan()
    assert owners == [None]


@pytest.mark.parametrize("api", list(Api))
async def test_owners_by_claim_count_as_well(
    api: Api, devices: DeviceDirectory, tmp_path: Path, owners: list[object]
) -> None:
    """After a change of the API, pods have devices by both. Unknown owners by the current one are unknown owners."""
    backend = binder_backend(devices.directory, api=api)
    backend.scan()
    plugins = tmp_path / "kubelet/device-plugins"
    plugins.mkdir(parents=True)
    detector = LeakDetector({RESOURCE: backend}, str(plugins), 0.01)
    by_claim = claims_checkpoint("two")
    by_plugin = encode(Checkpoint([CheckpointEntry("one", "main", RESOURCE, {-1: ["aosp_binder0"]}, b"")]))
    files = {plugins / CHECKPOINT: by_plugin, tmp_path / "kubelet" / CLAIMS_CHECKPOINT: by_claim}
    for path in files if api is Api.DRA else reversed(files):
        await detector.scan()
        path.write_bytes(files[path])
    await detector.scan()
    both = {"aosp_binder0": {"one"}, "aosp_binder1": {"two"}, "aosp_binder2": frozenset()}
    assert owners == [None, None, both]
