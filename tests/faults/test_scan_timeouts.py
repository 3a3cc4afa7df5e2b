"""Binder devices on a file system that hangs: a real FUSE file system whose server stops to answer.

The resource has no scans until it answers. Its devices stay published as they are, and containers get them.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import NamedSets, Provision, SharedDevice
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.devices import DeviceList
from kubelet_standin import Container, Kubelet, Pod
from tests.backends import binder_backend
from tests.hanging_fs import HangingFileSystem
from tests.support import IN_LIFE, RESOURCE, listed, problem, ready, run

PAIR = ("binder", "hwbinder")


SOON = IN_LIFE._replace(hang=0.2)
"""Timings that report a hang after a moment."""


class Place:
    """Directories of a host, one of which is on the file system."""

    def __init__(self, directory: Path, hanging: HangingFileSystem) -> None:
        self.dev = directory / "dev"
        self.dev.mkdir()
        self.hanging = hanging.directory
        self.source = Path(hanging.source)

    def device_behind_a_link(self) -> BinderBackend:
        """Return a backend with two devices, one of which is a link into the file system."""
        (self.dev / "aosp_binder1").touch()
        (self.source / "b2").touch()
        (self.dev / "aosp_binder2").symlink_to(f"{self.hanging}/b2")
        return binder_backend(self.dev)

    def device_directory(self) -> BinderBackend:
        """Return a backend whose device directory is on the file system."""
        for name in ("aosp_binder1", "aosp_binder2"):
            (self.source / name).touch()
        return binder_backend(self.hanging)

    def directory_of_a_set(self) -> BinderBackend:
        """Return a backend with two sets, one of which is a link into the file system."""
        for directory in (self.dev / "phone1", self.source / "phone2"):
            directory.mkdir()
            for name in PAIR:
                (directory / name).touch()
        (self.dev / "phone2").symlink_to(f"{self.hanging}/phone2")
        return binder_backend(self.dev, sets=NamedSets(names=PAIR))

    def link_on_the_path(self) -> BinderBackend:
        """Return a backend of which nothing but a link on the path to its directory is on the file system."""
        for name in ("aosp_binder1", "aosp_binder2"):
            (self.dev / name).touch()
        (self.source / "current").symlink_to(self.dev)
        return binder_backend(f"{self.hanging}/current")

    def shared_device(self) -> BinderBackend:
        """Return a backend whose devices require another device on the file system."""
        for name in ("aosp_binder1", "aosp_binder2"):
            (self.dev / name).touch()
        (self.source / "fuse").symlink_to("/dev/null")
        shared = SharedDevice(path=f"{self.hanging}/fuse", required=True)
        return binder_backend(self.dev, shared_devices=(shared,))

    def path_below_a_root(self) -> BinderBackend:
        """Return a backend with a root, below which a link leads into the file system."""
        root = self.dev.parent
        (self.dev / "aosp_binder1").touch()
        (self.source / "b2").touch()
        (self.dev / "aosp_binder2").symlink_to(f"/{Path(self.hanging).relative_to(root)}/b2")
        return binder_backend("/dev", host=Host(str(root)))


PLACES: list[Callable[[Place], BinderBackend]] = [
    Place.device_behind_a_link,
    Place.device_directory,
    Place.directory_of_a_set,
    Place.link_on_the_path,
    Place.shared_device,
    Place.path_below_a_root,
]


@pytest.mark.parametrize("backend_of", PLACES)
async def test_devices_stay_published_and_are_scanned_again_when_it_answers(
    tmp_path: Path,
    hanging_file_system: HangingFileSystem,
    kubelet_dir: str,
    backend_of: Callable[[Place], BinderBackend],
) -> None:
    """Whatever a scan reads there. Readiness says what hangs, and containers start meanwhile."""
    plugin = DevicePlugin(backend_of(Place(tmp_path, hanging_file_system)), kubelet_dir=kubelet_dir, timings=SOON)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await listed(kubelet, 2)
        await ready(plugin)
        hanging_file_system.hang()
        plugin.rescan()
        await hanging_file_system.until_waiting()
        await problem(plugin, "device scan has been hanging for")
        assert kubelet.resource(RESOURCE).allocatable == 2
        pod = Pod("phone", [Container("main", {RESOURCE: 2})])
        await kubelet.admit(pod)
        hanging_file_system.release()
        await ready(plugin)
        assert kubelet.resource(RESOURCE).allocatable == 2
        assert len(kubelet.registrations) == 1


async def test_cdi_directory_that_hangs_delays_scans(
    tmp_path: Path, hanging_file_system: HangingFileSystem, kubelet_dir: str
) -> None:
    """The directory may be behind a link."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/aosp_binder1").touch()
    (tmp_path / "run").symlink_to(hanging_file_system.directory)
    os.mkdir(f"{hanging_file_system.source}/cdi")
    backend = binder_backend(tmp_path / "dev", cdi_dir=tmp_path / "run/cdi", device_list=(DeviceList.CDI_CRI,))
    plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=SOON)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await listed(kubelet, 1)
        await ready(plugin)
        hanging_file_system.hang()
        (tmp_path / "dev/aosp_binder2").touch()
        await hanging_file_system.until_waiting()
        await listed(kubelet, 2)
        await problem(plugin, "host update has been hanging for")
        hanging_file_system.release()
        await ready(plugin)
        (tmp_path / "dev/aosp_binder3").touch()
        await listed(kubelet, 3)
    assert os.listdir(f"{hanging_file_system.source}/cdi") == ["aosp.io_binder.json"]


async def test_provisioning_on_it_hangs_and_goes_on(hanging_file_system: HangingFileSystem, kubelet_dir: str) -> None:
    """Nothing can be mounted there, which it says afterwards."""
    hanging_file_system.hang()
    backend = binder_backend(
        "/none", provision=Provision(count=3, directory=f"{hanging_file_system.directory}/binderfs")
    )
    plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=SOON)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).connected)
        await problem(plugin, "device scan has been hanging for")
        hanging_file_system.release()
        await problem(plugin, "host update failed: cannot")


async def test_plugin_whose_device_directory_hangs_at_the_start_registers_without_devices(
    hanging_file_system: HangingFileSystem, kubelet_dir: str
) -> None:
    os.mknod(f"{hanging_file_system.source}/aosp_binder1")
    hanging_file_system.hang()
    plugin = DevicePlugin(binder_backend(hanging_file_system.directory), kubelet_dir=kubelet_dir, timings=SOON)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).connected)
        await problem(plugin, "device scan has been hanging")
        hanging_file_system.release()
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)
        await ready(plugin)
