"""The kubelet's plugin directory: the clean-up at start, socket paths, the checkpoint file."""

import os
import socket
import stat
from pathlib import Path

import pytest

from kubelet_standin import KubeletVersion
from kubelet_standin.deviceplugin.checkpoint import FILE_NAME, Checkpoint
from kubelet_standin.deviceplugin.directory import SOCKET_NAME, PluginDirectory


@pytest.fixture
def files(kubelet_dir: str) -> set[str]:
    """Create one directory entry of each kind, and return their names."""
    os.mkdir(f"{kubelet_dir}/directory")
    Path(f"{kubelet_dir}/file").touch()
    Path(f"{kubelet_dir}/directory/inside").touch()
    Path(f"{kubelet_dir}/{FILE_NAME}").touch()
    os.symlink("directory/inside", f"{kubelet_dir}/link")
    os.symlink("nowhere", f"{kubelet_dir}/dangling")
    os.symlink("directory", f"{kubelet_dir}/link-to-directory")
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(f"{kubelet_dir}/plugin.sock")
    return set(os.listdir(kubelet_dir))


@pytest.mark.parametrize("version", KubeletVersion)
@pytest.mark.parametrize("keep_sockets", [False, True])
def test_sweep_removes_what_the_version_removes(
    kubelet_dir: str,
    files: set[str],
    version: KubeletVersion,
    keep_sockets: bool,  # noqa: FBT001
) -> None:
    """Versions before 1.33 remove everything but directories, and follow links; newer versions remove only sockets."""
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(f"{kubelet_dir}/{SOCKET_NAME}")
    PluginDirectory(kubelet_dir).prepare(version, keep_sockets=keep_sockets)
    removed = {"file", "link", "plugin.sock"} if version is KubeletVersion.V1_32 else {"plugin.sock"}
    assert set(os.listdir(kubelet_dir)) == (files if keep_sockets else files - removed)
    assert os.listdir(f"{kubelet_dir}/directory") == ["inside"]


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("a.sock", "/d/a.sock"), ("/a.sock", "/d/a.sock"), ("../a.sock", "/a.sock"), ("", "/d"), ("x/./y", "/d/x/y")],
)
def test_endpoint_path_is_joined_as_in_go(endpoint: str, path: str) -> None:
    assert PluginDirectory("/d").endpoint_path(endpoint) == path


def test_socket_path_is_limited_to_107_bytes() -> None:
    """The limit counts bytes, not characters."""
    longest = "/" + "a" * (107 - len("//kubelet.sock"))
    assert PluginDirectory(longest).socket_path == longest + "/kubelet.sock"
    with pytest.raises(OSError, match="longer than 107 bytes"):
        PluginDirectory(longest + "a")
    with pytest.raises(OSError, match="longer than 107 bytes"):
        PluginDirectory(longest[:-1] + "\u00fc")


def test_checkpoint_is_replaced_atomically(kubelet_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner can read the file. A failed write leaves the old content and no temporary file."""
    directory = PluginDirectory(kubelet_dir)
    for state in (Checkpoint(registered={"r/r": ("a",)}), Checkpoint()):
        directory.write_checkpoint(state)
        assert directory.read_checkpoint() == state
    assert stat.S_IMODE(os.stat(directory.checkpoint_path).st_mode) == 0o600

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        directory.write_checkpoint(Checkpoint(registered={"r/r": ("a",)}))
    assert directory.read_checkpoint() == Checkpoint()
    assert os.listdir(kubelet_dir) == [FILE_NAME]


def test_unreadable_checkpoint_is_empty(kubelet_dir: str, caplog: pytest.LogCaptureFixture) -> None:
    """A corrupt file is logged, an absent one is not."""
    directory = PluginDirectory(kubelet_dir)
    assert directory.read_checkpoint() == Checkpoint()
    assert not caplog.records
    Path(directory.checkpoint_path).touch()
    assert directory.read_checkpoint() == Checkpoint()
    assert "Device allocation info may NOT be up-to-date" in caplog.text
