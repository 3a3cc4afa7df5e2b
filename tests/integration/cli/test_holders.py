"""``aosp-plugin holders`` with real processes, and where a process makes the search wait."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.holders import Holder, Search, Unread
from aosp_plugin.binder.devices.scanner import BinderDevice
from aosp_plugin.binder.driver.host import HostError
from aosp_plugin.cli import holders
from tests.processes import Proc, plain_device
from tests.support import DeviceDirectory


@contextlib.contextmanager
def holding(path: Path) -> Iterator[int]:
    """Run a process that holds a file open; yield its PID."""
    with path.open() as file:
        process = subprocess.Popen(["sleep", "300"], stdin=file)  # noqa: S607 - any sleep
    with process:
        yield process.pid
        process.kill()


@pytest.fixture
def device(tmp_path: Path) -> BinderDevice:
    return plain_device(tmp_path / "n0")


def test_holders_are_one_row_for_each_device_and_place(tmp_path: Path) -> None:
    """The command is that of the first process. The devices are found as the plugin finds them."""
    devices = DeviceDirectory(tmp_path / "dev")
    devices.add(0, 1)
    path = devices.directory / "aosp_binder1"
    with holding(path) as first, holding(path) as second:
        command = [sys.executable, "-m", "aosp_plugin", "holders", "--device-dir", str(devices.directory)]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert shown.returncode in {0, 3}, shown.stderr  # 3: not all processes of the machine are visible to this user
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("aosp_binder")]
    pid = min(first, second)
    assert re.fullmatch(rf"aosp_binder1 +\S.* +{os.getuid()} +2 +{pid} +sleep 300", row)


def test_process_that_makes_the_search_wait_is_named_and_the_search_goes_on(
    tmp_path: Path, device: BinderDevice
) -> None:
    """A read that never ends: of a pipe that nobody writes."""
    proc = Proc(tmp_path)
    for pid in (70, 71, 72):
        proc.process(pid, device.path)
    (tmp_path / "71/cmdline").unlink()
    os.mkfifo(tmp_path / "71/cmdline")
    first, waits, last = holders.search(Search([device], str(tmp_path)), patience=0.2)
    assert isinstance(first, Holder)
    assert isinstance(last, Holder)
    assert (first.pid, last.pid) == (70, 72)
    assert waits == Unread(71, "no answer within 0.2 s")


def test_search_that_fails_is_an_error(tmp_path: Path, device: BinderDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an empty result."""
    Proc(tmp_path).process(70, device.path)
    monkeypatch.setattr(Search, "read", None)
    with pytest.raises(HostError, match="search for processes has failed"):
        list(holders.search(Search([device], str(tmp_path))))
