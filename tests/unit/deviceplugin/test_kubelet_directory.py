"""The kubelet's plugin directory: its check, the names of sockets, the sweep, and Register."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from aosp_plugin.errors import KubeletDirectoryError, RegistrationFailedError, RegistrationRefusedError
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as pb_grpc
from aosp_plugin.framework.deviceplugin import kubelet_client
from aosp_plugin.framework.deviceplugin.kubelet_client import (
    MAX_SOCKET_PATH,
    PluginDirectory,
    SocketIdentity,
    identify,
    register,
    socket_address,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

STEM = "aosp-aosp.io_binder"
ROOT = os.geteuid() == 0
OTHER = 65534


@contextlib.contextmanager
def listening(directory: str, name: str) -> Iterator[socket.socket]:
    """Listen on a socket inside the context, and leave its file behind, as a killed process does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(os.path.join(directory, name))
        server.listen(1)
        yield server


def stale(directory: str, *names: str) -> None:
    """Create stale sockets."""
    for name in names:
        with listening(directory, name):
            pass


def test_kubelet_socket_is_in_the_directory(kubelet_dir: str) -> None:
    assert PluginDirectory(kubelet_dir, STEM).kubelet_socket == f"{kubelet_dir}/kubelet.sock"


def test_usable_directory_passes_the_check(kubelet_dir: str) -> None:
    PluginDirectory(kubelet_dir, STEM).check()
    assert os.listdir(kubelet_dir) == []


@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_missing_directory_is_an_error(kubelet_dir: str, what: str) -> None:
    path = f"{kubelet_dir}/plugins"
    if what == "a file":
        open(path, "w", encoding="utf-8").close()
    with pytest.raises(KubeletDirectoryError, match=f"plugin directory {path} does not exist.*mounted"):
        PluginDirectory(path, STEM).check()


@pytest.mark.parametrize("mode", [0o500, 0o600])
def test_directory_that_is_not_writable_is_an_error(kubelet_dir: str, mode: int) -> None:
    script = (
        "import os, sys\n"
        "from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory\n"
        "from aosp_plugin.errors import KubeletDirectoryError\n"
        "import grpc\n"
        "if os.geteuid() == 0:\n"
        f"    os.setresgid({OTHER}, {OTHER}, {OTHER}); os.setresuid({OTHER}, {OTHER}, {OTHER})\n"
        "try:\n"
        "    PluginDirectory(sys.argv[1], 'x').check()\n"
        "except KubeletDirectoryError as error:\n"
        "    print(error)\n"
    )
    if ROOT:
        os.chown(kubelet_dir, OTHER, OTHER)
    os.chmod(kubelet_dir, mode)
    output = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", script, kubelet_dir], check=True, capture_output=True, text=True
    ).stdout
    os.chmod(kubelet_dir, 0o700)
    uid = OTHER if ROOT else os.getuid()
    assert f"plugin directory {kubelet_dir} is not writable for uid {uid}" in output


def test_path_too_long_for_a_socket_is_an_error(kubelet_dir: str) -> None:
    longest_name = len(f"{STEM}-4194304-10000000000000.sock")
    room = MAX_SOCKET_PATH - len(kubelet_dir) - 2 - longest_name
    fits, too_long = f"{kubelet_dir}/{'d' * room}", f"{kubelet_dir}/{'d' * (room + 3)}"
    os.mkdir(fits)
    os.mkdir(too_long)
    PluginDirectory(fits, STEM).check()
    with pytest.raises(KubeletDirectoryError, match=f"{too_long} is 3 bytes too long: .* at most 107"):
        PluginDirectory(too_long, STEM).check()


def test_path_length_is_counted_in_bytes(kubelet_dir: str) -> None:
    room = MAX_SOCKET_PATH - len(kubelet_dir) - 2 - len(f"{STEM}-4194304-10000000000000.sock")
    path = f"{kubelet_dir}/{'ü' * (room // 2 + 1)}"
    os.mkdir(path)
    with pytest.raises(KubeletDirectoryError, match="bytes too long"):
        PluginDirectory(path, STEM).check()


def test_endpoint_has_stem_process_and_time() -> None:
    assert PluginDirectory("/x", STEM).next_endpoint(1700000000.1239) == f"{STEM}-{os.getpid()}-1700000000123.sock"


def test_endpoints_are_unique_if_the_clock_stands_still_or_steps_back() -> None:
    directory = PluginDirectory("/x", STEM)
    made = [directory.next_endpoint(now) for now in (100.0, 100.0, 90.0, 90.0, 100.002, 101.0)]
    assert [int(name.split("-")[-1].removesuffix(".sock")) for name in made] == [
        100000,
        100001,
        100002,
        100003,
        100004,
        101000,
    ]


