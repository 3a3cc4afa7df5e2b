"""The feature file for Node Feature Discovery: its lines, when it is written, and what happens if it cannot be."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.timings import Backoff
from aosp_plugin.framework.worker import Worker
from aosp_plugin.report.node_features import Feature, FeatureFile, labels
from aosp_plugin.report.node_reporter import keep_observed, keep_written
from tests.backends import binder_backend, scan
from tests.support import Clock, DeviceDirectory

START = 1767323045.0  # 2026-01-02T03:04:05Z
SELINUX = "true" if "selinuxfs" in Path("/proc/filesystems").read_text() else "false"
"""Whether this machine has booted with it."""


def parsed(path: Path, now: float) -> dict[str, str]:
    """Return the labels that NFD's worker reads from a file at a time (source/local/local.go ``parseFeatureFile``)."""
    found, expires = {}, now
    for line in path.read_text().splitlines():
        if line.startswith("# +"):
            directive, _, value = line.removeprefix("# +").partition("=")
            assert directive == "expiry-time"
            expires = datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
        elif not line.startswith("#") and expires >= now:
            key, _, value = line.partition("=")
            found[key] = value
    return found


class Files:
    """The file, and what it is about."""

    def __init__(self, path: Path, devices: DeviceDirectory, clock: Clock) -> None:
        self.path = path
        self.devices = devices
        self.clock = clock
        self.problems: list[int] = []
        self.checked = asyncio.Event()
        self.backend = binder_backend(devices.directory)
        self.inventory = Inventory()
        server: Any = SimpleNamespace(resource_name="aosp.io/binder", inventory=self.inventory, driver=None)
        self.feature = Feature(server, self.backend)

    def scan(self) -> None:
        """Publish the devices as they are now."""
        scan(self.backend)
        self.inventory.publish(self.backend.devices())

    @contextlib.asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Keep the file current."""

        def changed(_task: str, count: int) -> None:
            self.problems.append(count)
            self.checked.set()

        with contextlib.closing(Worker("feature file")) as worker:
            file = FeatureFile(str(self.path), [self.feature], worker, clock=self.clock)
            backoff = Backoff(first=0.01, cap=0.02)
            work = keep_written("feature_file", file, changed, interval=0.01, backoff=backoff)
            async with background_task(keep_observed([file], 0.01)), background_task(work):
                yield

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds after an attempt to write."""
        async with asyncio.timeout(30):
            while not condition():
                self.checked.clear()
                await self.checked.wait()


@pytest.fixture
async def files(tmp_path: Path, device_directory: DeviceDirectory) -> AsyncIterator[Files]:
    """Yield a file that a task keeps current."""
    (tmp_path / "features.d").mkdir()
    files = Files(tmp_path / "features.d" / "aosp-device-plugin", device_directory, Clock(START))
    async with files.written():
        yield files


async def test_the_file_has_the_numbers_and_the_kind_of_the_devices(files: Files) -> None:
    files.devices.add(0, 1, 2)
    files.scan()
    await files.until(files.path.exists)
    labels = parsed(files.path, START)
    assert labels == {
        "aosp.io/binder.count": "3",
        "aosp.io/binder.healthy": "3",
        "aosp.io/binder.kind": "file",
        "aosp.io/binder.selinux": SELINUX,
    }
    assert os.stat(files.path).st_mode & 0o777 == 0o644
    files.devices.remove(1)
    files.scan()
    await files.until(lambda: parsed(files.path, START)["aosp.io/binder.healthy"] == "2")
    assert parsed(files.path, START)["aosp.io/binder.count"] == "3", "a missing device is listed for some time"
    assert os.listdir(files.path.parent) == [files.path.name]


async def test_the_file_is_not_written_before_the_first_scan_and_without_a_change(files: Files) -> None:
    files.devices.add(0)
    files.scan()
    await files.until(files.path.exists)
    written = os.stat(files.path)
    files.inventory.republish()
    await files.until(lambda: len(files.problems) >= 3)
    assert os.stat(files.path).st_ino == written.st_ino


async def test_the_file_expires_unless_the_plugin_renews_it(files: Files) -> None:
    files.devices.add(0)
    files.scan()
    await files.until(files.path.exists)
    assert parsed(files.path, START + 3600)
    assert not parsed(files.path, START + 3601)
    files.clock.now = START + 1201
    await files.until(lambda: parsed(files.path, START + 3601 + 1200))


async def test_a_directory_that_is_missing_is_logged_once_and_used_later(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files.path.parent.rmdir()
    files.devices.add(0)
    files.scan()
    await files.until(lambda: files.problems.count(1) >= 3)
    files.path.parent.mkdir()
    await files.until(lambda: files.problems[-1] == 0)
    events = [(record.message, getattr(record, "error", "")) for record in caplog.records]
    assert events == [
        ("node task failed, retrying", f"[Errno 2] No such file or directory: '{files.path}'"),
        ("feature file written", ""),
        ("node task recovered", ""),
    ]


def test_a_driver_whose_claims_have_no_phone_yet_is_named() -> None:
    devices = [SimpleNamespace(id="phone0", healthy=True)]
    snapshot: Any = SimpleNamespace(devices=devices, healthy=1)
    server: Any = SimpleNamespace(resource_name="aosp.io/phone", driver=object())
    backend: Any = SimpleNamespace(binder_devices=dict, driver="rust")
    lines = [
        "aosp.io/phone.count=1",
        "aosp.io/phone.healthy=1",
        "aosp.io/phone.kind=binderfs",
        "aosp.io/phone.driver=rust",
        f"aosp.io/phone.selinux={SELINUX}",
    ]
    assert labels(Feature(server, backend), snapshot) == lines
    server.driver = None
    assert labels(Feature(server, backend), snapshot) == [*lines[:2], *lines[3:]], "missing devices have no kind"
