"""The kubelet's plugin directory: its check, the names of sockets, the sweep, and Register."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.framework.errors import KubeletDirectoryError
from aosp_plugin.framework.sockets import (
    MAX_SOCKET_PATH,
    REGISTERED_MODE,
    OtherPlugin,
    PluginDirectory,
    identify,
    is_removed_mount,
)
from tests.support import LISTEN, other_process, run_without_rights

RESOURCE = "aosp.io/binder"
STEM = "aosp.io_binder"


@contextlib.contextmanager
def listening(path: str) -> Iterator[None]:
    """Listen on a socket inside the context, and leave its file behind, as a killed process does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        server.listen(9)
        yield


def stale(directory: str, *names: str) -> None:
    """Create stale sockets."""
    for name in names:
        with listening(f"{directory}/{name}"):
            pass


def test_missing_directory_is_an_error(kubelet_dir: str) -> None:
    (Path(kubelet_dir) / "file").touch()
    for name in ("none", "file"):
        path = f"{kubelet_dir}/{name}"
        with pytest.raises(KubeletDirectoryError, match=f"plugin directory {path} does not exist.*mounted"):
            PluginDirectory(path, RESOURCE).check()


def test_directory_that_is_not_writable_is_an_error(kubelet_dir: str) -> None:
    if os.geteuid() == 0:
        os.chown(kubelet_dir, 65534, 65534)
    os.chmod(kubelet_dir, 0o500)
    output = run_without_rights(
        "import sys, grpc; from aosp_plugin.framework.errors import KubeletDirectoryError as Error\n"
        "from aosp_plugin.framework.sockets import PluginDirectory",
        "try: PluginDirectory(sys.argv[1], 'x').check()\nexcept Error as error: print(error)",
        kubelet_dir,
    )
    os.chmod(kubelet_dir, 0o700)
    assert f"plugin directory {kubelet_dir} is not writable for uid {os.getuid() or 65534}" in output


def test_path_too_long_for_a_socket_is_an_error(kubelet_dir: str) -> None:
    """The length is counted in bytes."""
    room = MAX_SOCKET_PATH - len(kubelet_dir) - 2 - len(f".{STEM}-{os.getpid()}-1000000000000.sock")
    fits, too_long = f"{kubelet_dir}/{'d' * room}", f"{kubelet_dir}/{'d' * (room + 1)}ü"
    os.mkdir(fits)
    os.mkdir(too_long)
    PluginDirectory(fits, RESOURCE).check()
    assert os.listdir(fits) == []
    with pytest.raises(KubeletDirectoryError, match=f"{too_long} would have a path of 110 bytes, .* limit is 107: "):
        PluginDirectory(too_long, RESOURCE).check()


def test_directory_that_is_being_removed_is_no_removed_mount(kubelet_dir: str) -> None:
    """Another process removes one after the other; stat(2) finds many of them without links."""
    paths = [f"{kubelet_dir}/{number}" for number in range(2000)]
    for path in paths:
        os.mkdir(path)
    code = "import os, sys\nfor path in sys.argv[1:]: os.rmdir(path)"
    with subprocess.Popen([sys.executable, "-c", code, *paths]):  # noqa: S603 - our own
        for path in paths:
            while os.path.exists(path):
                assert not is_removed_mount(path)


