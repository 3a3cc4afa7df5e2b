"""Which processes hold binder devices open, in a simulated /proc."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.binder.devices.holders import DENIED, MAX_TEXT, Holder, Unread, cgroup_of, pod_uid
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind
from tests.processes import Proc, plain_device

C1, C2 = "1" * 64, "2" * 64
UID, OTHER_UID = "0dee3d7b-4e1f-4e4d-b7d4-7ac5a0a1a8fd", "6f2e2b5b-8c5d-4b7c-9d39-0f0e4b3f6a11"
SNAKE, STATIC_UID = UID.replace("-", "_"), "0123456789abcdef0123456789abcdef"


@pytest.fixture
def proc() -> Iterator[Proc]:
    """Return a /proc without processes, in a directory that all users can enter."""
    directory = tempfile.mkdtemp(prefix="proc-", dir="/tmp")
    yield Proc(Path(directory))
    shutil.rmtree(directory)


@pytest.fixture
def device(tmp_path: Path) -> BinderDevice:
    """Return the binder device n0, a plain file."""
    return plain_device(tmp_path / "n0")


def character_device(path: str, kind: Kind, *, other_inode: bool = False) -> BinderDevice:
    """Return the binder device at ``path``, or another inode with the same device number."""
    status = Path(path).stat()
    inode = status.st_ino + 1000 if other_inode else status.st_ino
    return BinderDevice("aosp_binder0", path, kind, FileIdentity(status.st_dev, status.st_rdev, inode))


# -- cgroups


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f"/kubepods/burstable/pod{UID}/{C1}", UID),
        (f"/kubepods/pod{STATIC_UID}/{C1}", STATIC_UID),
        (f"/kubepods.slice/kubepods-burstable-pod{SNAKE}.slice/cri-containerd-{C1}.scope", UID),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SNAKE}.slice/docker-{C1}.scope", UID),
        (f"/../../pod{UID}/{C1}", UID),
        # Nested: the outermost pod is the one of this host's kubelet.
        (f"/kubepods/pod{UID}/{C1}/kubelet/kubepods/pod{OTHER_UID}/{C2}", UID),
        ("", ""),
        (f"/kubepods/tripod{UID}", ""),
        (f"/kubepods/pod{UID}0", ""),
    ],
)
def test_pod_is_that_of_the_cgroup(cgroup: str, uid: str) -> None:
    """The cgroups of all runtimes and of both cgroup drivers are understood."""
    assert pod_uid(cgroup) == uid


@pytest.mark.parametrize(
    "cgroup",
    [
        f"/user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/{C1}",
        f"/system.slice/delegated.service/kubepods.slice/kubepods-pod{SNAKE}.slice/cri-containerd-{C1}.scope",
        f"/machine.slice/libpod-{C1}.scope/kubepods/pod{UID}/{C2}",
    ],
)
def test_cgroup_that_a_user_can_create_names_no_pod(cgroup: str, proc: Proc, device: BinderDevice) -> None:
    """It is shown as it is."""
    proc.process(70, device.path, cgroup=cgroup)
    (found,) = proc.search([device])
    assert isinstance(found, Holder)
    assert found.place == cgroup[:MAX_TEXT]


@pytest.mark.parametrize(
    ("lines", "cgroup"),
    [
        ("12:misc:/\n4:memory:/a\n1:name=systemd:/b\n0::/c\n", "/a"),
        ("13:name=mine:/kubepods/podx\n4:cpu,memory:/a\n", "/a"),
        ("13:name=mine:/kubepods/podx\n0::/a:b\n", "/a:b"),
        ("13:name=mine:/kubepods/podx\n", ""),
    ],
)
def test_cgroup_is_that_of_the_memory_controller(lines: str, cgroup: str) -> None:
    """A process may mount another hierarchy, whose line comes first."""
    assert cgroup_of(lines) == cgroup


# -- holders


def test_holder_is_described(proc: Proc, device: BinderDevice, tmp_path: Path) -> None:
    """The cgroup may contain names that are not UTF-8."""
    proc.process(70, tmp_path / "else", device.path, cgroup=f"/kubepods/pod{UID}/{C1}/\udcff")
    proc.process(71, device.path, cgroup="/x\udcff")
    user = os.getuid()
    assert proc.search([device]) == [
        Holder("n0", 70, user, f"pod {UID}", "tool -v"),
        Holder("n0", 71, user, "/x?", "tool -v"),
    ]


def test_device_is_identified_by_number_or_inode(proc: Proc) -> None:
    """A container may have another file with the number, which opens a misc device, but not a device of a binderfs.

    The number of /dev/null is open in nearly every process.
    """
    proc.process(70, "/dev/tty", "/dev/null")
    for path, kind, by_number in (
        ("/dev/tty", Kind.FILE, False),
        ("/dev/tty", Kind.BINDERFS, False),
        ("/dev/tty", Kind.CDEV, True),
        ("/dev/null", Kind.STAND_IN, False),
    ):
        assert proc.held(character_device(path, kind)) == [("aosp_binder0", 70)]
        assert bool(proc.held(character_device(path, kind, other_inode=True))) is by_number


def test_missing_devices_other_files_and_path_descriptors_are_ignored(proc: Proc, device: BinderDevice) -> None:
    """Runtimes keep O_PATH descriptors of what they mount; another, open descriptor counts."""
    proc.process(70, device.path, flags=os.O_PATH | os.O_CLOEXEC)
    assert proc.held(device) == []
    proc.descriptor(70, 4, device.path)
    absent = BinderDevice("n1", "/dev/n1", Kind.ABSENT)
    assert proc.held(absent, device._replace(name="n2", kind=Kind.OTHER), device) == [("n0", 70)]


def test_command_is_printable_and_truncated(proc: Proc, device: BinderDevice) -> None:
    """A process controls its own command line."""
    process = proc.process(70, device.path)
    for command, expected in (
        (b"/bin/sh\0-c\0a b\0", "/bin/sh -c a b"),
        (b"", "[tool]"),
        (b"a\nb\0\x1b[1m\0\xff\0\xe2\x80\xae\0", "a?b ?[1m ? ?"),
        (b"x" * MAX_TEXT + b"y\0", "x" * MAX_TEXT),
    ):
        (process / "cmdline").write_bytes(command)
        (found,) = proc.search([device])
        assert isinstance(found, Holder)
        assert found.command == expected


# -- processes that exit or cannot be read


def test_process_that_exits_or_closes_descriptors_meanwhile_hides_no_other_descriptor(
    proc: Proc, device: BinderDevice
) -> None:
    """A tenant may close descriptors all the time. No descriptor of /proc stays open."""
    shutil.rmtree(proc.process(70) / "fd")
    (proc.process(71, device.path) / "cmdline").unlink()
    (proc.process(73, device.path) / "fdinfo/3").unlink()
    (proc.process(74, "/closed", device.path, device.path) / "fdinfo/4").unlink()
    before = os.listdir("/proc/self/fd")
    assert proc.held(device) == [("n0", 74)]
    assert {*os.listdir("/proc/self/fd")} <= {*before}


@pytest.mark.parametrize("part", ["fd", "cmdline"])
def test_process_that_may_not_be_read_is_named(part: str, proc: Proc, device: BinderDevice) -> None:
    unreadable = proc.process(70, device.path) / part
    proc.process(71, device.path)
    for directory in Path(device.path).parents:
        if "pytest-of-" in str(directory):  # one more for each worker of xdist
            directory.chmod(0o755)
    unreadable.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        first, second = proc.search([device])
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        unreadable.chmod(0o700)
    assert first == Unread(70, DENIED)
    assert second[:2] == ("n0", 71)


@pytest.mark.parametrize("content", ["", "flags: new"])
def test_process_with_unexpected_content_is_named(content: str, proc: Proc, device: BinderDevice) -> None:
    """A kernel may change a format. The search goes on."""
    proc.process(70, device.path)
    proc.process(71, device.path)
    (proc.directory / "70/fdinfo/3").write_text(content)
    first, second = proc.search([device])
    assert isinstance(first, Unread)
    assert first.cause.startswith("unexpected content of /proc")
    assert second[:2] == ("n0", 71)
