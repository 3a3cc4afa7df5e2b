"""Binder devices on a file system that hangs: a real FUSE file system whose server stops to answer."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.discovery import store
from aosp_plugin.binder.driver import guard
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config import NamedSets, Provision, SharedDevice
from aosp_plugin.errors import BackendError, UnhealthyDeviceError, WorkerTimeoutError
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.device_list import DeviceList
from aosp_plugin.framework.edits import Mount
from kubelet_standin import AdmissionError, Container, Kubelet, Pod
from tests.backends import binder_backend, scan
from tests.support import IN_LIFE, RESOURCE, Clock, problem, ready, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.backend import BinderBackend
    from tests.hanging_fs import HangingFileSystem

TTL = 300.0
HEALTHY = {"aosp_binder1": "", "aosp_binder2": ""}
ONE_HANGS = {"aosp_binder1": "", "aosp_binder2": "scan-timeout"}


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GUARD_TIMEOUT", 2.0)
    monkeypatch.setattr(guard, "_given_up", {})  # a file system of another test may have had the same number


@pytest.fixture
def dev(tmp_path: Path, hanging_file_system: HangingFileSystem) -> Path:
    """Return the device directory: aosp_binder1 is in it, and aosp_binder2 is a link into the FUSE file system."""
    directory = tmp_path / "dev"
    directory.mkdir()
    (directory / "aosp_binder1").touch()
    (directory / "aosp_binder2").symlink_to(f"{hanging_file_system.directory}/b2")
    Path(f"{hanging_file_system.source}/b2").touch()
    return directory


def scan_changes(backend: BinderBackend, *paths: object) -> dict[str, str]:
    """Scan the files that changed and what is due, and return the reason of each device."""
    backend.scan(frozenset(map(str, paths)))
    return {device.id: device.reason for device in backend.devices()}


def test_only_the_devices_on_it_are_unhealthy_and_have_their_former_state_afterwards(
    dev: Path, hanging_file_system: HangingFileSystem, clock: Clock
) -> None:
    """However long the hang lasts, they are neither forgotten nor replaced. Requests are answered from memory."""
    backend = binder_backend(dev, clock=clock)
    assert scan(backend) == HEALTHY
    hanging_file_system.hang()
    assert len(backend.allocate(["aosp_binder1", "aosp_binder2"]).devices) == 2, "no call on the file system"
    assert scan_changes(backend, dev / "other") == ONE_HANGS
    with pytest.raises(UnhealthyDeviceError, match="'aosp_binder2' is unhealthy: scan-timeout"):
        backend.allocate(["aosp_binder2"])
    assert backend.allocate(["aosp_binder1"]).devices
    clock.now += 10 * TTL
    for changed in (None, frozenset[str]()):
        backend.scan(changed)
        assert {device.id: device.reason for device in backend.devices()} == ONE_HANGS
    assert [len(devices) for devices in backend.binder_devices().values()] == [1, 0]
    hanging_file_system.release()
    _join()
    assert scan_changes(backend) == HEALTHY


def test_start_during_the_hang_finds_the_other_devices(dev: Path, hanging_file_system: HangingFileSystem) -> None:
    hanging_file_system.hang()
    backend = binder_backend(dev)
    assert backend.directories() == {str(dev)}
    assert scan(backend) == ONE_HANGS
    hanging_file_system.release()
    _join()
    assert scan_changes(backend) == HEALTHY


def test_it_is_read_by_a_timer_instead_of_events(
    dev: Path, hanging_file_system: HangingFileSystem, clock: Clock
) -> None:
    """A watch could hang, and would not see changes by other hosts."""
    backend = binder_backend(dev, clock=clock)
    scan(backend)
    assert backend.directories() == {str(dev)}
    assert backend.seconds_until_scan() == store.GUARDED_INTERVAL
    os.unlink(f"{hanging_file_system.source}/b2")
    assert scan_changes(backend) == {"aosp_binder1": "", "aosp_binder2": "missing"}
    Path(f"{hanging_file_system.source}/b2").touch()
    assert scan_changes(backend) == HEALTHY
    (dev / "aosp_binder2").unlink()
    assert scan(backend) == {"aosp_binder1": "", "aosp_binder2": "missing"}
    assert backend.seconds_until_scan() == TTL, "nothing depends on it any more"


def test_device_directory_on_it(hanging_file_system: HangingFileSystem, clock: Clock) -> None:
    """Missing devices stay missing until their time. A start during the hang waits for the end of it."""
    for number in (1, 2, 3):
        Path(f"{hanging_file_system.source}/aosp_binder{number}").touch()
    backend = binder_backend(hanging_file_system.directory, clock=clock, missing_device_ttl=TTL)
    assert backend.directories() == frozenset()
    scan(backend)
    os.unlink(f"{hanging_file_system.source}/aosp_binder3")
    present = {**HEALTHY, "aosp_binder3": "missing"}
    assert scan_changes(backend) == present
    assert backend.seconds_until_scan() == store.GUARDED_INTERVAL
    hanging_file_system.hang()
    hanging = dict.fromkeys(HEALTHY, "scan-timeout")
    assert scan_changes(backend) == {**hanging, "aosp_binder3": "missing"}
    assert backend.seconds_until_scan() == store.GUARDED_INTERVAL
    with pytest.raises(WorkerTimeoutError, match="is not responding"):
        binder_backend(hanging_file_system.directory).scan()
    clock.now += TTL
    assert scan_changes(backend) == hanging
    hanging_file_system.release()
    _join()
    assert scan_changes(backend) == HEALTHY


@pytest.mark.parametrize("start", ["before", "during"])
def test_directory_of_a_set_on_it(tmp_path: Path, hanging_file_system: HangingFileSystem, start: str) -> None:
    dev, names = tmp_path / "dev", ("binder", "hwbinder")
    (dev / "phone1").mkdir(parents=True)
    os.mkdir(f"{hanging_file_system.source}/phone2")
    for directory in (dev / "phone1", f"{hanging_file_system.source}/phone2"):
        for name in names:
            Path(f"{directory}/{name}").touch()
    (dev / "phone2").symlink_to(f"{hanging_file_system.directory}/phone2")
    backend = binder_backend(dev, sets=NamedSets(names=names))
    if start == "before":
        assert scan(backend) == {"phone1": "", "phone2": ""}
    hanging_file_system.hang()
    for _ in range(2):
        assert scan(backend) == {"phone1": "", "phone2": "scan-timeout"}
    assert backend.directories() == {str(dev), f"{dev}/phone1"}
    hanging_file_system.release()
    _join()
    assert scan_changes(backend) == {"phone1": "", "phone2": ""}


@pytest.mark.parametrize("nested", [False, True])
def test_directory_behind_a_link_on_it(
    tmp_path: Path, hanging_file_system: HangingFileSystem, clock: Clock, *, nested: bool
) -> None:
    """Nothing but the link is on it. Its devices are scanned by the timer, although no event reports a hang."""
    os.symlink(tmp_path / "run", f"{hanging_file_system.source}/current")
    names = ("binder", "hwbinder")
    (tmp_path / "dev").mkdir()
    if nested:
        (tmp_path / "run/phone1").mkdir(parents=True)
        for name in names:
            (tmp_path / "run/phone1" / name).touch()
        (tmp_path / "dev/phone1").symlink_to(f"{hanging_file_system.directory}/current/phone1")
        backend, device = binder_backend(tmp_path / "dev", sets=NamedSets(names=names), clock=clock), "phone1"
    else:
        (tmp_path / "run").mkdir()
        (tmp_path / "run/aosp_binder1").touch()
        backend, device = binder_backend(f"{hanging_file_system.directory}/current", clock=clock), "aosp_binder1"
    assert scan(backend) == {device: ""}
    assert backend.seconds_until_scan() == store.GUARDED_INTERVAL
    hanging_file_system.hang()
    assert scan_changes(backend) == {device: "scan-timeout"}
    hanging_file_system.release()
    _join()
    assert scan_changes(backend) == {device: ""}


def test_slow_answers_do_not_stop_the_scan(
    dev: Path, hanging_file_system: HangingFileSystem, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer takes a moment less than the timeout; a scan of a hundred devices would take minutes."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(guard, "SLOW_CALL", 0.2)
    devices = {"aosp_binder1": ""}
    for number in range(2, 12):
        devices[f"aosp_binder{number}"] = ""
        (dev / f"aosp_binder{number}").unlink(missing_ok=True)
        (dev / f"aosp_binder{number}").symlink_to(f"{hanging_file_system.directory}/b{number}")
        Path(f"{hanging_file_system.source}/b{number}").touch()
    backend = binder_backend(dev)
    assert scan(backend) == devices
    for _ in range(2):
        with _slow(hanging_file_system, 0.3) as answered:
            reasons = scan(backend)
        assert reasons["aosp_binder1"] == ""
        assert reasons["aosp_binder11"] == "scan-timeout"
        assert len(answered) < 20
    assert scan_changes(backend) == devices
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("file system is not responding") == messages.count("file system is responding again") > 0


def test_host_root(tmp_path: Path, hanging_file_system: HangingFileSystem) -> None:
    """The mount table has the paths of this process, and links have those of the host."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/aosp_binder1").touch()
    (tmp_path / "dev/aosp_binder2").symlink_to("/current/b2")
    (tmp_path / "current").symlink_to("/hanging")
    Path(f"{hanging_file_system.source}/b2").touch()
    backend = binder_backend("/dev", host=Host(str(tmp_path)))
    assert scan(backend) == HEALTHY
    assert backend.directories() == {f"{tmp_path}/dev", str(tmp_path)}
    hanging_file_system.hang()
    assert scan(backend) == ONE_HANGS
    assert backend.directories() == {f"{tmp_path}/dev", str(tmp_path)}


