"""Attacks on the plugin's files, names and port, without root.

``tests/e2e/kernel`` tests attacks from containers on a real kernel. ``docs/security.md`` lists both.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.cdi import SpecFile
from aosp_plugin.framework.errors import UnhealthyDeviceError
from kubelet_standin import Kubelet
from tests.backends import binder_backend
from tests.integration.backend.test_binder_backend import needs_root
from tests.support import DeviceDirectory, listed, names, running, sockets

BLOCK = os.makedev(8, 0)
"""/dev/sda."""
NULL = os.makedev(1, 3)


@pytest.fixture(params=[0o000, 0o077], ids=["umask-000", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the umask for the test."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: str | Path) -> int:
    """Return the permissions of a file, without following links."""
    return stat.S_IMODE(os.lstat(path).st_mode)


# -- file modes


async def test_socket_is_private_under_any_umask(
    device_directory: DeviceDirectory, kubelet_dir: str, umask: None
) -> None:
    """Other users cannot request devices in the name of the kubelet."""
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 0)
        for_others = stat.S_IRWXG | stat.S_IRWXO
        assert [mode(os.path.join(kubelet_dir, name)) & for_others for name in sockets(kubelet_dir)] == [0]


def test_cdi_spec_is_not_writable_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: None) -> None:
    """Nor are its temporary file and its directory. A container runtime applies the spec as root."""
    modes: list[int] = []
    os_open: Callable[..., int] = os.open

    def record(path: str, flags: int, mode_: int = 0o777, **keywords: Any) -> int:
        descriptor = os_open(path, flags, mode_, **keywords)
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", record)
    spec = SpecFile(str(tmp_path / "cdi"), "aosp.io/binder")
    spec.write(b"{}")
    assert modes == [0o600]
    assert (mode(spec.path), mode(tmp_path / "cdi")) == (0o644, 0o755)


# -- links


def block(directory: Path) -> str:
    """Create a block device and return its path."""
    os.mknod(directory / "disk", stat.S_IFBLK | 0o600, BLOCK)
    return str(directory / "disk")


TARGETS: dict[str, tuple[Callable[[Path], str], str]] = {
    "a block device": (block, "not-a-device"),
    "a directory": (str, "missing"),
    "itself": (lambda _: "aosp_binder0", "missing"),
    "nowhere": (lambda _: "/nowhere", "missing"),
    "a file of /proc": (lambda _: "/proc/self/mem", "not-a-device"),
    "a descriptor of the plugin": (lambda _: "/proc/self/fd/0/../../mem", "missing"),
    "a block device through /proc": (lambda directory: f"/proc/self/root{block(directory)}", "not-a-device"),
}


@pytest.mark.parametrize("target", TARGETS)
@needs_root
def test_link_to_another_file_is_never_allocated(tmp_path: Path, target: str) -> None:
    """If the link leads to the device again, it is allocated."""
    dev, (create, reason) = tmp_path / "dev", TARGETS[target]
    dev.mkdir()
    os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, NULL)
    link = dev / "aosp_binder0"
    link.symlink_to(tmp_path / "device")
    binder = binder_backend(dev, verify=Verify.CHAR)
    assert binder.scan() == {"aosp_binder0": ""}
    link.unlink()
    link.symlink_to(create(tmp_path))
    assert binder.scan() == {"aosp_binder0": reason}
    with pytest.raises(UnhealthyDeviceError, match=f"'aosp_binder0' is unhealthy: {reason}"):
        binder.allocate(["aosp_binder0"])
    link.unlink()
    link.symlink_to(tmp_path / "device")
    assert binder.scan() == {"aosp_binder0": ""}
    assert [device.host_path for device in binder.allocate(["aosp_binder0"]).devices] == [str(link)]


@needs_root
def test_verify_binder_rejects_devices_of_other_drivers(tmp_path: Path) -> None:
    """``verify: char`` accepts every character device that root links to."""
    os.mknod(tmp_path / "aosp_binder0", stat.S_IFCHR | 0o600, NULL)
    assert binder_backend(tmp_path, verify=Verify.CHAR).scan() == {"aosp_binder0": ""}
    binder = binder_backend(tmp_path, verify=Verify.BINDER)
    assert binder.scan() == {"aosp_binder0": "not-binder"}
    with pytest.raises(UnhealthyDeviceError, match="not-binder"):
        binder.allocate(["aosp_binder0"])


# -- names

PATHS = [
    "../../etc/passwd",
    "aosp_binder0/.",
    "aosp_binder0\0",
    "aosp_binder0\nlevel=ERROR",
    "aosp_binder0::1",
    "",
    ".",
]


async def test_device_id_that_is_a_path_is_unknown(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """The error quotes the ID in one line."""
    device_directory.add(0)
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 1)
        async with grpc.aio.insecure_channel(f"unix:{os.path.join(kubelet_dir, sockets(kubelet_dir)[0])}") as channel:
            stub = DevicePluginStub(channel)
            for path in PATHS:
                container = pb.ContainerAllocateRequest(devices_ids=["aosp_binder0", path])
                for call in (
                    stub.Allocate(pb.AllocateRequest(container_requests=[container])),
                    stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=[path])),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as raised:
                        await call
                    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
                    assert raised.value.details() == f"device {path!r} is unknown"
        await listed(kubelet, 1)


async def test_hostile_file_names_are_not_advertised(device_directory: DeviceDirectory, kubelet_dir: str) -> None:
    """Other devices are still served."""
    device_directory.add(0)
    for suffix in (b"\n", b",x", b" x", b"\x1b[2J", b"\xff\xfe", b"\xe2\x80\xae", b"x" * 60):
        os.mknod(os.fsencode(device_directory.directory) + b"/aosp_binder1" + suffix)
    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 1)
        assert list(kubelet.resource("aosp.io/binder").devices) == names([0])
