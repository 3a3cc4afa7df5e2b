"""The kubelet's directory and socket: what is checked, what a plugin's sockets are called, what is swept away."""

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
NOBODY = 65534


@contextlib.contextmanager
def listening(directory: str, name: str) -> Iterator[socket.socket]:
    """Listen on a socket, and leave its file behind when the context ends, as a killed process does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(os.path.join(directory, name))
        server.listen(1)
        yield server


def stale(directory: str, *names: str) -> None:
    """Leave sockets behind on which nobody listens."""
    for name in names:
        with listening(directory, name):
            pass


def test_the_kubelet_s_socket_has_its_name(kubelet_dir: str) -> None:
    """It stands in the same directory as the plugin's own."""
    assert PluginDirectory(kubelet_dir, STEM).kubelet_socket == f"{kubelet_dir}/kubelet.sock"


def test_a_usable_directory_passes(kubelet_dir: str) -> None:
    """Nothing is said of it, and nothing is left in it."""
    PluginDirectory(kubelet_dir, STEM).check()
    assert os.listdir(kubelet_dir) == []


@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_a_missing_directory_is_an_error(kubelet_dir: str, what: str) -> None:
    """The text says where it was looked for and what may be the matter."""
    path = f"{kubelet_dir}/plugins"
    if what == "a file":
        open(path, "w", encoding="utf-8").close()
    with pytest.raises(KubeletDirectoryError, match=f"plugin directory {path} does not exist.*mounted"):
        PluginDirectory(path, STEM).check()


@pytest.mark.parametrize("mode", [0o500, 0o600])
def test_a_directory_that_is_not_writable_is_an_error(kubelet_dir: str, mode: int) -> None:
    """Both the right to write and the right to enter are needed; a user other than root has them not."""
    script = (
        "import os, sys\n"
        "from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory\n"
        "from aosp_plugin.errors import KubeletDirectoryError\n"
        "import grpc\n"
        "if os.geteuid() == 0:\n"
        f"    os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "try:\n"
        "    PluginDirectory(sys.argv[1], 'x').check()\n"
        "except KubeletDirectoryError as error:\n"
        "    print(error)\n"
    )
    if ROOT:
        os.chown(kubelet_dir, NOBODY, NOBODY)
    os.chmod(kubelet_dir, mode)
    told = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", script, kubelet_dir], check=True, capture_output=True, text=True
    ).stdout
    os.chmod(kubelet_dir, 0o700)
    uid = NOBODY if ROOT else os.getuid()
    assert f"plugin directory {kubelet_dir} is not writable for uid {uid}" in told


def test_a_path_too_long_for_a_socket_is_an_error(kubelet_dir: str) -> None:
    """The longest name that a socket may get is counted, and the text says by how much it is too long."""
    longest_name = len(f"{STEM}-4194304-10000000000000.sock")
    room = MAX_SOCKET_PATH - len(kubelet_dir) - 2 - longest_name
    fits, too_long = f"{kubelet_dir}/{'d' * room}", f"{kubelet_dir}/{'d' * (room + 3)}"
    os.mkdir(fits)
    os.mkdir(too_long)
    PluginDirectory(fits, STEM).check()
    with pytest.raises(KubeletDirectoryError, match=f"{too_long} is 3 bytes too long: .* at most 107"):
        PluginDirectory(too_long, STEM).check()


def test_the_length_is_counted_in_bytes(kubelet_dir: str) -> None:
    """A character of two bytes takes two bytes of the socket's path."""
    room = MAX_SOCKET_PATH - len(kubelet_dir) - 2 - len(f"{STEM}-4194304-10000000000000.sock")
    path = f"{kubelet_dir}/{'ü' * (room // 2 + 1)}"
    os.mkdir(path)
    with pytest.raises(KubeletDirectoryError, match="bytes too long"):
        PluginDirectory(path, STEM).check()


def test_the_longest_path_is_the_kernel_s(kubelet_dir: str) -> None:
    """A socket can be bound to a path of 107 bytes, and not to one of 108."""
    for length, fits in ((MAX_SOCKET_PATH, True), (MAX_SOCKET_PATH + 1, False)):
        name = "s" * (length - len(kubelet_dir) - 1)
        with (
            contextlib.nullcontext() if fits else pytest.raises(OSError, match="too long"),
            listening(kubelet_dir, name),
        ):
            pass


