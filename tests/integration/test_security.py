"""What somebody without root could hope to make of the plugin's own files, names and port.

What a container can do with what it was given is tried on a real kernel (``tests/e2e/kernel``); ``docs/security.md``
has both in one table.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.config import load
from aosp_plugin.daemon import page
from aosp_plugin.errors import ConfigError, UnhealthyDeviceError, UnknownDeviceError
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.framework.cdi.spec_file import SpecFile
from aosp_plugin.framework.service.http import serving
from aosp_plugin.testing import Kubelet
from tests.integration.test_binder_backend import backend, looked, needs_root
from tests.integration.test_http import LOCAL, raw
from tests.support import Nodes, listed, names, running, sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BLOCK = os.makedev(8, 0)
"""/dev/sda."""
NULL, ZERO = os.makedev(1, 3), os.makedev(1, 5)


@pytest.fixture(params=[0o000, 0o077], ids=["umask-000", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have files made under this umask."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: str | Path) -> int:
    """Return the permissions of the file itself."""
    return stat.S_IMODE(os.lstat(path).st_mode)


# Modes


async def test_the_socket_is_root_s_alone_whatever_the_umask(nodes: Nodes, kubelet_dir: str, umask: None) -> None:
    """Who may write to it could ask for devices in the kubelet's name."""
    async with Kubelet(kubelet_dir) as kubelet, running(nodes, kubelet_dir):
        await listed(kubelet, 0)
        assert [mode(os.path.join(kubelet_dir, name)) for name in sockets(kubelet_dir)] == [0o600]


def test_a_cdi_spec_is_never_anybody_else_s_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: None
) -> None:
    """Neither the file, nor the temporary one before it, nor the directory: a runtime does as root what it says."""
    seen: list[int] = []
    opened: Callable[..., int] = os.open

    def watching(path: str, flags: int, mode_: int = 0o777, **more: Any) -> int:
        descriptor = opened(path, flags, mode_, **more)
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    monkeypatch.setattr(os, "open", watching)
    spec = SpecFile(str(tmp_path / "cdi"), "aosp.io/binder")
    spec.write(b"{}")
    assert seen == [0o600], "the temporary file"
    assert (mode(spec.path), mode(tmp_path / "cdi")) == (0o644, 0o755)


# Links


def block(directory: Path) -> str:
    """Make a block device, and return its path."""
    os.mknod(directory / "disk", stat.S_IFBLK | 0o600, BLOCK)
    return str(directory / "disk")


def character(directory: Path) -> str:
    """Make a character device of another driver than before, and return its path."""
    os.mknod(directory / "zero", stat.S_IFCHR | 0o600, ZERO)
    return str(directory / "zero")


def subdirectory(directory: Path) -> str:
    """Make a directory, and return its path."""
    (directory / "inner").mkdir()
    return str(directory / "inner")


TRICKS: dict[str, tuple[Callable[[Path], str], str]] = {
    "a block device": (block, "not-a-device"),
    "a directory": (subdirectory, "missing"),
    "itself": (lambda _: "aosp_binder0", "missing"),
    "nowhere": (lambda _: "/nowhere", "missing"),
    "a file of /proc": (lambda _: "/proc/self/mem", "not-a-device"),
    "a descriptor of ours": (lambda _: "/proc/self/fd/0/../../mem", "missing"),
    "the disk by way of /proc": (lambda directory: f"/proc/self/root{block(directory)}", "not-a-device"),
}


@pytest.mark.parametrize("trick", TRICKS)
@needs_root
def test_a_link_to_what_is_no_node_is_never_handed_out(tmp_path: Path, trick: str) -> None:
    """It is no device, or an Unhealthy one, and Allocate refuses it by its name."""
    dev, (make, _) = tmp_path / "dev", TRICKS[trick]
    dev.mkdir()
    (dev / "aosp_binder0").symlink_to(make(tmp_path))
    made = backend(dev, verify=Verify.CHAR)
    assert looked(made).get("aosp_binder0") != "", "it is healthy"
    with pytest.raises((UnhealthyDeviceError, UnknownDeviceError), match="aosp_binder0"):
        made.allocate(["aosp_binder0"])


@pytest.mark.parametrize("trick", TRICKS)
@needs_root
def test_a_link_that_changes_between_look_and_use_is_refused(tmp_path: Path, trick: str) -> None:
    """Allocate looks at what stands there now; led back to the node, it is handed out again."""
    dev, (make, reason) = tmp_path / "dev", TRICKS[trick]
    dev.mkdir()
    os.mknod(tmp_path / "node", stat.S_IFCHR | 0o600, NULL)
    link = dev / "aosp_binder0"
    link.symlink_to(tmp_path / "node")
    made = backend(dev, verify=Verify.CHAR)
    assert looked(made) == {"aosp_binder0": ""}
    link.unlink()
    link.symlink_to(make(tmp_path))
    with pytest.raises(UnhealthyDeviceError, match=f"'aosp_binder0' is unhealthy: {reason}"):
        made.allocate(["aosp_binder0"])
    link.unlink()
    link.symlink_to(tmp_path / "node")
    assert [one.host_path for one in made.allocate(["aosp_binder0"]).devices] == [str(link)]


