"""The examples in examples/ serve their devices to a kubelet, as processes of their own."""

import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aosp_plugin.framework.apiserver import protocol
from kubelet_standin import Container, DraKubelet, Kubelet, Pod, PodResources
from kubelet_standin.apiserver import ApiServer
from tests.documents import PROJECT
from tests.support import PATIENCE, answered, free_port, http_get, listed, sockets

EXAMPLES = PROJECT / "examples"
SERIAL, KVM = "example.com/serial", "example.com/kvm"


@pytest.fixture
def devices() -> Iterator[Path]:
    """Return a directory whose path is short enough to be part of a device ID."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


@contextlib.asynccontextmanager
async def running(name: str, directory: Path, replacements: dict[str, str]) -> AsyncIterator[None]:
    """Run an example, with paths and ports of the host replaced, until the context ends; then stop it by SIGTERM."""
    text = (EXAMPLES / name).read_text()
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = directory / name
    path.write_text(text)
    process = await asyncio.create_subprocess_exec(sys.executable, str(path))
    try:
        yield
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def paths_in_container(kubelet: Kubelet, resource: str, count: int) -> list[str]:
    """Admit a pod that requests devices, and return the paths that its container gets."""
    admitted = await kubelet.admit(Pod("pod", [Container("main", {resource: count})]))
    return sorted(device.container_path for device in admitted.containers["main"].devices)


async def test_serial_ports_example_serves_ports_and_follows_hotplug(kubelet_dir: str, devices: Path) -> None:
    replacements = {
        '"/dev/ttyUSB*"': f"'{devices}/ttyUSB*'",
        "list_ports))": f"list_ports, directories=['{devices}']), kubelet_dir='{kubelet_dir}')",
    }
    (devices / "ttyUSB0").touch()
    async with Kubelet(kubelet_dir) as kubelet, running("serial_ports.py", devices, replacements):
        await listed(kubelet, 1, SERIAL)
        (devices / "ttyUSB1").touch()
        await listed(kubelet, 2, SERIAL)
        assert await paths_in_container(kubelet, SERIAL, 2) == [f"{devices}/ttyUSB0", f"{devices}/ttyUSB1"]
        (devices / "ttyUSB1").unlink()
        await listed(kubelet, 1, SERIAL)
        assert kubelet.resource(SERIAL).capacity == 1
    assert sockets(kubelet_dir) == []


async def test_kvm_example_serves_slots_of_one_device_and_metrics(
    kubelet: Kubelet, pod_resources: PodResources, devices: Path
) -> None:
    """They include how many devices the kubelet has."""
    kvm, port = devices / "kvm", free_port()
    served = f"kubelet_dir='{kubelet.directory}', pod_resources_socket='{pod_resources.path}'"
    replacements = {
        '"/dev/kvm"': f"'{kvm}'",
        "list_devices),": f"list_devices, directories=['{devices}']), {served},",
        "127.0.0.1:9480": f"127.0.0.1:{port}",
    }
    async with running("kvm_slots.py", devices, replacements):
        await listed(kubelet, 0, KVM)
        kvm.touch()
        await listed(kubelet, 100, KVM)
        assert await paths_in_container(kubelet, KVM, 60) == [str(kvm)]

        assert (await http_get(port, "/healthz"))[::2] == (200, "ok\n")
        _, ready = await answered(port, "/readyz", " healthy devices allocatable\n")
        assert ready == f"ok: {KVM}: 100 of 100 healthy devices allocatable\n"
        _, _, metrics = await http_get(port, "/metrics")
        assert f'device_plugin_devices{{health="healthy",reason="",resource="{KVM}"}} 100.0' in metrics
        assert f'device_plugin_kubelet_allocatable{{resource="{KVM}"}} 100.0' in metrics
    assert sockets(kubelet.directory) == []


async def test_serial_ports_dra_example_publishes_ports_with_their_vendor(
    devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server has TLS and requires the token of the service account, as for a pod."""
    sysfs = devices / "sys"
    (sysfs / "ttyUSB0/device").mkdir(parents=True)
    (sysfs / "ttyUSB0/device/../../idVendor").resolve().write_text("0403\n")
    (devices / "ttyUSB0").symlink_to("/dev/null")
    async with ApiServer(tls=True) as server:
        server.objects.create(protocol.NODES, {"metadata": {"name": "worker"}})
        (devices / "account").mkdir()
        server.write_service_account(str(devices / "account"))
        for name, value in {**server.environment, "NODE_NAME": "worker"}.items():
            monkeypatch.setenv(name, value)
        replacements = {
            "/dev/ttyUSB*": f"{devices}/ttyUSB*",
            "/sys/class/tty": str(sysfs),
            'listen="127.0.0.1:9480"': f'kubelet_root="{devices}", service_account_dir="{devices}/account"',
        }
        async with (
            DraKubelet(devices / "plugins_registry") as kubelet,
            running("serial_ports_dra.py", devices, replacements),
        ):
            await kubelet.wait_for(lambda each: each.connected("serial.example.com"))
            await server.wait_for(lambda each: each.objects.list(protocol.RESOURCE_SLICES))
            (published,) = server.objects.list(protocol.RESOURCE_SLICES)
            (device,) = published["spec"]["devices"]
            assert device["attributes"]["vendor"] == {"string": "0403"}
