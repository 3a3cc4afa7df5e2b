"""The kubelet's directory: what a start sweeps, where plugins are dialled, the checkpoint file."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.errors import KubeletDirectoryError
from aosp_plugin.testing import directory as disk
from aosp_plugin.testing.behaviour import Behaviour
from aosp_plugin.testing.checkpoint import FILE_NAME, Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield directory


def touch(path: str) -> None:
    with open(path, "wb"):
        pass


def furnish(place: str) -> None:
    """Leave one entry of each kind."""
    os.mkdir(f"{place}/directory")
    touch(f"{place}/file")
    touch(f"{place}/directory/inside")
    touch(f"{place}/{FILE_NAME}")
    os.symlink("directory/inside", f"{place}/link")
    os.symlink("nowhere", f"{place}/dangling")
    os.symlink("directory", f"{place}/link-to-directory")
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(f"{place}/plugin.sock")


def test_the_old_kubelet_sweeps_all_but_directories(place: str) -> None:
    """1.20 follows links: those to files go, those to directories stay, and so do those to nothing."""
    furnish(place)
    disk.sweep(place, Behaviour.OLD)
    assert set(os.listdir(place)) == {"directory", "link-to-directory", "dangling", FILE_NAME}
    assert os.listdir(f"{place}/directory") == ["inside"]


@pytest.mark.parametrize("behaviour", [Behaviour.BUGGY, Behaviour.NEW])
def test_newer_kubelets_sweep_only_sockets(place: str, behaviour: Behaviour) -> None:
    """Whatever else lies there stays."""
    furnish(place)
    before = set(os.listdir(place))
    disk.sweep(place, behaviour)
    assert set(os.listdir(place)) == before - {"plugin.sock"}


@pytest.mark.parametrize("behaviour", Behaviour)
def test_a_sweep_can_be_kept_from_all_but_the_kubelets_own_socket(place: str, behaviour: Behaviour) -> None:
    """So that what plugins left behind is still there when the kubelet listens again."""
    furnish(place)
    before = set(os.listdir(place))
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(f"{place}/{disk.SOCKET_NAME}")
    disk.sweep(place, behaviour, keep_sockets=True)
    assert set(os.listdir(place)) == before


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("a.sock", "/d/a.sock"), ("/a.sock", "/d/a.sock"), ("../a.sock", "/a.sock"), ("", "/d"), ("x/./y", "/d/x/y")],
)
def test_an_endpoint_is_joined_as_go_joins(endpoint: str, path: str) -> None:
    """An absolute endpoint stays inside the directory, one with dots may leave it."""
    assert disk.endpoint_path("/d", endpoint) == path


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    """107 bytes are the most, and bytes are counted, not characters."""
    longest = "/" + "a" * (107 - len("//kubelet.sock"))
    assert disk.socket_path(longest) == longest + "/kubelet.sock"
    with pytest.raises(KubeletDirectoryError, match="longer than 107 bytes"):
        disk.socket_path(longest + "a")
    with pytest.raises(KubeletDirectoryError):
        disk.socket_path(longest[:-1] + "\u00fc")


def test_a_socket_bound_under_an_alias_outlives_it(place: str) -> None:
    """The alias is gone afterwards, and the socket is in the directory."""
    with disk.alias(place) as name, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{name}/x.sock")
    assert not os.path.lexists(name)
    assert not os.path.exists(os.path.dirname(name))
    assert os.listdir(place) == ["x.sock"]


def test_a_checkpoint_is_replaced_as_a_whole(place: str) -> None:
    """The file is the owner's alone, can be read again, and no other file is left."""
    path = f"{place}/{FILE_NAME}"
    for state in (Checkpoint(), Checkpoint(registered={"r/r": ("a",)})):
        disk.write_checkpoint(path, state)
        assert disk.read_checkpoint(path) == state
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(place) == [FILE_NAME]


def test_a_write_that_fails_leaves_the_checkpoint_alone(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old content stays, and nothing lies about."""
    path = f"{place}/{FILE_NAME}"
    disk.write_checkpoint(path, Checkpoint())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        disk.write_checkpoint(path, Checkpoint(registered={"r/r": ("a",)}))
    assert disk.read_checkpoint(path) == Checkpoint()
    assert os.listdir(place) == [FILE_NAME]


def test_an_absent_checkpoint_is_empty(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """That is what a new node has, and nothing to warn of."""
    assert disk.read_checkpoint(f"{place}/{FILE_NAME}") == Checkpoint()
    assert not caplog.records


def test_a_corrupt_checkpoint_is_empty_with_a_warning(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The kubelet goes on without its memory."""
    path = f"{place}/{FILE_NAME}"
    touch(path)
    assert disk.read_checkpoint(path) == Checkpoint()
    assert "Device allocation info may NOT be up-to-date" in caplog.text


def test_removing_a_checkpoint_may_be_repeated(place: str) -> None:
    """It is gone either way."""
    path = f"{place}/{FILE_NAME}"
    touch(path)
    disk.remove_checkpoint(path)
    disk.remove_checkpoint(path)
    assert not os.path.exists(path)
