"""Other devices of a phone, ``shared_devices`` and ``spread_devices``, through backend, plugin and kubelet.

Devices are links to those of the kernel, so that no rights are required, except where a test makes device files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.driver import host as host_module
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import PHONE_DEFAULTS, NumberedSets, Phones, Resource, SharedDevice
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.devices import DeviceList, DeviceNode
from aosp_plugin.framework.errors import UnhealthyDeviceError
from kubelet_standin import Container, Kubelet, Pod
from tests.backends import binder_backend, scan
from tests.support import IN_LIFE, PATIENCE, RESOURCE, DeviceDirectory, listed, names, run
from tests.tmpfs_binderfs import Mounts

requires_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes device files, which requires root")

NULL, ZERO, FULL = "/dev/null", "/dev/zero", "/dev/full"


class Dri:
    """A directory with GPUs, which are links to devices of the kernel."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.pattern = f"{directory}/renderD*"

    def path(self, number: int) -> str:
        """Return the path of a GPU."""
        return f"{self.directory}/renderD{number}"

    def add(self, *numbers: int, device: str = NULL) -> None:
        """Create GPUs."""
        for number in numbers:
            os.symlink(device, self.path(number))

    def remove(self, *numbers: int) -> None:
        """Remove GPUs."""
        for number in numbers:
            os.unlink(self.path(number))


@pytest.fixture
def dri(tmp_path: Path) -> Dri:
    return Dri(tmp_path / "dri")


def phones(devices: DeviceDirectory, count: int, **keys: Any) -> BinderBackend:
    """Return a backend with this many devices, which has not scanned yet."""
    devices.add(*range(count))
    keys = {"shared_mounts": (), **keys}
    return binder_backend(devices.directory, cdi_dir=devices.directory.parent / "cdi", **keys)


def others(backend: BinderBackend, *ids: str) -> list[str]:
    """Return the paths of the devices that a container gets besides binder devices."""
    nodes = backend.allocate(ids).devices
    assert all(node.host_path == node.container_path for node in nodes if "binder" not in node.host_path)
    return [node.host_path for node in nodes if "binder" not in node.host_path]


def test_directory_in_which_a_shared_mount_may_appear_is_watched(
    device_directory: DeviceDirectory, tmp_path: Path
) -> None:
    """Otherwise it would be missing in the containers that start until the next full scan."""
    backend = phones(device_directory, 1, shared_mounts=(f"{tmp_path}/run/missing/shared",))
    assert str(tmp_path) in backend.directories()
    scan(backend)
    (tmp_path / "run").mkdir()
    scan(backend)
    assert f"{tmp_path}/run" in backend.directories()
    (tmp_path / "run/missing/shared").mkdir(parents=True)
    scan(backend)
    assert f"{tmp_path}/run/missing" in backend.directories()
    (mount,) = backend.allocate(["aosp_binder0"]).mounts
    assert mount.host_path == f"{tmp_path}/run/missing/shared"


# -- shared devices


def test_container_gets_all_devices_that_match_a_pattern(device_directory: DeviceDirectory, dri: Dri) -> None:
    """In natural order, each once, at the host's path; one that has another path in the container, there as well."""
    dri.add(9, 10)
    shared = (SharedDevice(path=dri.path(10)), dri.pattern, f"{dri.path(9)}:/dev/gpu")
    backend = phones(device_directory, 1, shared_devices=shared, permissions="rwm")
    scan(backend)
    paths = [(path, path) for path in (dri.path(10), dri.path(9))] + [(dri.path(9), "/dev/gpu")]
    nodes = [DeviceNode(host_path, path, "rwm") for host_path, path in paths]
    assert backend.allocate(["aosp_binder0"]).devices[1:] == nodes


@pytest.mark.parametrize("pattern", [True, False])
def test_missing_required_device_makes_every_device_unhealthy(
    device_directory: DeviceDirectory, dri: Dri, caplog: pytest.LogCaptureFixture, *, pattern: bool
) -> None:
    """An optional one does not. Both are logged when they are first missed."""
    caplog.set_level(logging.INFO)
    required = dri.pattern if pattern else dri.path(1)
    optional = str(dri.directory / "card0")
    shared = (SharedDevice(path=required, required=True), optional)
    backend = phones(device_directory, 3, shared_devices=shared)
    for _ in range(2):
        assert scan(backend) == dict.fromkeys(names(range(3)), "requirement-missing")
    assert {device.detail for device in backend.devices()} == {f"requirement-missing: {required}"}
    with pytest.raises(UnhealthyDeviceError, match=f"requirement-missing: {dri.directory}/renderD"):
        backend.allocate(["aosp_binder1"])
    dri.add(1)
    assert scan(backend) == dict.fromkeys(names(range(3)), "")
    assert others(backend, "aosp_binder1") == [dri.path(1)]
    dri.remove(1)
    assert scan(backend) == dict.fromkeys(names(range(3)), "requirement-missing")
    logged = [(record.levelname, vars(record)["path"]) for record in caplog.records if "not found" in record.msg]
    assert logged == [("WARNING", required), ("INFO", optional), ("WARNING", required)]


