"""Other devices of a phone, shared, spread and in slices, through backend, plugin and kubelet.

Devices are links to those of the kernel, so that no rights are required, except where a test makes device files.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.config.keys import NumberedSets, SharedDevice, SliceDevices, SpreadDevice
from aosp_plugin.config.values import Api
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.devices import DeviceNode
from aosp_plugin.framework.errors import InvalidRequestError, UnhealthyDeviceError
from kubelet_standin import Container, Kubelet, Pod
from kubelet_standin.apiserver import ApiServer
from kubelet_standin.dra_claims import ClaimsError, DraPod
from tests.backends import binder_backend, scan
from tests.dra_node import DraNode
from tests.support import RESOURCE, DeviceDirectory, listed, names, run

NULL = "/dev/null"


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


def test_devices_beyond_the_limit_of_their_spread_device_are_unhealthy(
    device_directory: DeviceDirectory, dri: Dri
) -> None:
    """Those with the highest numbers. One without a limit takes all."""
    dri.add(128, 129)
    limited = SpreadDevice(path=dri.path(128), per_device=2)
    backend = phones(device_directory, 8, spread_devices=(limited, dri.pattern))
    full = f"requirement-missing: room for it on {dri.path(128)} (spread_devices, per_device)"
    scan(backend)
    assert [device.detail for device in backend.devices()] == ["", "", "", "", full, "", full, ""]
    with pytest.raises(UnhealthyDeviceError, match="room for it on"):
        backend.allocate(["aosp_binder6"])
    device_directory.remove(0)
    backend.reset()
    assert scan(backend)["aosp_binder4"] == ""


# -- slices


async def test_pod_gets_a_slice_of_its_own_by_the_device_plugin(
    device_directory: DeviceDirectory, dri: Dri, kubelet_dir: str
) -> None:
    """A device whose slice is not whole is unhealthy, and no other slice changes."""
    dri.add(0, 1, 2, 4, 5)
    slices = (SliceDevices(path=dri.pattern, count=2),)
    backend = phones(device_directory, 3, sets=NumberedSets(size=1), slice_devices=slices)

    async def admitted(name: str) -> list[str]:
        pod = await kubelet.admit(Pod(name, [Container("c", {RESOURCE: 1})]))
        nodes = pod.containers["c"].devices
        return [node.container_path for node in nodes if node.container_path == node.host_path]

    async with Kubelet(kubelet_dir) as kubelet, run(DevicePlugin(backend, kubelet_dir=kubelet_dir)):
        await listed(kubelet, 2)
        assert backend.devices()[1].detail == f"requirement-missing: {dri.path(3)}"
        assert [await admitted(name) for name in "ab"] == [[dri.path(n), dri.path(n + 1)] for n in (0, 4)]
        dri.add(3)
        await listed(kubelet, 3)
        dri.remove(0)
        await listed(kubelet, 2)
        assert await admitted("c") == [dri.path(2), dri.path(3)]


async def test_pod_gets_a_slice_of_its_own_by_dra(
    device_directory: DeviceDirectory, dri: Dri, short_directory: Path
) -> None:
    """The claim of a device whose slice is not whole is not prepared."""
    dri.add(*range(12))
    keys = {"resource_name": "aosp.io/phone", "api": Api.DRA, "sets": NumberedSets(size=1)}
    backend = phones(device_directory, 3, slice_devices=(SliceDevices(path=dri.pattern, count=6),), **keys)
    async with ApiServer() as server:
        node = DraNode(short_directory, server)
        async with node.kubelet, node.running(backend):
            await node.kubelet.prepare(DraPod("game", (node.create_claim("a", ["aosp_binder1"]),)))
            (spec,) = node.specs
            (device,) = json.loads((short_directory / "cdi" / spec).read_text())["devices"]
            paths = [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
            assert paths == ["/dev/aosp_binder1", *map(dri.path, range(6, 12))]
            with pytest.raises(ClaimsError, match=f"requirement-missing: {dri.path(12)}, .*{dri.path(15)} and 2 more"):
                await node.kubelet.prepare(DraPod("late", (node.create_claim("b", ["aosp_binder2"]),)))


def test_claim_gets_no_device_of_the_slice_of_another_one(device_directory: DeviceDirectory, dri: Dri) -> None:
    """Neither by its path, nor by another one that leads to the same device."""
    dri.add(0)
    dri.add(1, device="/dev/zero")
    slices = (SliceDevices(path=dri.pattern, count=1),)
    backend = phones(device_directory, 2, api=Api.DRA, sets=NumberedSets(size=1), slice_devices=slices)
    assert isinstance(backend, ClaimsBackend)
    backend.scan()
    alias = dri.directory / "alias"
    alias.symlink_to("/dev/zero")
    for path in (dri.path(1), str(alias)):
        content = {"apiVersion": "phone.aosp.io/v1alpha1", "kind": "PhoneParameters", "devices": [path]}
        given = [ClaimParameters("class", content)]
        with pytest.raises(InvalidRequestError, match=f"{path} is not allowed: it is {dri.path(1)} of slice_devices"):
            backend.prepare(["aosp_binder0"], given)
        backend.prepare(["aosp_binder1"], given)