def test_endpoints_are_unique_after_a_restart_with_the_same_process_id() -> None:
    """In a container the process ID is the same after every restart."""
    first = PluginDirectory("/x", STEM).next_endpoint(100.0)
    assert PluginDirectory("/x", STEM).next_endpoint(100.5) != first


def test_sweep_removes_own_stale_sockets(kubelet_dir: str) -> None:
    names = [f"{STEM}-1-2.sock", f"{STEM}-4194304-1700000000123.sock"]
    stale(kubelet_dir, *names)
    assert sorted(PluginDirectory(kubelet_dir, STEM).sweep()) == sorted(names)
    assert os.listdir(kubelet_dir) == []
    assert PluginDirectory(kubelet_dir, STEM).sweep() == []


def test_sweep_keeps_other_files(kubelet_dir: str) -> None:
    others = [
        "kubelet.sock",
        "nvidia-gpu.sock",
        f"{STEM}.sock",
        f"{STEM}-1.sock",
        f"{STEM}-1-2-3.sock",
        f"{STEM}-x-2.sock",
        f"{STEM}-1-2.sock.old",
        f"{STEM}x-1-2.sock",
        f"x{STEM}-1-2.sock",
        f"{STEM.replace('.', 'x')}-1-2.sock",
        f"{STEM}-1-2xsock",
    ]
    stale(kubelet_dir, *others)
    with open(f"{kubelet_dir}/kubelet_internal_checkpoint", "w", encoding="utf-8"):
        pass
    assert PluginDirectory(kubelet_dir, STEM).sweep() == []
    assert len(os.listdir(kubelet_dir)) == len(others) + 1


def test_sweep_keeps_sockets_of_running_processes(kubelet_dir: str) -> None:
    stale(kubelet_dir, f"{STEM}-1-1.sock")
    with listening(kubelet_dir, f"{STEM}-1-2.sock"):
        assert PluginDirectory(kubelet_dir, STEM).sweep() == [f"{STEM}-1-1.sock"]
        assert os.listdir(kubelet_dir) == [f"{STEM}-1-2.sock"]


def test_sweep_keeps_a_socket_with_a_full_queue_of_connections(kubelet_dir: str) -> None:
    path = f"{kubelet_dir}/{STEM}-1-2.sock"
    with contextlib.ExitStack() as stack:
        stack.enter_context(listening(kubelet_dir, f"{STEM}-1-2.sock"))
        while True:
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.settimeout(0)
            if client.connect_ex(path) == errno.EAGAIN:
                break
        assert PluginDirectory(kubelet_dir, STEM).sweep() == []
        assert os.path.exists(path)


