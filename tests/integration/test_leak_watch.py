"""Leaks as the daemon looks for them: real processes that hold stand-in nodes open, and the kubelet's checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.backend import BinderBackend, Settings
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.daemon import leaks
from aosp_plugin.daemon.assembly import ResourceRuntime
from aosp_plugin.daemon.leak_detector import LeakDetector
from aosp_plugin.daemon.leaks import Holder, Leaks
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.events.file_events import FileEvents
from tests.support import RESOURCE, Nodes, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from aosp_plugin.binder.discovery.binder_device import BinderDevice

APPEARED, GONE = "a process holds a node of a pod that it is not in", "a process no longer holds a node"


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    made = Nodes(tmp_path / "dev")
    made.make(0, 1, 2)
    return made


@pytest.fixture
async def watch(nodes: Nodes, kubelet_dir: str) -> AsyncIterator[LeakDetector]:
    """Return what looks at nodes that are each given out twice."""
    settings = Settings(
        resource_name=RESOURCE, directory=str(nodes.directory), prefix="aosp_binder", verify=Verify.FILE, replicas=2
    )
    backend = BinderBackend(Host(), settings)
    backend.scan()
    with contextlib.closing(FileEvents()) as files:
        plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, files=files)
        yield LeakDetector([ResourceRuntime(RESOURCE, backend, plugin)], kubelet_dir, 0.01)


@contextlib.asynccontextmanager
async def holding(path: Path) -> AsyncIterator[int]:
    """Have a process that holds a file open; its pid."""
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


def write(kubelet_dir: str, checkpoint: str) -> None:
    Path(kubelet_dir, leaks.CHECKPOINT).write_text(checkpoint)


def told(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == message]


async def test_a_leak_is_told_when_it_appears_and_when_it_is_gone(
    watch: LeakDetector, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """Once each, with what finds the process."""
    caplog.set_level(logging.INFO)
    async with holding(nodes.directory / "aosp_binder1") as pid:
        for _ in range(2):
            (holder,) = (await watch.look())[RESOURCE].found
            assert (holder.pid, holder.node) == (pid, "aosp_binder1")
        (record,) = told(caplog, APPEARED)
        assert (vars(record)["pid"], vars(record)["device"]) == (pid, "aosp_binder1")
        assert not told(caplog, GONE)
    assert (await watch.look())[RESOURCE].found == ()
    assert len(told(caplog, GONE)) == 1


async def test_it_looks_at_every_interval_until_it_is_stopped(watch: LeakDetector, nodes: Nodes) -> None:
    """And what it saw last is there for who asks."""
    stop = asyncio.Event()
    assert watch.latest == {}
    async with holding(nodes.directory / "aosp_binder2"):
        task = asyncio.create_task(watch.run(stop))
        await until(lambda: bool(watch.latest and watch.latest[RESOURCE].found))
        stop.set()
        await task


async def test_an_interval_of_nothing_means_on_request_alone(nodes: Nodes, kubelet_dir: str) -> None:
    """The default: most plugins can't see the host's processes."""
    watch = LeakDetector([], kubelet_dir, 0)
    await watch.run(asyncio.Event())
    assert watch.latest == {}


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return what ``find`` was told of owners; it finds nothing."""
    seen: list[object] = []

    def find(_nodes: Iterable[BinderDevice], owners: Callable[[], object], proc: str = "/proc") -> Leaks:
        seen.append(owners())
        return Leaks((), (), 0, whole=True)

    monkeypatch.setattr(leaks, "find", find)
    return seen


async def test_a_node_s_owners_are_the_pods_that_have_any_of_its_replicas(
    watch: LeakDetector, kubelet_dir: str, owners: list[object]
) -> None:
    """By the kubelet's checkpoint, and of this resource alone."""
    entries = [
        {"PodUID": pod, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": {"-1": ids}}
        for pod, resource, ids in (
            ("one", RESOURCE, ["aosp_binder0::0"]),
            ("two", RESOURCE, ["aosp_binder0::1", "aosp_binder1::0"]),
            ("three", "example.com/other", ["aosp_binder2::0"]),
        )
    ]
    write(kubelet_dir, json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0}))
    await watch.look()
    assert owners == [{"aosp_binder0": {"one", "two"}, "aosp_binder1": {"two"}, "aosp_binder2": frozenset()}]


@pytest.mark.parametrize("checkpoint", [None, "{", "{}"])
async def test_without_a_checkpoint_owners_are_unknown_not_none(
    watch: LeakDetector, kubelet_dir: str, owners: list[object], checkpoint: str | None
) -> None:
    """A kubelet that has just been set up has none."""
    if checkpoint is not None:
        write(kubelet_dir, checkpoint)
    await watch.look()
    assert owners == [None]


async def test_that_processes_can_not_be_seen_is_told_when_it_changes(
    watch: LeakDetector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing found is no proof then, and an operator has to know."""
    rounds = [Leaks((), (), 0, whole=True), Leaks((), (), 3, whole=True), Leaks((), (), 3, whole=False)]
    for found, warnings in zip([*rounds, rounds[0], rounds[1]], [0, 1, 1, 1, 2], strict=True):
        monkeypatch.setattr(leaks, "find", lambda *_, found=found, **__: found)
        await watch.look()
        assert caplog.text.count("leaks may be overlooked") == warnings


def test_a_holder_says_all_that_the_log_tells() -> None:
    """The names of its parts are the log's keys but for the node, which is the device."""
    assert {"pid", "command", "container", "pod_uid", "node"} <= set(Holder._fields)
