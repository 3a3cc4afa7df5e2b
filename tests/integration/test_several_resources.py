"""Several resources in one process, each with its own binder devices and registration."""

from pathlib import Path

import pytest

from kubelet_standin import Container, Kubelet, Pod
from tests.support import DeviceDirectory, Serve, ServeHere, listed

PHONE, SIDECAR = "aosp.io/phone", "aosp.io/sidecar"


@pytest.fixture
def devices(tmp_path: Path) -> DeviceDirectory:
    """Return a directory with two sets of three binder devices, and two binder devices with another prefix."""
    devices = DeviceDirectory(tmp_path / "dev")
    devices.add(*range(6))
    for number in range(2):
        (devices.directory / f"sidecar_binder{number}").touch()
    return devices


def write_config(devices: DeviceDirectory, *, prefix: str = "sidecar_binder") -> Path:
    """Write a configuration with two resources, and return its path."""
    path = devices.directory.parent / "config.yaml"
    path.write_text(
        f"version: v1\nresources:\n"
        f"  - {{resource_name: {PHONE}, sets: {{size: 3}}}}\n"
        f"  - {{resource_name: {SIDECAR}, device_prefix: {prefix}, visible_devices_env: SIDECARS}}\n"
    )
    return path


async def both_listed(kubelet: Kubelet, phones: int, sidecars: int) -> None:
    """Wait until the kubelet has this many devices of each resource."""
    await listed(kubelet, phones, PHONE)
    await listed(kubelet, sidecars, SIDECAR)


async def test_each_resource_has_its_own_devices_and_registration(devices: DeviceDirectory, kubelet_dir: str) -> None:
    async with Kubelet(kubelet_dir) as kubelet, ServeHere(devices, kubelet_dir, "--config", str(write_config(devices))):
        await both_listed(kubelet, 2, 2)
        assert sorted(registration.resource_name for registration in kubelet.registrations) == [PHONE, SIDECAR]
        assert len({registration.endpoint for registration in kubelet.registrations}) == 2
        admitted = await kubelet.admit(Pod("phone", [Container("main", {PHONE: 1, SIDECAR: 1})]))
        main = admitted.containers["main"]
        assert main.envs["BINDER_VISIBLE_DEVICES"] == "aosp_binder0,aosp_binder1,aosp_binder2"
        assert main.envs["SIDECARS"] == "sidecar_binder0"
        paths = {device.container_path for device in main.devices}
        assert paths == {*(f"/dev/aosp_binder{number}" for number in range(3)), "/dev/sidecar_binder0"}


async def test_binder_device_of_two_resources_through_a_link_is_an_error(
    devices: DeviceDirectory, kubelet_dir: str
) -> None:
    link = devices.directory / "sidecar_binder7"
    link.symlink_to("aosp_binder4")
    async with Serve(devices, kubelet_dir, "--config", str(write_config(devices))) as serve:
        line = await serve.logged("belongs to both")
        assert f"{link} ({devices.directory}/aosp_binder4 of {PHONE})" in line
        assert f"{PHONE} and {SIDECAR}" in line
        assert await serve.finish() == 2