def test_shared_path_on_it_is_mounted_nevertheless(dev: Path, hanging_file_system: HangingFileSystem) -> None:
    """A container that starts without it would not notice the lack."""
    hanging_file_system.hang()
    backend = binder_backend(dev, shared_mounts=(f"{hanging_file_system.directory}/data:/data",))
    assert scan(backend) == ONE_HANGS
    mount = Mount(f"{hanging_file_system.directory}/data", "/data", read_only=True)
    assert backend.allocate(["aosp_binder1"]).mounts == [mount]


def test_other_devices_of_phones_on_it_stay(tmp_path: Path, hanging_file_system: HangingFileSystem) -> None:
    """Those found before, by path or by pattern: none of them counts as missing or lost. They are not watched."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/aosp_binder1").touch()
    for name in ("fuse", "gpu0", "gpu1"):
        os.symlink("/dev/null", f"{hanging_file_system.source}/{name}")
    directory = hanging_file_system.directory
    fuse = SharedDevice(path=f"{directory}/fuse", required=True)
    backend = binder_backend(tmp_path / "dev", shared_devices=(fuse,), spread_devices=(f"{directory}/gpu*",))
    assert scan(backend) == {"aosp_binder1": ""}
    assert {path for path in backend.directories() if str(directory) in path} == set()
    nodes = backend.allocate(["aosp_binder1"]).devices
    assert [node.host_path for node in nodes[1:]] == [f"{directory}/fuse", f"{directory}/gpu1"]
    hanging_file_system.hang()
    for _ in range(2):
        assert scan(backend) == {"aosp_binder1": ""}
        assert backend.allocate(["aosp_binder1"]).devices == nodes
    hanging_file_system.release()
    _join()
    os.unlink(f"{hanging_file_system.source}/gpu1")
    assert scan(backend) == {"aosp_binder1": "requirement-missing"}


def test_cdi_directory_on_it(dev: Path, tmp_path: Path, hanging_file_system: HangingFileSystem) -> None:
    """Scans go on. The directory may be behind a link."""
    (tmp_path / "run").symlink_to(hanging_file_system.directory)
    os.mkdir(f"{hanging_file_system.source}/cdi")
    backend = binder_backend(dev, cdi_dir=tmp_path / "run/cdi", device_list=(DeviceList.CDI_CRI,))
    hanging_file_system.hang()
    for _ in range(2):
        scan(backend)
        with pytest.raises(BackendError, match="is not responding"):
            backend.update_host()
    (dev / "aosp_binder3").touch()
    reasons = dict.fromkeys(("aosp_binder1", "aosp_binder3"), "not-in-cdi-spec") | {"aosp_binder2": "scan-timeout"}
    scan(backend)
    with pytest.raises(BackendError, match="is not responding"):
        backend.update_host()
    assert scan_changes(backend) == dict(sorted(reasons.items()))
    hanging_file_system.release()
    _join()
    backend.scan()
    backend.update_host()
    assert scan_changes(backend) == {**HEALTHY, "aosp_binder3": ""}
    assert os.listdir(f"{hanging_file_system.source}/cdi") == ["aosp.io_binder.json"]


def test_provisioning_on_it(hanging_file_system: HangingFileSystem) -> None:
    hanging_file_system.hang()
    directory = f"{hanging_file_system.directory}/binderfs"
    backend = binder_backend("/none", provision=Provision(count=3, directory=directory))
    with pytest.raises(BackendError, match="is not responding"):
        backend.update_host()
    assert hanging_file_system.waiting() == 1


async def test_plugin_serves_the_other_devices_and_heals(
    dev: Path,
    hanging_file_system: HangingFileSystem,
    kubelet_dir: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file event elsewhere leads to the scan that finds the hang, and the timer to the one that finds its end."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(store, "GUARDED_INTERVAL", 0.5)
    monkeypatch.setattr(store, "SHORTEST_PAUSE", 0.1)
    plugin = DevicePlugin(binder_backend(dev), kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 2)
        hanging_file_system.hang()
        (dev / "unrelated").touch()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)
        await ready(plugin)
        await kubelet.admit(Pod("phone", [Container("main", {RESOURCE: 1})]))
        with pytest.raises(AdmissionError):
            await kubelet.admit(Pod("other", [Container("main", {RESOURCE: 1})]))
        hanging_file_system.release()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 2)
        assert len(kubelet.registrations) == 1
    messages = [record.getMessage() for record in caplog.records]
    hangs, ends = (messages.count(f"file system is {state}") for state in ("not responding", "responding again"))
    assert hangs == ends > 0


async def test_watched_directory_that_a_link_into_it_replaces(
    dev: Path, hanging_file_system: HangingFileSystem, kubelet_dir: str, tmp_path: Path
) -> None:
    """The watch itself must not follow that link: the other device would not be scanned any more."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "b2").touch()
    (dev / "aosp_binder2").unlink()
    (dev / "aosp_binder2").symlink_to(directory / "b2")
    plugin = DevicePlugin(binder_backend(dev), kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 2)
        hanging_file_system.hang()
        directory.rename(tmp_path / "former")
        directory.symlink_to(hanging_file_system.directory)
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)
        await ready(plugin)


async def test_plugin_whose_device_directory_hangs_at_the_start_registers_without_devices(
    hanging_file_system: HangingFileSystem, kubelet_dir: str
) -> None:
    os.mknod(f"{hanging_file_system.source}/aosp_binder1")
    hanging_file_system.hang()
    plugin = DevicePlugin(binder_backend(hanging_file_system.directory), kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).connected)
        await problem(plugin, "device scan has been hanging")
        hanging_file_system.release()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)
        await ready(plugin)


@contextlib.contextmanager
def _slow(hanging_file_system: HangingFileSystem, seconds: float) -> Iterator[list[None]]:
    """Delay each answer of the file system inside the context; yield a list with an entry for each."""
    answered: list[None] = []
    ended = threading.Event()

    def answer() -> None:
        while not ended.wait(seconds):
            if hanging_file_system.waiting():
                hanging_file_system.release()
                hanging_file_system.hang()
                answered.append(None)
        hanging_file_system.release()

    hanging_file_system.hang()
    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield answered
    finally:
        ended.set()
        thread.join()


def _join() -> None:
    """Wait until the call that was given up has returned."""
    for thread in threading.enumerate():
        if thread.name == guard.THREAD:
            thread.join()
