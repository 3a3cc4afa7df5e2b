"""Recreation and provisioning as the backend and the kubelet see them.

Plain files are no binderfs, so the replacement of a device is faked here. ``tests/e2e/kernel`` tests the real one.
"""

import logging
import os
from pathlib import Path

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices import scanner
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import DevicesExhaustedError, HostError
from aosp_plugin.binder.provision import recreation
from aosp_plugin.binder.provision.device_provisioner import DeviceProvisioner
from aosp_plugin.config.keys import Provision
from aosp_plugin.config.values import Recreate
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.devices import DeviceList
from aosp_plugin.framework.errors import BackendError, UnhealthyDeviceError
from kubelet_standin import AdmissionError, Container, Kubelet, Pod
from tests.backends import binder_backend, scan
from tests.support import IN_LIFE, RESOURCE, DeviceDirectory, run


class Recreations:
    """Replaces ``binder.provision.recreation``, and the binderfs that the devices are in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recreated: list[str] = []
        """Name of each recreated device."""
        self.failure: HostError | None = None
        monkeypatch.setattr(recreation, "recreate_device", self._recreate_device)
        monkeypatch.setattr(scanner, "kind_of", lambda *_: Kind.BINDERFS)

    def _recreate_device(self, device: BinderDevice, _host: Host) -> None:
        if self.failure is not None:
            raise self.failure
        self.recreated.append(device.name)


@pytest.fixture
def recreations(monkeypatch: pytest.MonkeyPatch) -> Recreations:
    return Recreations(monkeypatch)


@pytest.fixture
def devices(device_directory: DeviceDirectory) -> DeviceDirectory:
    """Return a device directory with two devices that looks like a binderfs."""
    (device_directory.directory / "binder-control").touch()
    device_directory.add(0, 1)
    return device_directory


@pytest.fixture
def backend(recreations: Recreations, devices: DeviceDirectory) -> BinderBackend:
    """Return a backend with ``recreate: on-start``."""
    return recreating(devices)


def recreating(devices: DeviceDirectory, *device_list: DeviceList) -> BinderBackend:
    return binder_backend(
        devices.directory,
        recreate=Recreate.ON_START,
        device_list=device_list or (DeviceList.VOLUME_MOUNTS,),
        cdi_dir=devices.directory.parent / "cdi",
    )


def test_pre_start_recreates_the_devices_of_the_container(recreations: Recreations, backend: BinderBackend) -> None:
    """It is idempotent. The mode allows all users of an Android container."""
    backend.scan()
    for _ in range(2):
        backend.pre_start(["aosp_binder1"])
    assert recreations.recreated == ["aosp_binder1"] * 2
    assert scan(backend) == {"aosp_binder0": "", "aosp_binder1": ""}


def test_failed_recreation_makes_the_device_unhealthy_until_a_retry_succeeds(
    recreations: Recreations, backend: BinderBackend
) -> None:
    """The update of the host after each scan retries. The success requires a scan, because there is no file event."""
    backend.scan()
    recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: max= is reached")
    with pytest.raises(UnhealthyDeviceError, match="'aosp_binder1' could not be recreated: cannot recreate"):
        backend.pre_start(["aosp_binder1"])
    assert scan(backend) == {"aosp_binder0": "", "aosp_binder1": "not-recreated"}
    backend.update_host()
    assert backend.seconds_until_scan() is None, "the retry failed too, which changes nothing"
    recreations.failure = None
    backend.update_host()
    assert backend.seconds_until_scan() == 0.0
    backend.scan()
    assert [device.reason for device in backend.devices()] == ["", ""]
    assert recreations.recreated == ["aosp_binder1"]


def test_a_start_that_succeeds_ends_the_retries(recreations: Recreations, backend: BinderBackend) -> None:
    """A container has got the device: another recreation would take it away."""
    backend.scan()
    recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: max= is reached")
    for name in ("aosp_binder0", "aosp_binder1"):
        with pytest.raises(UnhealthyDeviceError):
            backend.pre_start([name])
    recreations.failure = None
    backend.pre_start(["aosp_binder1"])
    backend.update_host()
    assert recreations.recreated == ["aosp_binder1", "aosp_binder0"]


def test_device_that_another_plugin_has_replaced_is_not_recreated(
    recreations: Recreations, backend: BinderBackend, devices: DeviceDirectory
) -> None:
    """In a rolling update, the other plugin has given the fresh device to a container."""
    backend.scan()
    recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: max= is reached")
    with pytest.raises(UnhealthyDeviceError):
        backend.pre_start(["aosp_binder1"])
    fresh = devices.directory / "fresh"
    fresh.touch()
    fresh.rename(devices.directory / "aosp_binder1")
    recreations.failure = None
    backend.scan()
    backend.update_host()
    assert recreations.recreated == []
    assert scan(backend) == {"aosp_binder0": "", "aosp_binder1": ""}


def test_failed_provisioning_keeps_no_spec_from_being_written(devices: DeviceDirectory, tmp_path: Path) -> None:
    """The directory contains files, so that no binderfs can be mounted on it."""
    (devices.directory / "binder-control").unlink()
    backend = binder_backend(
        devices.directory,
        provision=Provision(count=3, directory=str(devices.directory)),
        device_list=(DeviceList.CDI_CRI,),
        cdi_dir=tmp_path / "cdi",
    )
    backend.scan()
    with pytest.raises(BackendError):
        backend.update_host()
    assert os.listdir(tmp_path / "cdi") != []


def provisioning(devices: DeviceDirectory) -> BinderBackend:
    return binder_backend("/none", provision=Provision(count=3, directory=str(devices.directory)))


def test_provisioned_devices_are_found_by_the_next_scan(
    devices: DeviceDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def provision(_self: DeviceProvisioner) -> int:
        devices.add(7)
        return 1

    monkeypatch.setattr(DeviceProvisioner, "provision", provision)
    backend = provisioning(devices)
    assert backend.creates_devices
    assert list(scan(backend)) == ["aosp_binder0", "aosp_binder1"]
    backend.update_host()
    assert list(scan(backend)) == ["aosp_binder0", "aosp_binder1", "aosp_binder7"]
    assert "provisioned binder devices" in caplog.text


async def test_kubelet_gets_provisioned_devices_with_the_first_list(
    device_directory: DeviceDirectory, kubelet_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceProvisioner, "provision", lambda _self: device_directory.add(0, 1, 2))
    plugin = DevicePlugin(provisioning(device_directory), kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).messages > 0)
        assert kubelet.resource(RESOURCE).allocatable == 3


async def test_failed_recreation_stops_the_container_and_is_published(
    recreations: Recreations, backend: BinderBackend, kubelet_dir: str
) -> None:
    """The failure causes a scan, because there is no file event."""
    plugin = DevicePlugin(backend, kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 2)
        pod = Pod("phone", [Container("main", {RESOURCE: 1})])
        await kubelet.admit(pod)
        recreations.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder0: max= is reached")
        with pytest.raises(AdmissionError, match="max= is reached"):
            await kubelet.start_container(pod, "main")
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)
