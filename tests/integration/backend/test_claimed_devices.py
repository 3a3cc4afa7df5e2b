"""Found devices for ResourceClaims. Plain files stand in for binder devices, so their recreation is faked."""

import os
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.binder.devices import scanner
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import DevicesExhaustedError, HostError
from aosp_plugin.binder.provision import recreation
from aosp_plugin.config.keys import NumberedSets, Resource
from aosp_plugin.config.values import Api, Recreate
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.errors import UnhealthyDeviceError
from tests.backends import Served, binder_backend
from tests.support import DeviceDirectory

PATHS = {"apiVersion": "phone.aosp.io/v1alpha1", "kind": "PhoneParameters", "containerPaths": ["/dev/a", "/dev/b"]}


def backend_of(devices: DeviceDirectory, **keys: Any) -> Served:
    """Return a backend after its first scan."""
    backend = binder_backend(devices.directory, cdi_dir="/none", api=Api.DRA, **keys)
    backend.scan()
    return backend


@pytest.fixture
def devices(device_directory: DeviceDirectory) -> DeviceDirectory:
    device_directory.add(*range(6))
    return device_directory


@pytest.fixture
def recreated(monkeypatch: pytest.MonkeyPatch) -> list[str | HostError]:
    """Return the names of the devices that are recreated. An error in it is raised by the next recreation instead."""
    names: list[str | HostError] = []

    def recreate_device(device: BinderDevice, _host: Host) -> None:
        if names and isinstance(error := names[-1], HostError):
            names.pop()
            raise error
        names.append(device.name)
        fresh = f"{device.path},"
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL))
        os.rename(fresh, device.path)

    monkeypatch.setattr(recreation, "recreate_device", recreate_device)
    monkeypatch.setattr(scanner, "kind_of", lambda *_: Kind.BINDERFS)
    return names


def test_each_device_of_a_request_brings_its_own_part(devices: DeviceDirectory) -> None:
    backend = backend_of(devices, container_paths=("/dev/x", "/dev/y"))
    second, first = backend.prepare(["aosp_binder3", "aosp_binder2"], [])
    assert [node.container_path for node in first.devices] == ["/dev/aosp_binder2"]
    assert [node.container_path for node in second.devices] == ["/dev/aosp_binder3"]
    assert [mount.container_path for mount in (*first.mounts, *second.mounts)] == ["/dev/x", "/dev/y"]
    assert first.environment["BINDER_VISIBLE_DEVICES"] == "aosp_binder2,aosp_binder3"
    assert not second.environment


def test_parameters_replace_the_container_paths(devices: DeviceDirectory) -> None:
    backend = backend_of(devices, sets=NumberedSets(size=3), container_paths=("/dev/x", "/dev/y", "/dev/z"))
    (edits,) = backend.prepare(["aosp_binder3"], [ClaimParameters("claim", PATHS)])
    assert [mount.container_path for mount in edits.mounts] == ["/dev/a", "/dev/b"]


def test_paths_of_the_host_have_no_links(devices: DeviceDirectory, tmp_path: Path) -> None:
    """A runtime does not follow the links in a CDI spec."""
    target = tmp_path / "elsewhere"
    target.touch()
    (devices.directory / "aosp_binder7").symlink_to(target)
    backend = backend_of(devices)
    (edits,) = backend.prepare(["aosp_binder7"], [])
    assert [(node.host_path, node.container_path) for node in edits.devices] == [(str(target), "/dev/aosp_binder7")]


def test_devices_are_recreated_when_the_claim_is_over(
    devices: DeviceDirectory, recreated: list[str | HostError]
) -> None:
    backend = backend_of(devices, recreate=Recreate.ON_START)
    assert not backend.backend.pre_start_required
    backend.prepare(["aosp_binder1", "aosp_binder2"], [])
    backend.prepare(["aosp_binder1", "aosp_binder2"], [])
    assert recreated == []
    backend.unprepare(["aosp_binder1", "aosp_binder2", "unknown"])
    assert recreated == ["aosp_binder1", "aosp_binder2"]
    backend.prepare(["aosp_binder3"], [])
    backend.unprepare(["aosp_binder3"])
    assert recreated == ["aosp_binder1", "aosp_binder2", "aosp_binder3"]


def test_device_that_cannot_be_recreated_is_not_prepared_until_it_is(
    devices: DeviceDirectory, recreated: list[str | HostError]
) -> None:
    """The pod ends nevertheless: its device does not wait for the recreation."""
    backend = backend_of(devices, recreate=Recreate.ON_START)
    backend.prepare(["aosp_binder1"], [])
    recreated.append(DevicesExhaustedError("max= is reached"))
    backend.unprepare(["aosp_binder1"])
    assert backend.scan()["aosp_binder1"] == "not-recreated"
    with pytest.raises(UnhealthyDeviceError, match="not-recreated"):
        backend.prepare(["aosp_binder1"], [])
    backend.update_host()
    assert recreated == ["aosp_binder1"]
    assert backend.scan()["aosp_binder1"] == ""
    backend.prepare(["aosp_binder1"], [])


@pytest.mark.usefixtures("recreated")
def test_recreated_device_stays_prepared_when_a_scan_finds_it(devices: DeviceDirectory) -> None:
    """Its inode is not that of the scan before the preparation. Otherwise each claim would be reported as lost."""
    backend = backend_of(devices, recreate=Recreate.ON_START)
    backend.unprepare(["aosp_binder1"])
    backend.prepare(["aosp_binder1"], [])
    backend.scan()
    assert backend.is_prepared(["aosp_binder1"])


@pytest.mark.parametrize("device_id", ["phone7", "binder", "aosp_binder1a"])
def test_id_of_a_former_layout_has_no_place(devices: DeviceDirectory, device_id: str) -> None:
    """A record of a claim may have it: the driver serves its other claims."""
    resource = Resource(device_dir=str(devices.directory), api=Api.DRA, sets=NumberedSets(size=2))
    backend = ClaimsBackend(Host(), resource, cdi_dir="/none")
    assert backend.places(device_id) == []


def test_attributes_of_a_found_device(devices: DeviceDirectory) -> None:
    attributes = backend_of(devices, sets=NumberedSets(size=2)).attributes("aosp_binder4")
    assert attributes == {"number": 4, "binderDevices": 2}
