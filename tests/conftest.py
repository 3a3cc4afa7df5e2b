"""Fixtures shared by all tests."""

import contextlib
import errno
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from aosp_plugin.framework.file_events import MountEvents
from tests import own_mounts
from tests.support import Clock, DeviceDirectory
from tests.systemd import Systemd
from tests.tmpfs_binderfs import Mounts

# Every run uses the same examples, without a deadline, and writes nothing into the checkout.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")

own_mounts.enter()

# Git sets them for hooks and `rebase --exec`: the repositories that tests make would be the checkout's.
for variable in ("GIT_COMMON_DIR", "GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
    os.environ.pop(variable, None)

# A shell starts background jobs with SIGINT ignored; the processes that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def device_directory(tmp_path: Path) -> DeviceDirectory:
    """Return an empty device directory."""
    return DeviceDirectory(tmp_path / "dev")


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Return a directory with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="short-") as directory:
        yield Path(directory)


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    """Yield the directory of phones with real mounts, which does not exist yet."""
    if os.geteuid() != 0:
        pytest.skip("mounts, which requires root")
    with contextlib.closing(Mounts(tmp_path / "phones", monkeypatch)) as mounted:
        yield mounted


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    """Yield the socket of systemd, for the environment of a service."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(0.0)
        yield Systemd(receiver)


@pytest.fixture
def no_mount_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide all changes of the mount table, so that other mounts on this machine cause no scans."""
    monkeypatch.setattr(MountEvents, "_report", lambda self: self._poll.poll(0))


@pytest.fixture
def no_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make inotify unavailable, as if the limit of instances on this host were reached."""

    def unavailable(_loop: object) -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    monkeypatch.setattr("aosp_plugin.framework.file_events.Inotify", unavailable)