def test_an_endpoint_is_the_stem_the_process_and_the_time() -> None:
    """In milliseconds, so that a restart a moment later gets another one."""
    assert PluginDirectory("/x", STEM).next_endpoint(1700000000.1239) == f"{STEM}-{os.getpid()}-1700000000123.sock"


def test_endpoints_differ_when_the_clock_stands_or_steps_back() -> None:
    """Each number is at least one more than the last."""
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


def test_endpoints_differ_after_a_restart_with_the_same_process_id() -> None:
    """In a container the process has the same number after every restart; the time goes on."""
    first = PluginDirectory("/x", STEM).next_endpoint(100.0)
    assert PluginDirectory("/x", STEM).next_endpoint(100.5) != first


def test_the_sweep_removes_own_sockets_on_which_nobody_listens(kubelet_dir: str) -> None:
    """They were left by a predecessor that was killed."""
    names = [f"{STEM}-1-2.sock", f"{STEM}-4194304-1700000000123.sock"]
    stale(kubelet_dir, *names)
    assert sorted(PluginDirectory(kubelet_dir, STEM).sweep()) == sorted(names)
    assert os.listdir(kubelet_dir) == []
    assert PluginDirectory(kubelet_dir, STEM).sweep() == []


def test_the_sweep_leaves_everything_else(kubelet_dir: str) -> None:
    """Neither other plugins' sockets nor the kubelet's own, nor names that only resemble the own ones."""
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


def test_the_sweep_leaves_a_socket_on_which_a_process_listens(kubelet_dir: str) -> None:
    """During a rolling update the old plugin and the new one are there for a moment."""
    stale(kubelet_dir, f"{STEM}-1-1.sock")
    with listening(kubelet_dir, f"{STEM}-1-2.sock"):
        assert PluginDirectory(kubelet_dir, STEM).sweep() == [f"{STEM}-1-1.sock"]
        assert os.listdir(kubelet_dir) == [f"{STEM}-1-2.sock"]


def test_the_sweep_leaves_a_socket_whose_process_is_too_busy_to_accept(kubelet_dir: str) -> None:
    """A full queue of connections means that somebody listens, and the sweep does not wait for him."""
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