@needs_root
def test_a_link_to_another_driver_s_device_is_refused_by_verify_binder(tmp_path: Path) -> None:
    """Told to the kubelet as not-binder; the default takes any character device that root links to."""
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "aosp_binder0").symlink_to(character(tmp_path))
    assert looked(backend(dev, verify=Verify.CHAR)) == {"aosp_binder0": ""}
    made = backend(dev, verify=Verify.BINDER)
    assert looked(made) == {"aosp_binder0": "not-binder"}
    with pytest.raises(UnhealthyDeviceError, match="not-binder"):
        made.allocate(["aosp_binder0"])


# Names


PATHS = [
    "../../etc/passwd",
    "/etc/passwd",
    "aosp_binder0/../../../etc/passwd",
    "aosp_binder0/.",
    "aosp_binder0\0",
    "aosp_binder0\n",
    "aosp_binder0\nlevel=ERROR",
    "aosp_binder0::1",
    "",
    ".",
    "aosp_binder" + "0" * 5000,
]


async def test_an_id_that_tries_to_be_a_path_is_unknown(nodes: Nodes, kubelet_dir: str) -> None:
    """To Allocate and to PreStartContainer; what they answer has it quoted, on one line."""
    nodes.make(0)
    async with Kubelet(kubelet_dir) as kubelet, running(nodes, kubelet_dir):
        await listed(kubelet, 1)
        async with grpc.aio.insecure_channel(f"unix:{os.path.join(kubelet_dir, sockets(kubelet_dir)[0])}") as channel:
            stub = DevicePluginStub(channel)
            for path in PATHS:
                container = pb.ContainerAllocateRequest(devices_ids=["aosp_binder0", path])
                for call in (
                    stub.Allocate(pb.AllocateRequest(container_requests=[container])),
                    stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=[path])),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
                    assert refused.value.details() == f"device {path!r} is unknown"
        await listed(kubelet, 1)


async def test_a_file_name_that_tries_to_be_more_is_no_device(nodes: Nodes, kubelet_dir: str) -> None:
    """With a line's end, a comma, a space, an escape, bytes that are no text or too many: the others go on."""
    nodes.make(0)
    hostile = [b"\n", b",x", b" x", b"\x1b[2J", b"\xff\xfe", b"\xe2\x80\xae", b"x" * 60]
    for suffix in hostile:
        os.mknod(os.fsencode(nodes.directory) + b"/aosp_binder1" + suffix)
    async with Kubelet(kubelet_dir) as kubelet, running(nodes, kubelet_dir):
        await listed(kubelet, 1)
        assert list(kubelet.resource("aosp.io/binder").devices) == names([0])


@pytest.mark.parametrize("key", ["resource_name", "device_prefix"])
@pytest.mark.parametrize("value", ["../x", "/etc/x", "a.io/../x", "a.io/b/c", "a\0", "a.io/b\n", "..", "", "x" * 5000])
def test_a_resource_and_a_prefix_are_never_paths(tmp_path: Path, key: str, value: str) -> None:
    """A socket, a CDI file and a path in the container are called after them."""
    file = tmp_path / "config.yaml"
    file.write_text(f"version: v1\n{key}: {json.dumps(value)}\n")
    with pytest.raises(ConfigError, match=key):
        load({}, {}, str(file))


# The port


@pytest.mark.parametrize(
    "path",
    [
        *("/../etc/passwd", "//etc/passwd", "/page/../http.py", "/page/%2e%2e/http.py", "/page/..%2fhttp.py"),
        *("/page//main.js", "/page/main.js\0", "/page/./main.js", "/page/", "/page", "file:///etc/passwd", "*"),
        *("/page/" + "../" * 3000 + "etc/passwd", "http://127.0.0.1/page/main.js", "/PAGE/main.js", "/index.html"),
    ],
)
def test_a_path_is_looked_up_and_never_followed(path: str) -> None:
    """There are a few, which stand for themselves; what is answered to others has nothing of the request in it."""
    routes = page.routes()
    with serving(LOCAL, routes) as port:
        reply = raw(port, f"GET {path} HTTP/1.0\r\n\r\n".encode())
    head, _, body = reply.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.0 404 ")
    assert body == "not found\n"