def test_directory_without_links_that_is_no_mount_is_no_removed_mount(kubelet_dir: str) -> None:
    """Some file systems count no links of any directory."""
    path = f"{kubelet_dir}/removed"
    os.mkdir(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(path)
    try:
        assert os.stat(f"/proc/self/fd/{descriptor}").st_nlink == 0
        assert not is_removed_mount(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def test_endpoints_are_unique_if_the_clock_stands_still_or_steps_back() -> None:
    """They consist of stem, process and time in milliseconds."""
    directory = PluginDirectory("/x", RESOURCE)
    endpoints = [directory.next_endpoint(now) for now in (100.0, 100.0, 90.0, 100.0029, 101.0)]
    times = (100_000, 100_001, 100_002, 100_003, 101_000)
    assert endpoints == [f"{STEM}-{os.getpid()}-{milliseconds}.sock" for milliseconds in times]


def test_sweep_removes_own_stale_sockets(kubelet_dir: str) -> None:
    """It keeps those on which a process listens, and every endpoint is recognized."""
    directory = PluginDirectory(kubelet_dir, RESOURCE)
    names = {f"{STEM}-4194304-1700000000123.sock", directory.next_endpoint(0.0), directory.next_endpoint(1e9)}
    stale(kubelet_dir, *names)
    with listening(f"{kubelet_dir}/{STEM}-1-2.sock"):
        assert set(directory.sweep()) == names
        assert directory.sweep() == []
        assert os.listdir(kubelet_dir) == [f"{STEM}-1-2.sock"]


def test_sweep_keeps_other_files(kubelet_dir: str) -> None:
    """Sockets of others, directories, and numbers that no process and no clock has."""
    names = ["kubelet.sock", "{}.sock", "{}-1-2-3.sock", "{}-x-2.sock", "{}-1-2.sock.old", "x{}-1-2.sock"]
    stale(kubelet_dir, f"{STEM.replace('.', 'x')}-1-2.sock", *(name.format(STEM) for name in names))
    os.mkdir(os.path.join(kubelet_dir, f"{STEM}-1-2.sock"))
    (Path(kubelet_dir) / f"{STEM}-1-{'2' * 150}.sock").touch()
    before = sorted(os.listdir(kubelet_dir))
    assert PluginDirectory(kubelet_dir, RESOURCE).sweep() == []
    assert sorted(os.listdir(kubelet_dir)) == before


def test_other_plugins_are_other_processes_that_listen(kubelet_dir: str) -> None:
    """Stale sockets, those of this process and of other resources are none."""
    stale(kubelet_dir, f"{STEM}-1-2.sock")
    names = [f"{STEM}-7-30.sock", f"{STEM}-8-20.sock", f"{STEM}x-9-4.sock"]
    directory = PluginDirectory(kubelet_dir, RESOURCE)
    with contextlib.ExitStack() as stack:
        stack.enter_context(listening(f"{kubelet_dir}/{STEM}-1-3.sock"))
        processes = [stack.enter_context(other_process(LISTEN, f"{kubelet_dir}/{name}")) for name in names]
        os.chmod(f"{kubelet_dir}/{names[0]}", REGISTERED_MODE)
        expected = [(names[1], 20, processes[1].pid, False), (names[0], 30, processes[0].pid, True)]
        assert list(directory.other_plugins()) == expected
        assert list(directory.other_plugins(names[0])) == expected[:1]
    assert directory.other_plugins() == ()
    assert str(OtherPlugin("a.sock", 1, 7, registered=True)) == "a.sock (process 7)"
    assert str(OtherPlugin("a.sock", 1, 0, registered=True)) == "a.sock"


@pytest.mark.parametrize(
    ("other", "mode", "ended"),
    [("7-10", REGISTERED_MODE, [f"{STEM}-0-20.sock"]), ("7-10", 0o600, []), ("7-30", REGISTERED_MODE, [])],
)
def test_socket_of_a_registered_plugin_remains_for_an_earlier_one(
    kubelet_dir: str, other: str, mode: int, ended: list[str]
) -> None:
    """It counts as that of a plugin that has ended, although its server still has to stop."""
    directory = PluginDirectory(kubelet_dir, RESOURCE)
    other, name = f"{STEM}-{other}.sock", f"{STEM}-1-20.sock"
    with other_process(LISTEN, f"{kubelet_dir}/{other}"), listening(f"{kubelet_dir}/{name}"):
        os.chmod(f"{kubelet_dir}/{name}", mode)
        assert directory.ended_plugins(other) == []
        directory.remove(name)
        assert directory.ended_plugins(other) == ended
        assert sorted(os.listdir(kubelet_dir)) == sorted([other, *ended])
        assert [each.endpoint for each in directory.other_plugins()] == [other]


def test_socket_keeps_its_identity_until_it_is_replaced(tmp_path: Path) -> None:
    """A new mode, owner or hard link does not replace it. A restart of the kubelet does."""
    path = tmp_path / "kubelet.sock"
    assert identify(str(path)) is None
    with listening(str(path)):
        identity = identify(str(path))
        assert identity is not None
        changed = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == changed:  # the clock of the file system has steps of milliseconds
            path.chmod(0o600)
            path.chmod(0o700)
        os.link(path, tmp_path / "hard-link")
        (tmp_path / "link").symlink_to(path)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        assert identify(str(path)) == identify(str(tmp_path / "link")) == identity
    (tmp_path / "hard-link").unlink()
    path.unlink()
    with listening(str(path)):
        assert identify(str(path)) not in {None, identity}
