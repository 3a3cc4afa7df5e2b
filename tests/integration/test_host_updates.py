"""Updates of the host, recreation and provisioning, with a binderfs made of plain files."""

import asyncio
import os
import stat
import threading
from functools import partial
from pathlib import Path

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.binder.provision import recreation
from aosp_plugin.config.keys import Provision
from aosp_plugin.config.values import Recreate
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.errors import UnhealthyDeviceError
from aosp_plugin.framework.worker import Worker
from kubelet_standin import Kubelet
from tests.backends import binder_backend, scan
from tests.fake_binderfs import FakeBinderfs
from tests.support import IN_LIFE, PATIENCE, RESOURCE, run

DEVICES = ("aosp_binder0", "aosp_binder1")


class BinderfsHost(Host):
    """Reports plain files as devices of a binderfs."""

    def lstat(self, path: str) -> os.stat_result:
        """Return the status of the file."""
        status = super().lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return status
        values = (stat.S_IFCHR | stat.S_IMODE(status.st_mode), *status[1:10])
        return os.stat_result(values, {"st_rdev": status.st_ino, "st_mtime_ns": status.st_mtime_ns})

    def driver(self) -> Driver:
        """Return a driver whose file system is that of the temporary directory."""
        super().driver()
        return Driver(frozenset({os.stat("/tmp").st_dev}))


class Place:
    """A device directory with a link to each device, which is in a binderfs of its own."""

    def __init__(self, root: Path, kernel: FakeBinderfs) -> None:
        self.root = root
        self.kernel = kernel
        self.dev = root / "dev"
        self.dev.mkdir()
        for name in DEVICES:
            directory = root / f"binderfs-{name}"
            directory.mkdir()
            kernel.mount(str(directory))
            kernel.add_device(str(directory), name)
            (self.dev / name).symlink_to(directory / name)

    def backend(self) -> BinderBackend:
        """Return a backend that recreates devices."""
        return binder_backend(self.dev, host=BinderfsHost(), recreate=Recreate.ON_START)

    def set_limit(self, limit: int) -> None:
        """Set max= of each binderfs."""
        for directory in self.kernel.mounts:
            self.kernel.mount(directory, limit, remount=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if os.stat("/tmp").st_dev != tmp_path.stat().st_dev:
        pytest.skip("the temporary directory of the tests is not on the file system of /tmp")
    return Place(tmp_path, FakeBinderfs(monkeypatch))


async def test_retry_never_recreates_a_device_that_a_container_has_got(place: Place) -> None:
    """The retry of another device takes long when the container starts."""
    backend = place.backend()
    assert scan(backend) == dict.fromkeys(DEVICES, "")
    place.set_limit(1)
    for name in DEVICES:
        with pytest.raises(UnhealthyDeviceError, match="max=1 is reached"):
            backend.pre_start([name])
    place.set_limit(100)
    steps: list[str] = []
    release = threading.Event()

    def hook(step: str) -> None:
        assert release.wait(PATIENCE)
        steps.append(step)

    place.kernel.hook = hook
    worker = Worker("test")
    retries = asyncio.create_task(worker.run(backend.update_host))
    start = asyncio.create_task(worker.run(partial(backend.pre_start, ["aosp_binder1"])))
    start.add_done_callback(lambda _: steps.append("started"))
    release.set()
    await start
    await retries
    await worker.run(backend.update_host)
    worker.close()
    assert steps == [*(f"add {recreation.TEMPORARY_PREFIX}aosp_binder{number}" for number in (0, 1, 1)), "started"]
    assert scan(backend) == dict.fromkeys(DEVICES, "")


async def test_kubelet_gets_provisioned_devices_with_the_first_list(place: Place, kubelet_dir: str) -> None:
    directory = place.root / "provisioned"
    directory.mkdir()
    backend = binder_backend("/none", host=BinderfsHost(), provision=Provision(count=3, directory=str(directory)))
    async with Kubelet(kubelet_dir) as kubelet, run(DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=IN_LIFE)):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).messages > 0)
        assert kubelet.resource(RESOURCE).allocatable == 3