def test_binder_device_s_own_problem_takes_precedence(device_directory: DeviceDirectory, dri: Dri) -> None:
    backend = phones(device_directory, 2, shared_devices=(SharedDevice(path=dri.path(1), required=True),))
    scan(backend)
    device_directory.remove(0)
    assert scan(backend) == {"aosp_binder0": "missing", "aosp_binder1": "requirement-missing"}


# -- spread devices


def test_each_device_has_one_of_the_spread_devices_by_its_number(device_directory: DeviceDirectory, dri: Dri) -> None:
    """A container with several devices gets that of each."""
    dri.add(128, 129, 130)
    backend = phones(device_directory, 6, spread_devices=(dri.pattern,))
    scan(backend)
    assert [others(backend, name) for name in names(range(6))] == [[dri.path(128 + n % 3)] for n in range(6)]
    assert others(backend, *names([1, 2, 4])) == [dri.path(129), dri.path(130)]
    assert backend.spread_devices() == {dri.path(128 + n): names([n, n + 3]) for n in range(3)}


def test_lost_spread_device_concerns_its_devices_only(device_directory: DeviceDirectory, dri: Dri) -> None:
    """No other device moves, until SIGHUP or a restart spreads all over those that exist."""
    dri.add(128, 129, 130)
    backend = phones(device_directory, 6, spread_devices=(dri.pattern,))
    scan(backend)
    dri.remove(129)
    assert scan(backend) == {
        name: "requirement-missing" if n % 3 == 1 else "" for n, name in enumerate(names(range(6)))
    }
    assert backend.devices()[1].detail == f"requirement-missing: {dri.path(129)}"
    with pytest.raises(UnhealthyDeviceError, match=f"requirement-missing: {dri.path(129)}"):
        backend.allocate(["aosp_binder4"])
    assert [others(backend, name) for name in names([0, 2, 3, 5])] == [[dri.path(128 + n % 3)] for n in (0, 2, 3, 5)]
    dri.add(129)
    assert set(scan(backend).values()) == {""}
    dri.remove(129)
    backend.reset()
    assert set(scan(backend).values()) == {""}
    assert [others(backend, name) for name in names(range(4))] == [[dri.path(n)] for n in (128, 130, 128, 130)]
    dri.add(129)
    assert set(scan(backend).values()) == {""}
    assert others(backend, "aosp_binder1") == [dri.path(129)], "another one is known now"


def test_devices_are_unhealthy_while_no_spread_device_is_known(device_directory: DeviceDirectory, dri: Dri) -> None:
    backend = phones(device_directory, 2, spread_devices=(dri.pattern,))
    assert set(scan(backend).values()) == {"requirement-missing"}
    assert backend.devices()[0].detail == f"requirement-missing: {dri.pattern}"
    assert backend.spread_devices() == {}
    dri.add(128)
    assert set(scan(backend).values()) == {""}


def test_sets_and_replicas_have_the_spread_device_of_their_device(device_directory: DeviceDirectory, dri: Dri) -> None:
    """As many GPUs as a set has members: each GPU has as many phones."""
    dri.add(0, 1, 2)
    backend = phones(
        device_directory,
        18,
        spread_devices=(dri.pattern,),
        sets=NumberedSets(size=3),
        replicas=2,
        device_list=CDI_LISTS,
    )
    scan(backend)
    backend.update_host()
    assert backend.spread_devices() == {
        dri.path(n): [f"{name}::{replica}" for name in names([3 * n, 3 * n + 9]) for replica in range(2)]
        for n in range(3)
    }
    assert others(backend, "aosp_binder12::0", "aosp_binder12::1") == [dri.path(1)]
    spec = json.loads((device_directory.directory.parent / "cdi/aosp.io_binder.json").read_bytes())
    nodes = {device["name"]: device["containerEdits"]["deviceNodes"] for device in spec["devices"]}
    in_spec = {name: [node["path"] for node in nodes[name] if "renderD" in node["path"]] for name in nodes}
    assert in_spec == {name: [dri.path(number % 3)] for number, name in enumerate(names(range(0, 18, 3)))}
    assert {node["hostPath"] for node in nodes["aosp_binder0"]} >= {NULL}, "a runtime does not follow links"