def test_the_sweep_takes_a_socket_that_went_away_for_swept(kubelet_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may sweep at the same time: before the connection is tried, or after."""
    assert not kubelet_client._accepts_connections(os.path.join(kubelet_dir, f"{STEM}-1-2.sock"))
    stale(kubelet_dir, f"{STEM}-1-2.sock")
    monkeypatch.setattr(kubelet_client, "_accepts_connections", os.unlink)
    assert PluginDirectory(kubelet_dir, STEM).sweep() == [f"{STEM}-1-2.sock"]


def test_the_sweep_leaves_what_is_no_socket_of_a_plugin(kubelet_dir: str) -> None:
    """A directory, or a file whose number no plugin would choose, only looks like one."""
    os.mkdir(os.path.join(kubelet_dir, f"{STEM}-1-2.sock"))
    (Path(kubelet_dir) / f"{STEM}-1-{'2' * 150}.sock").touch()
    assert PluginDirectory(kubelet_dir, STEM).sweep() == []


def test_the_stem_is_taken_as_it_is(kubelet_dir: str) -> None:
    """Characters that mean something in a pattern mean themselves."""
    stale(kubelet_dir, "a+(b-1-2.sock", "aa(b-1-2.sock")
    assert PluginDirectory(kubelet_dir, "a+(b").sweep() == ["a+(b-1-2.sock"]


def test_every_endpoint_of_a_plugin_would_be_swept(kubelet_dir: str) -> None:
    """The names that are made and the names that are removed are the same ones."""
    directory = PluginDirectory(kubelet_dir, STEM)
    names = {directory.next_endpoint(now) for now in (0.0, 1e9)}
    stale(kubelet_dir, *names)
    assert set(directory.sweep()) == names


def test_no_file_has_no_identity(tmp_path: Path) -> None:
    """Neither a missing file nor one in a missing directory, nor one below a file."""
    (tmp_path / "file").touch()
    assert identify(str(tmp_path / "file" / "none")) is None
    assert identify(str(tmp_path / "none")) is None
    assert identify(str(tmp_path / "none" / "none")) is None


def test_a_file_keeps_its_identity_until_another_takes_its_place(tmp_path: Path) -> None:
    """Whatever link leads to it; one that was removed and made anew is another, even with the same inode number."""
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


def test_an_address_is_a_uri() -> None:
    """Characters that mean something in one are escaped, so that gRPC finds the file."""
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
def test_refusals_that_no_retry_heals_are_known_by_their_words(text: str, permanent: bool) -> None:  # noqa: FBT001
    """They come through gRPC with a code that says nothing."""
    assert (re.search(kubelet_client._PERMANENT, text) is not None) is permanent


REQUEST = pb.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="aosp.io/binder")


class Registration(pb_grpc.RegistrationServicer):
    """A kubelet that notes what it is sent, and refuses in the words that it was given, or never answers."""

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
async def a_kubelet(path: str) -> AsyncIterator[Registration]:
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


async def test_a_plugin_registers_at_a_socket_whatever_its_path(kubelet_dir: str) -> None:
    """The request arrives as it was made, at a path with characters that a URI escapes."""
    path = f"{kubelet_dir}/a b%20c.sock"
    async with a_kubelet(path) as registration:
        assert os.listdir(kubelet_dir) == ["a b%20c.sock"]
        await register(path, REQUEST, 10.0)
    assert registration.requests == [REQUEST]


async def test_a_refusal_that_no_retry_heals_is_told_as_such(kubelet_dir: str) -> None:
    """The text names the kubelet, the resource and the kubelet's reason."""
    path = f"{kubelet_dir}/kubelet.sock"
    async with a_kubelet(path) as registration:
        registration.refusal = (grpc.StatusCode.UNKNOWN, 'the ResourceName "x" is invalid')
        with pytest.raises(RegistrationRefusedError) as raised:
            await register(path, REQUEST, 10.0)
    assert str(raised.value) == f'the kubelet at {path} refuses aosp.io/binder: the ResourceName "x" is invalid'


async def test_any_other_refusal_is_tried_again(kubelet_dir: str) -> None:
    """The text has the code and what the kubelet said, or the code alone where it said nothing."""
    path = f"{kubelet_dir}/kubelet.sock"
    async with a_kubelet(path) as registration:
        registration.refusal = (grpc.StatusCode.UNKNOWN, "failed to get device plugin options")
        with pytest.raises(RegistrationFailedError, match=r"^UNKNOWN: failed to get device plugin options$"):
            await register(path, REQUEST, 10.0)
        registration.refusal = (grpc.StatusCode.INTERNAL, "")
        with pytest.raises(RegistrationFailedError, match=r"^INTERNAL: INTERNAL$"):
            await register(path, REQUEST, 10.0)


async def test_a_kubelet_that_does_not_answer_is_given_up(kubelet_dir: str) -> None:
    """After the deadline the attempt has failed."""
    path = f"{kubelet_dir}/kubelet.sock"
    async with a_kubelet(path) as registration:
        registration.hangs = True
        with pytest.raises(RegistrationFailedError, match=r"^DEADLINE_EXCEEDED: "):
            await register(path, REQUEST, 0.2)


async def test_a_kubelet_that_is_not_there_is_tried_again(kubelet_dir: str) -> None:
    """No socket and a socket without a process are both failures of this attempt alone."""
    with pytest.raises(RegistrationFailedError, match=r"^UNAVAILABLE: .*No such file or directory"):
        await register(f"{kubelet_dir}/kubelet.sock", REQUEST, 10.0)
    stale(kubelet_dir, "kubelet.sock")
    with pytest.raises(RegistrationFailedError, match=r"^UNAVAILABLE: .*Connection refused"):
        await register(f"{kubelet_dir}/kubelet.sock", REQUEST, 10.0)


async def test_the_authority_is_a_name_and_not_the_socket_s_path(kubelet_dir: str) -> None:
    """A kubelet's server refuses the escaped path that gRPC would send; the request is read as it is on the wire."""
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
