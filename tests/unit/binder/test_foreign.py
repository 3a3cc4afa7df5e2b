"""Which pods have foreign binderfs: on a simulated /proc."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.driver import binderfs, foreign

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

POD = "3a1f0c9e-0000-4000-8000-00000000000{}"
C1 = "c1" * 32
OWN = "0:99"
HOST = "mnt:[1]"


def process(proc: Path, pid: str, namespace: str, devices: Sequence[str] = (), cgroup: str = "/") -> Path:
    """Add a process with a tmpfs and a binderfs of each of these device numbers in its mount namespace."""
    directory = proc / pid
    (directory / "ns").mkdir(parents=True)
    (directory / "ns/mnt").symlink_to(namespace)
    lines = [f"{1000 + n} 1 {device} / /m{n} rw - binder binder rw,max=1048576\n" for n, device in enumerate(devices)]
    (directory / "mountinfo").write_text("".join(["1 0 0:5 / / rw shared:1 - tmpfs tmpfs rw\n", *lines]))
    (directory / "cgroup").write_text(f"0::{cgroup}\n")
    return directory


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc in which process 1 and this one are in the host's mount namespace, with a phone."""
    for pid in ("1", "self"):
        process(tmp_path, pid, HOST, [OWN])
    return tmp_path


def test_foreign_binderfs_names_the_pods_that_have_the_most(proc: Path) -> None:
    """Two processes of a pod in one mount namespace count once. A mount of a phone of this host is not foreign."""
    slices = [f"/../../kubepods-pod{POD.format(number).replace('-', '_')}.slice" for number in (1, 2)]
    first, second = (f"{slice_}/cri-containerd-{C1}.scope" for slice_ in slices)
    process(proc, "20", "mnt:[2]", [OWN, "0:1"], first)
    for pid in ("30", "31"):
        process(proc, pid, "mnt:[3]", ["0:2", "0:3", "0:4"], second)
    process(proc, "32", "mnt:[4]", ["0:5"], second)
    process(proc, "40", "mnt:[5]", ["0:6", "0:7"])
    process(proc, "50", "mnt:[6]", [OWN], first)
    assert foreign.find(str(proc)) == (
        f"mounts of foreign binderfs: 4 in pod {POD.format(2)} container {C1[:12]}, 2 in process 40, "
        f"1 in pod {POD.format(1)} container {C1[:12]}"
    )


def test_foreign_binderfs_without_rights_names_a_command(proc: Path) -> None:
    """Without hostPID, no process of another mount namespace is visible; without CAP_SYS_PTRACE no namespace is."""
    text = foreign.find(str(proc))
    assert text.startswith("unknown who has them: without hostPID and CAP_SYS_PTRACE the plugin cannot see")
    assert text.endswith(foreign.COMMAND)
    (process(proc, "20", "mnt:[2]", ["0:1"]) / "ns/mnt").unlink()
    assert foreign.find(str(proc)) == text


def test_foreign_binderfs_of_more_mounts_than_are_read(proc: Path) -> None:
    """The cost is limited, however many mounts and mount namespaces there are."""
    for pid in range(20, 25):
        process(proc, str(pid), f"mnt:[{pid}]", ["0:1"] * 10)
    assert foreign.find(str(proc), most_mounts=23) == (
        "mounts of foreign binderfs: 10 in process 20, 10 in process 21 (not all mount namespaces were read; on the "
        f"host, {foreign.COMMAND})"
    )
    assert foreign.find(str(proc)).endswith("10 in process 22, and in 2 others")


def test_foreign_binderfs_of_a_process_that_ends_meanwhile(proc: Path) -> None:
    (process(proc, "20", "mnt:[2]") / "mountinfo").unlink()
    process(proc, "21", "mnt:[3]")
    assert foreign.find(str(proc)) == "mounts of foreign binderfs: none"
    assert foreign.find(str(proc / "20")).startswith("unknown who has them (")


def test_a_mount_without_a_minor_number_names_who_has_them() -> None:
    """As read from this machine's /proc, where it depends on the rights of this process."""
    error = str(binderfs.refusal(binderfs.Step.MOUNT, 28, "/run/x"))
    assert error.startswith(f"cannot mount a binderfs on /run/x: all {binderfs.ALL_MINORS} minor numbers")
    assert foreign.COMMAND in error or "mounts of foreign binderfs: " in error
    assert os.strerror(28) not in error