CDI_LISTS = (DeviceList.VOLUME_MOUNTS, DeviceList.CDI_CRI)


def test_numa_node_is_that_of_the_spread_device_unless_configured(
    device_directory: DeviceDirectory, dri: Dri, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel names it by the device number; -1 is none. A lost device keeps it, another device at its path not."""
    sysfs = tmp_path / "sys"
    for number, node in (("1:3", "1"), ("1:5", "-1"), ("1:7", "0")):
        (sysfs / "char" / number / "device").mkdir(parents=True)
        (sysfs / "char" / number / "device/numa_node").write_text(f"{node}\n")
    monkeypatch.setattr(host_module, "SYS_DEV", str(sysfs))
    dri.add(0)
    dri.add(1, device=ZERO)
    dri.add(2, device=FULL)
    backend = phones(device_directory, 6, spread_devices=(dri.pattern,), numa={"5": 3})

    def numa_nodes() -> list[tuple[int, ...]]:
        scan(backend)
        return [device.numa_nodes for device in backend.devices()]

    assert numa_nodes() == [(1,), (), (0,), (1,), (), (3,)]
    dri.remove(0)
    assert numa_nodes() == [(1,), (), (0,), (1,), (), (3,)]
    dri.add(0, device=ZERO)
    assert numa_nodes() == [(), (), (0,), (), (), (3,)]


@requires_root
async def test_phone_with_its_own_binderfs_has_a_gpu(
    tmp_path: Path, kubelet_dir: str, dri: Dri, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of a GPU leaves the mounts as they are: only its phones are unhealthy."""
    dri.add(128, 129)
    with contextlib.closing(Mounts(tmp_path / "run/phones", monkeypatch)) as directory:
        phones = Phones(count=5, directory=str(directory.path))
        keys = {**PHONE_DEFAULTS, "resource_name": RESOURCE, "shared_devices": (), "spread_devices": (dri.pattern,)}
        backend = BinderBackend(Host(), Resource(phones=phones, **keys), cdi_dir=str(tmp_path / "cdi"))
        plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=IN_LIFE)
        async with Kubelet(kubelet_dir) as kubelet, run(plugin):
            await listed(kubelet, 5)
            pod = Pod("phone", [Container("android", {RESOURCE: 1})])
            android = (await kubelet.admit(pod)).containers["android"]
            (device_id,) = android.device_ids[RESOURCE]
            gpu = dri.path(128 + int(device_id.removeprefix("phone")) % 2)
            assert [device.host_path for device in android.devices if "renderD" in device.host_path] == [gpu]
            mounted = directory.mounted()
            dri.remove(129)
            await listed(kubelet, 3)
            unhealthy = {device.id for device in backend.devices() if device.reason == "requirement-missing"}
            assert unhealthy == {"phone1", "phone3"}
            dri.add(129)
            await listed(kubelet, 5)
            assert directory.mounted() == mounted


# -- through the plugin


async def test_plugin_notices_devices_that_appear_and_vanish(
    device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path
) -> None:
    """Their directories come and go as well. Nothing is polled: no scan is due within the patience of this test."""
    fuse, heap = tmp_path / "fuse", tmp_path / "heaps/dma_heap"
    shared = (SharedDevice(path=str(fuse), required=True), SharedDevice(path=f"{heap}/*", required=True))
    backend = phones(device_directory, 3, shared_devices=shared)
    plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 3, PATIENCE)
        for name in ("first", "second"):
            assert kubelet.resource(RESOURCE).allocatable == 0
            heap.mkdir(parents=True)
            (heap / "system").symlink_to(NULL)
            fuse.symlink_to(NULL)
            await listed(kubelet, 3)
            admitted = await kubelet.admit(Pod(name, [Container("android", {RESOURCE: 1})]))
            given = [device.host_path for device in admitted.containers["android"].devices[1:]]
            assert given == [str(fuse), f"{heap}/system"]
            (heap / "system").unlink()
            heap.rmdir()
            heap.parent.rmdir()
            await listed(kubelet, 0)
            fuse.unlink()
    assert tmp_path / "heaps" not in map(Path, backend.directories()), "a directory that does not exist is polled"
