"""The guard: which paths may hang, and what a call on a file system that hangs costs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.driver import guard, mounts
from aosp_plugin.binder.driver.guard import Guard
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.errors import NotRespondingError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hanging_fs import HangingFileSystem

TABLE = r"""
22 1 254:0 / / rw - ext4 /dev/root rw
23 22 0:5 / /dev rw - devtmpfs udev rw
24 23 0:27 / /dev/binderfs rw - binder binder rw
30 22 0:31 / /mnt/nfs rw - nfs4 server:/ rw,hard
31 30 0:32 / /mnt/nfs/tmp rw - tmpfs tmpfs rw
32 22 0:33 / /mnt/a\040b rw - fuse.sshfs host: rw
33 22 0:34 / /mnt/covered rw - fuse old rw
34 33 0:35 / /mnt/covered rw - tmpfs new rw
35 22 0:36 / /sys/fs/fuse/connections rw - fusectl fusectl rw
36 22 0:37 / /net rw - autofs map rw
""".strip()

HOST_ON_NFS = """
22 1 254:0 / / rw - overlay overlay rw
30 22 0:31 / /host rw - nfs server:/ rw
31 30 0:5 / /host/dev rw - devtmpfs udev rw
32 30 0:32 / /host/data rw - cifs server rw
33 32 0:33 / /host/data/run rw - tmpfs tmpfs rw
""".strip()


def guarded_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == guard.THREAD]


def may_hang(table: str, *paths: str, root: str = "") -> list[str]:
    checked = Guard(lambda: table, root)
    return [path for path in paths if checked.may_hang(path)]


def test_path_may_hang_according_to_the_mount_table() -> None:
    """Below a file system that may hang, everything may; its name as a prefix of another name means nothing."""
    hanging = ["/mnt/nfs", "/mnt/nfs/a/b", "/mnt/nfs/tmp/x", "/mnt/a b", "/mnt/a b/x", "/net/x"]
    others = ["/", "/dev/aosp_binder1", "/dev/binderfs/a", "/mnt", "/mnt/nfs2", "/mnt/covered/x"]
    assert may_hang(TABLE, *hanging, *others, "/sys/fs/fuse/connections/1") == hanging


def test_root_that_may_hang_counts_for_what_is_on_it() -> None:
    """Otherwise all devices of a host without a disk of its own would be called in threads."""
    on_it = ["/host/run/a", "/host/data", "/host/data/run/x"]
    assert may_hang(HOST_ON_NFS, *on_it, "/host/dev/a", "/dev/a", root="/host") == on_it
    below = HOST_ON_NFS.replace("overlay overlay", "virtiofs root")
    assert may_hang(below, "/usr", "/host/dev/a", root="/host") == ["/usr"]


def test_mount_point_may_contain_any_character() -> None:
    """An unprivileged user can mount FUSE anywhere. The kernel escapes blanks and line feeds only."""
    table = f"{TABLE}\n40 22 0:40 / /mnt/\x0b\u2028\x85\\012x rw - fuse f  rw"
    assert may_hang(table, "/mnt/\x0b\u2028\x85\nx/a", "/mnt/nfs") == ["/mnt/\x0b\u2028\x85\nx/a", "/mnt/nfs"]
    assert mounts.parse("") == ()


def test_mount_has_its_id_and_whether_it_is_shared() -> None:
    """The optional fields may be none or several, in any order; a mount that only receives is not shared."""
    table = mounts.parse(
        f"{TABLE}\n41 22 0:41 / /a rw shared:5 - tmpfs t rw\n42 22 0:42 / /b rw master:5 - tmpfs t rw\n"
        "43 22 0:43 / /c rw master:5 shared:6 - tmpfs shared:7 rw"
    )
    assert [(mount.id, mount.directory) for mount in table if mount.shared] == [(41, "/a"), (43, "/c")]
    assert [mount.id for mount in table[:3]] == [22, 23, 24]


def test_hang_costs_one_thread_and_is_over_when_its_call_returns(
    hanging_file_system: HangingFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hosts of the process share the quarantine. Other file systems are called as usual, in the same thread."""
    monkeypatch.setattr(guard, "GUARD_TIMEOUT", 1.0)
    directory = hanging_file_system.directory
    os.symlink("target", f"{hanging_file_system.source}/link")
    first, second = Host(), Host(str(tmp_path))
    assert first.readlink(f"{directory}/link") == "target"
    hanging_file_system.hang()
    for _ in range(3):
        for call in (first.lstat, first.listdir, first.readlink, first.resolve):
            with pytest.raises(NotRespondingError, match=f"the file system of {directory}.* is not responding"):
                call(f"{directory}/link")
        with pytest.raises(NotRespondingError):
            second.lstat("/hanging/link")
    assert hanging_file_system.waiting() == 1
    assert len(guarded_threads()) == 1
    assert first.call(lambda _: threading.current_thread(), str(tmp_path)) is threading.main_thread()
    hanging_file_system.release()
    for thread in guarded_threads():
        thread.join()
    assert second.readlink("/hanging/link") == "target"
    with pytest.raises(FileNotFoundError):
        first.lstat(f"{directory}/none")