def test_sweep_ignores_a_socket_that_disappears_meanwhile(kubelet_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not kubelet_client._accepts_connections(os.path.join(kubelet_dir, f"{STEM}-1-2.sock"))
    stale(kubelet_dir, f"{STEM}-1-2.sock")
    monkeypatch.setattr(kubelet_client, "_accepts_connections", os.unlink)
    assert PluginDirectory(kubelet_dir, STEM).sweep() == [f"{STEM}-1-2.sock"]


def test_sweep_keeps_directories_and_implausible_numbers(kubelet_dir: str) -> None:
    os.mkdir(os.path.join(kubelet_dir, f"{STEM}-1-2.sock"))
    (Path(kubelet_dir) / f"{STEM}-1-{'2' * 150}.sock").touch()
    assert PluginDirectory(kubelet_dir, STEM).sweep() == []


def test_stem_is_not_a_pattern(kubelet_dir: str) -> None:
    stale(kubelet_dir, "a+(b-1-2.sock", "aa(b-1-2.sock")
    assert PluginDirectory(kubelet_dir, "a+(b").sweep() == ["a+(b-1-2.sock"]


def test_sweep_recognizes_every_endpoint(kubelet_dir: str) -> None:
    directory = PluginDirectory(kubelet_dir, STEM)
    names = {directory.next_endpoint(now) for now in (0.0, 1e9)}
    stale(kubelet_dir, *names)
    assert set(directory.sweep()) == names


def test_missing_file_has_no_identity(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert identify(str(tmp_path / "file" / "none")) is None
    assert identify(str(tmp_path / "none")) is None
    assert identify(str(tmp_path / "none" / "none")) is None


def test_file_keeps_its_identity_until_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    path.touch()
    seen = path.stat()
    first = identify(str(path))
    assert first == SocketIdentity(seen.st_dev, seen.st_ino, seen.st_ctime_ns)
    assert identify(str(path)) == first
    (tmp_path / "link").symlink_to(path)
    assert identify(str(tmp_path / "link")) == first
    other = tmp_path / "other"
    other.touch()
    os.replace(other, path)
    assert identify(str(path)) != first


def test_address_is_an_escaped_uri() -> None:
    assert socket_address("/var/lib/kubelet.sock") == "unix:/var/lib/kubelet.sock"
    assert socket_address("/a b%c#d") == "unix:/a%20b%25c%23d"


@pytest.mark.parametrize(
    ("text", "permanent"),
    [
        ('the ResourceName "nodomain" is invalid', True),
        ("requested API version v2 is not supported by kubelet. Supported versions are [v1beta1]", True),
        ("failed to get device plugin options", False),
        ("Connection refused", False),
    ],
)
def test_permanent_refusals_are_recognized_by_their_text(text: str, permanent: bool) -> None:  # noqa: FBT001
    assert (re.search(kubelet_client._PERMANENT, text) is not None) is permanent


REQUEST = pb.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="aosp.io/binder")


class Registration(pb_grpc.RegistrationServicer):
    """A kubelet that records requests, and optionally refuses them or never answers."""

    def __init__(self) -> None:
        self.requests: list[pb.RegisterRequest] = []
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.hangs = False

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802 - gRPC's name
        """Answer."""
        self.requests.append(request)
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal:
            await context.abort(*self.refusal)
        return pb.Empty()


@contextlib.asynccontextmanager
async def running_kubelet(path: str) -> AsyncIterator[Registration]:
    """Serve Register on a socket."""
    registration = Registration()
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(registration, server)
    server.add_insecure_port(socket_address(path))
    await server.start()
    try:
        yield registration
    finally:
        await server.stop(None)


async def test_request_arrives_at_a_socket_with_an_escaped_path(kubelet_dir: str) -> None:
    path = f"{kubelet_dir}/a b%20c.sock"
    async with running_kubelet(path) as registration:
        assert os.listdir(kubelet_dir) == ["a b%20c.sock"]
        await register(path, REQUEST, 10.0)
    assert registration.requests == [REQUEST]


async def test_permanent_refusal_is_a_refused_registration(kubelet_dir: str) -> None:
    path = f"{kubelet_dir}/kubelet.sock"
    async with running_kubelet(path) as registration:
        registration.refusal = (grpc.StatusCode.UNKNOWN, 'the ResourceName "x" is invalid')
        with pytest.raises(RegistrationRefusedError) as raised:
            await register(path, REQUEST, 10.0)
    assert str(raised.value) == f'the kubelet at {path} refuses aosp.io/binder: the ResourceName "x" is invalid'


async def test_other_refusals_are_failed_registrations(kubelet_dir: str) -> None:
    path = f"{kubelet_dir}/kubelet.sock"
    async with running_kubelet(path) as registration:
        registration.refusal = (grpc.StatusCode.UNKNOWN, "failed to get device plugin options")
        with pytest.raises(RegistrationFailedError, match=r"^UNKNOWN: failed to get device plugin options$"):
            await register(path, REQUEST, 10.0)
        registration.refusal = (grpc.StatusCode.INTERNAL, "")
        with pytest.raises(RegistrationFailedError, match=r"^INTERNAL: INTERNAL$"):
            await register(path, REQUEST, 10.0)


async def test_registration_fails_after_the_deadline(kubelet_dir: str) -> None:
    path = f"{kubelet_dir}/kubelet.sock"
    async with running_kubelet(path) as registration:
        registration.hangs = True
        with pytest.raises(RegistrationFailedError, match=r"^DEADLINE_EXCEEDED: "):
            await register(path, REQUEST, 0.2)


async def test_registration_fails_without_a_kubelet(kubelet_dir: str) -> None:
    with pytest.raises(RegistrationFailedError, match=r"^UNAVAILABLE: .*No such file or directory"):
        await register(f"{kubelet_dir}/kubelet.sock", REQUEST, 10.0)
    stale(kubelet_dir, "kubelet.sock")
    with pytest.raises(RegistrationFailedError, match=r"^UNAVAILABLE: .*Connection refused"):
        await register(f"{kubelet_dir}/kubelet.sock", REQUEST, 10.0)


async def test_authority_is_a_name_and_not_the_path_of_the_socket(kubelet_dir: str) -> None:
    """The kubelet's server rejects the escaped path that gRPC would send by default."""
    path, seen = f"{kubelet_dir}/kubelet.sock", bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\x04\0\0\0\0\0")  # an HTTP/2 frame with no settings
        while b":authority" not in seen and b"x.sock" not in seen and (data := await reader.read(4096)):
            seen.extend(data)
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        with pytest.raises(RegistrationFailedError):
            await register(path, REQUEST, 10.0)
    assert b"localhost" in seen
    assert b"kubelet.sock" not in seen
