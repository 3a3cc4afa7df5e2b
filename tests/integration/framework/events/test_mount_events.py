"""A change of the real mount table wakes every subscription."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.framework.events.file_events import FileEvents
from tests.support import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems, which requires root")


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs; what is mounted in it later is unmounted too."""
    run("mount", "-t", "tmpfs", "none", tmp_path)
    run("mount", "--make-private", tmp_path)
    yield tmp_path
    run("umount", "--recursive", "--lazy", tmp_path)


def run(*command: str | Path) -> None:
    """Run a command."""
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - fixed commands


async def test_each_change_of_a_mount_wakes_every_subscription(top: Path) -> None:
    """Whatever it is, and whether or not the mount is below a watched directory."""
    for name in ("a", "b"):
        (top / name).mkdir()
    (top / "file").touch()
    commands: list[list[str | Path]] = [
        ["mount", "-t", "tmpfs", "none", top / "a"],
        ["mount", "-o", "remount,bind,ro", top / "a"],
        ["mount", "--move", top / "a", top / "b"],
        ["umount", top / "b"],
        ["mount", "--bind", "/dev/null", top / "file"],
        ["umount", top / "file"],
        ["mount", "--bind", top, top],
        ["umount", top],
    ]
    with contextlib.closing(FileEvents()) as events:
        subscriptions = [events.subscribe(), events.subscribe()]
        for command in commands:
            await asyncio.to_thread(run, *command)
            for subscription in subscriptions:
                await asyncio.wait_for(subscription.changed.wait(), PATIENCE)
                subscription.changed.clear()


async def test_missing_table_is_an_error_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no mount would be reported."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("aosp_plugin.framework.events.file_events.MOUNT_TABLE", "/proc/self/none")
    with pytest.raises(FileNotFoundError):
        FileEvents()
    assert len(os.listdir("/proc/self/fd")) == before
