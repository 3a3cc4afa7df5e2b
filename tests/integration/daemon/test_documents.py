"""Serves the examples of docs/phones.md."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.sets import PHONE_BINDER_DEVICES
from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.documents import examples, status
from tests.support import DeviceDirectory, ServeHere, answered, free_port

EXAMPLES = examples()
PHONE = "aosp.io/phone"
BINDER = "aosp.io/binder"
COUNT = 361

EXPECTED = {
    "Phones on an unprepared host": {PHONE: (0, 2)},
    "Phones of found devices": {PHONE: (120, 120)},
    "Plain binder devices": {BINDER: (COUNT, COUNT)},
    "Shared devices": {PHONE: (0, 2)},
    "One of several GPUs": {PHONE: (0, 2)},
    "Files of each phone": {PHONE: (0, 2)},
    "One device, one phone": {PHONE: (2, 2)},
    "Several resources": {PHONE: (120, 121), "aosp.io/sidecar": (2, 2)},
    "CDI": {PHONE: (120, 121)},
    "NUMA": {BINDER: (COUNT, COUNT)},
}
"""The healthy and total devices that each example advertises, given 361 numbered devices, two devices of a sidecar and
the directories of two phones."""


def add_phones(devices: DeviceDirectory, *numbers: int) -> None:
    """Create the directories of phones with their binder devices."""
    for number in numbers:
        for name in PHONE_BINDER_DEVICES:
            path = devices.directory / f"phone{number}" / name
            path.parent.mkdir(exist_ok=True)
            path.touch()


@pytest.fixture
def devices(tmp_path: Path) -> DeviceDirectory:
    created = DeviceDirectory(tmp_path / "dev")
    created.add(*range(COUNT))
    add_phones(created, 1, 7)
    for number in range(2):
        (created.directory / f"sidecar_binder{number}").touch()
    return created


def served(devices: DeviceDirectory, kubelet_dir: str, example: str) -> ServeHere:
    """Return the plugin with an example as its configuration file, in temporary directories."""
    directory = devices.directory.parent
    file = directory / "config.yaml"
    # The plugin mounts nothing on a directory that has files, and its files count as binder devices.
    text = re.sub(r"(phones: {count: 120)}?", rf"\1, directory: {devices.directory}}}", EXAMPLES[example])
    file.write_text(text)
    device_dir = ["--device-dir", "/dev"] if "directory" in text else []
    environment = {"AOSP_PLUGIN_CDI_DIR": str(directory / "cdi")}
    return ServeHere(devices, kubelet_dir, "--config", str(file), *device_dir, environment=environment)


def test_every_example_is_expected_here() -> None:
    assert EXAMPLES.keys() == EXPECTED.keys()


@pytest.mark.parametrize("example", EXPECTED)
async def test_an_example_is_a_whole_configuration(devices: DeviceDirectory, kubelet_dir: str, example: str) -> None:
    async with Kubelet(kubelet_dir) as kubelet, served(devices, kubelet_dir, example):
        expected = EXPECTED[example]
        await kubelet.wait_for(lambda k: {name: counts(k, name) for name in expected} == expected)


def counts(kubelet: Kubelet, resource: str) -> tuple[int, int] | None:
    """Return the numbers of healthy and of all devices, or None before the first list."""
    view = kubelet.resource(resource)
    return (view.allocatable, view.capacity) if view.connected else None


async def test_the_status_output_in_the_readme_is_current(
    kubelet: Kubelet, pod_resources: PodResources, tmp_path: Path
) -> None:
    """The sample shows ten phones; one is incomplete, three are allocated."""
    devices = DeviceDirectory(tmp_path / "small")
    add_phones(devices, *range(10))
    (devices.directory / "phone5" / "hwbinder").unlink()
    file = tmp_path / "phones.yaml"
    file.write_text(EXAMPLES["One device, one phone"])
    port = free_port()
    address = f"127.0.0.1:{port}"
    flags = ("--config", str(file), "--listen", address)
    environment = {"AOSP_PLUGIN_POD_RESOURCES_SOCKET": pod_resources.path}
    async with ServeHere(devices, kubelet.directory, *flags, environment=environment):
        await answered(port, "/readyz", "ok: ")
        for number in range(3):
            await kubelet.admit(Pod(f"phone-{number}", [Container("android", {PHONE: 1})]))
        for found in ('"kubelet_allocatable":9', '"allocated":3'):  # the kubelet is asked 2 s after the registration
            await answered(port, "/status", found)
        command = [sys.executable, "-m", "aosp_plugin", "status", "--url", f"http://{address}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
    # The first two lines depend on the host.
    assert list(map(without_ages, out.decode().splitlines()[2:])) == list(map(without_ages, status()[1:]))


def without_ages(line: str) -> str:
    """Return a line with a letter instead of each age, and without its columns."""
    return " ".join(re.sub(r"\b\d+[smhd]\b", "A", line).split())
