"""Leak detection on a simulated /proc: cgroups, the kubelet's checkpoint, decisions, and comparison of scans."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind
from aosp_plugin.binder.driver.cgroup import parse_cgroup
from aosp_plugin.report import leaks
from aosp_plugin.report.leaks import (
    MAX_COMMAND_LENGTH,
    Changes,
    Gap,
    Holder,
    Leaks,
    compare,
    is_leak,
    scan,
)

ROOT = os.geteuid() == 0
TICKS = os.sysconf("SC_CLK_TCK")

UID = "3a1f0c9e-0000-4000-8000-00000000000a"
SNAKE = UID.replace("-", "_")
OTHER_UID = "3a1f0c9e-0000-4000-8000-00000000000b"
STATIC_UID = "0123456789abcdef0123456789abcdef"
C1 = "c1" * 32
C2 = "c2" * 32
INVISIBLE = Gap("no kernel thread is visible, as without hostPID")


class Proc:
    """A simulated /proc with descriptors, cgroups and the files that psutil reads."""

    def __init__(self, directory: Path) -> None:
        """Create it without processes, for a host that booted in 2023. ``self`` is process 999."""
        self.directory = directory
        directory.chmod(0o755)
        (directory / "self").symlink_to("999")
        self.boot(1_700_000_000)

    def boot(self, seconds: int) -> None:
        """Set the boot time, in seconds since the epoch."""
        (self.directory / "stat").write_text(f"btime {seconds}\n")

    def process(
        self,
        pid: int,
        *files: str | Path,
        name: str = "tool",
        command: bytes = b"tool\0-v\0",
        cgroup: str = "0::/system.slice/tool.service\n",
        flags: int = os.O_RDWR,
        parent: int = 1,
    ) -> Path:
        """Create a process with ``files`` open from descriptor 3 on, and return its directory."""
        process = self.directory / str(pid)
        for part in ("fd", "fdinfo"):
            (process / part).mkdir(parents=True)
        numbers = ["0"] * 50
        numbers[17] = str(12329 * TICKS // 100)
        (process / "stat").write_text(f"{pid} ({name}) S {parent} {' '.join(numbers)}\n")
        (process / "status").write_text("Uid:\t7\t1000\t7\t7\n")
        (process / "cmdline").write_bytes(command)
        (process / "comm").write_text(f"{name}\n")
        (process / "cgroup").write_text(cgroup, errors="surrogateescape")
        for descriptor, file in enumerate(files, 3):
            self.descriptor(pid, descriptor, file, flags)
        return process

    def descriptor(self, pid: int, descriptor: int, file: str | Path, flags: int = os.O_RDWR) -> None:
        """Add an open descriptor to a process."""
        (self.directory / f"{pid}/fd/{descriptor}").symlink_to(file)
        text = f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t9\nino:\t4\n"
        (self.directory / f"{pid}/fdinfo/{descriptor}").write_text(text)


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proc]:
    """Return a /proc without processes, in a directory that all users can enter; scans read it."""
    directory = tempfile.mkdtemp(prefix="proc-", dir="/tmp")
    monkeypatch.setattr(psutil, "PROCFS_PATH", directory)
    yield Proc(Path(directory))
    shutil.rmtree(directory)


@pytest.fixture
def device(tmp_path: Path) -> BinderDevice:
    """Return the binder device n0, a plain file."""
    return file_device(tmp_path / "n0")


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Drop the privileges of root inside the context."""
    if ROOT:
        os.seteuid(65534)
    try:
        yield
    finally:
        if ROOT:
            os.seteuid(0)


def file_device(path: Path) -> BinderDevice:
    """Return a binder device that is a plain file, created if missing."""
    path.touch()
    status = path.stat()
    return BinderDevice(path.name, str(path), Kind.FILE, FileIdentity(status.st_dev, status.st_rdev, status.st_ino))


def character_device(path: str, kind: Kind, *, other_inode: bool = False) -> BinderDevice:
    """Return the binder device at ``path``, or another inode with the same device number."""
    status = Path(path).stat()
    inode = status.st_ino + 1000 if other_inode else status.st_ino
    return BinderDevice("aosp_binder0", path, kind, FileIdentity(status.st_dev, status.st_rdev, inode))


def leaked(binder_devices: Sequence[BinderDevice]) -> list[tuple[str, int]]:
    """Return binder device and PID of each leak, with no device allocated."""
    return [(holder.binder_device, holder.pid) for holder in scan(binder_devices, dict).leaked]


def holder(name: str = "n0", pid: int = 5, container: str = "", pod_uid: str = "", since_boot: float = 9.5) -> Holder:
    return Holder(name, pid, "tool", 1700000009.5, since_boot, 0, container, pod_uid)


def result(*holders: Holder, undecided: tuple[Holder, ...] = ()) -> Leaks:
    return Leaks(holders, undecided, frozenset(), ())


# -- cgroups


CGROUPS = [
    (f"/kubepods/burstable/pod{UID}/{C1}", (C1, UID)),
    (f"/kubepods/pod{STATIC_UID}/{C1}", (C1, STATIC_UID)),
    (f"/kubepods.slice/kubepods-burstable-pod{SNAKE}.slice/cri-containerd-{C1}.scope", (C1, UID)),
    (f"/kubepods.slice/kubepods-pod{STATIC_UID}.slice/crio-{C1}.scope/container", (C1, STATIC_UID)),
    (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SNAKE}.slice/docker-{C1}.scope", (C1, UID)),
    (f"/system.slice/containerd.service/kubepods-pod{SNAKE}.slice:cri-containerd:{C1}", (C1, UID)),
    (f"/../../pod{UID}/{C1}", (C1, UID)),
    (f"/../cri-containerd-{C1}.scope", (C1, "")),
    (f"/kubepods/pod{UID}/crio-conmon-{C1}.scope", ("", UID)),
    (f"/k8s.io/{C1}", (C1, "")),
    (f"/system.slice/docker-{C1}.scope", (C1, "")),
    (f"/machine.slice/libpod-{C1}.scope/container", (C1, "")),
    (f"/machine.slice/libpod-conmon-{C1}.scope", ("", "")),
    (f"/machine.slice/machine-libpod_pod_{C2}.slice/libpod-{C1}.scope", (C1, "")),
    *((f"/system.slice/{name}", ("", "")) for name in ("podman.service", f"x{C1}", f"{C1}0", f"tripod{UID}")),
    *((f"/{name}", ("", "")) for name in (f"pod{UID}0", "")),
    # cgroup v1: a process is in one cgroup of each hierarchy; the line with the pod counts
    (f"/\n4:memory:/kubepods/pod{UID}/{C1}\n12:misc:/", (C1, UID)),
    (f"/\n4:memory:/docker/{C1}\n1:name=systemd:/kubepods/pod{UID}/{C2}", (C2, UID)),
    # nested containers: the outermost pod is the one of this host's kubelet
    (f"/docker/{C2}/kubelet/kubepods/pod{UID}/{C1}", (C1, UID)),
    (f"/kubepods/pod{UID}/{C1}/kubelet/kubepods/pod{OTHER_UID}/{C2}", (C1, UID)),
]


def test_cgroup_names_container_and_pod() -> None:
    """The cgroups of all runtimes and both cgroup drivers are understood."""
    for cgroup, expected in CGROUPS:
        assert parse_cgroup(f"0::{cgroup}") == expected
        assert parse_cgroup(f"0::{cgroup}\n") == expected
    assert parse_cgroup("") == ("", "")


# -- decisions

OWNERS = {"n0": {UID}}


def test_leak_is_a_holder_outside_the_pods_that_own_the_device() -> None:
    """The result is None if the pod or the owners are unknown."""
    cases: list[tuple[Holder, dict[str, set[str]] | None, bool | None]] = [
        (holder(container=C1, pod_uid=UID), OWNERS, False),
        (holder(container=C1, pod_uid=UID), {"n0": {OTHER_UID, UID}}, False),
        (holder(pod_uid=OTHER_UID), OWNERS, True),
        (holder(container=C1, pod_uid=UID), {"n1": {UID}}, True),
        (holder(), OWNERS, True),
        (holder(container=C1), OWNERS, None),
        (holder(container=C1), {"n1": {UID}}, True),
        (holder(container=C1), {"n0": set()}, True),
        (holder(), None, True),
        (holder(container=C1), None, None),
        (holder(pod_uid=UID), None, None),
    ]
    for process, owners, expected in cases:
        assert is_leak(process, owners) is expected


# -- comparison of scans


def test_leak_appears_once_and_is_released_once() -> None:
    """Each comparison continues from the open leaks of the one before. An undecided leak stays open, but opens none."""
    first, second, unknown = holder("n1"), holder("n2"), holder("n3")
    changes = compare((), result(first))
    assert changes == Changes((first,), (), (first,))
    changes = compare(changes.open, result(first, second))
    assert changes == Changes((second,), (), (first, second))
    changes = compare(changes.open, result(second))
    assert changes == Changes((), (first,), (second,))
    changes = compare(changes.open, result(undecided=(second, unknown)))
    assert changes == Changes((), (), (second,))
    changes = compare(changes.open, Leaks((), (), frozenset({second.pid}), ()))
    assert changes == Changes((), (), (second,)), "the scan has not read its process"
    assert compare(changes.open, result(second)) == Changes((), (), (second,))


def test_leak_is_identified_by_device_pid_and_start() -> None:
    """The start distinguishes processes that have the same PID one after another."""
    for other in (holder("n1"), holder(pid=6), holder(since_boot=9.51)):
        assert compare((holder(),), result(other)) == Changes((other,), (holder(),), (other,))


# -- scans


def test_scan_describes_a_holder(proc: Proc, tmp_path: Path) -> None:
    """The cgroup may contain names that are not UTF-8."""
    device = file_device(tmp_path / "aosp_binder0")
    proc.process(70, tmp_path / "else", device.path, cgroup=f"0::/kubepods/pod{UID}/{C1}/\udcff\n")
    expected = Holder("aosp_binder0", 70, "tool -v", 1_700_000_123.29, 123.29, 1000, C1, UID)
    assert scan([device], dict).leaked == (expected,)


def test_scan_decides_each_holder(proc: Proc, device: BinderDevice) -> None:
    """Processes of the owner are in neither list."""
    proc.process(70, device.path, cgroup=f"0::/kubepods/pod{UID}/{C1}\n")
    proc.process(71, device.path, cgroup=f"0::/kubepods/pod{OTHER_UID}/{C1}\n")
    proc.process(72, device.path, cgroup=f"0::/k8s.io/{C1}\n")
    proc.process(73, device.path)
    found = scan([device], lambda: OWNERS)
    assert [holder.pid for holder in found.leaked] == [71, 73]
    assert [holder.pid for holder in found.undecided] == [72]
    assert found.leaked_devices == 1


def test_scan_reads_owners_after_processes(proc: Proc, device: BinderDevice) -> None:
    """The kubelet records a pod before its processes start: read earlier, the owners could lack a new pod."""
    process = proc.process(70, device.path, cgroup=f"0::/kubepods/pod{OTHER_UID}/{C1}\n")

    def owners() -> dict[str, set[str]]:
        shutil.rmtree(process)
        return OWNERS

    assert [holder.pid for holder in scan([device], owners).leaked] == [70]


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
        assert leaked([character_device(path, kind)]) == [("aosp_binder0", 70)]
        assert bool(leaked([character_device(path, kind, other_inode=True)])) is by_number


def test_missing_devices_other_files_and_path_descriptors_are_ignored(proc: Proc, device: BinderDevice) -> None:
    """Runtimes keep O_PATH descriptors of what they mount; another, open descriptor counts."""
    proc.process(70, device.path, flags=os.O_PATH | os.O_CLOEXEC)
    assert leaked([device]) == []
    proc.descriptor(70, 4, device.path)
    absent = BinderDevice("n1", "/dev/n1", Kind.ABSENT)
    assert leaked([absent, device._replace(name="n2", kind=Kind.OTHER), device]) == [("n0", 70)]


def test_command_is_printable_and_truncated(proc: Proc, device: BinderDevice) -> None:
    """A process controls its own command line."""
    process = proc.process(70, device.path)
    for command, expected in (
        (b"/bin/sh\0-c\0a b\0", "/bin/sh -c a b"),
        (b"", "[tool]"),
        (b"a\nb\0\x1b[1m\0\xff\0\xe2\x80\xae\0", "a?b ?[1m ? ?"),
        (b"x" * MAX_COMMAND_LENGTH + b"y\0", "x" * MAX_COMMAND_LENGTH),
    ):
        (process / "cmdline").write_bytes(command)
        assert scan([device], dict).leaked[0].command == expected


def test_leak_stays_open_when_the_clock_is_set(proc: Proc, device: BinderDevice) -> None:
    """The kernel then reports another boot time."""
    proc.process(70, device.path)
    before = scan([device], dict)
    proc.boot(1_700_003_601)
    after = scan([device], dict)
    assert after.leaked[0].started == before.leaked[0].started + 3601
    assert compare(before.leaked, after) == Changes((), (), before.leaked)


# -- processes that exit or cannot be inspected


def test_process_that_exits_during_the_scan_is_ignored(proc: Proc, device: BinderDevice) -> None:
    """It is not counted as unreadable, other descriptors of it still count, and no descriptor of /proc stays open."""
    shutil.rmtree(proc.process(70) / "fd")
    (proc.process(71, device.path) / "stat").unlink()
    (proc.process(72, device.path) / "cgroup").unlink()
    (proc.process(73, device.path) / "fdinfo/3").unlink()
    (proc.process(74, device.path, device.path) / "fdinfo/3").unlink()
    before = os.listdir("/proc/self/fd")
    found = scan([device], dict)
    assert {*os.listdir("/proc/self/fd")} <= {*before}
    assert [holder.pid for holder in found.leaked] == [74]
    assert found.unreadable == 0


@pytest.mark.parametrize("part", ["fd", "cmdline"])
def test_unreadable_processes_are_counted(part: str, proc: Proc) -> None:
    device = file_device(proc.directory / "n0")
    unreadable = [proc.process(pid, device.path) / part for pid in (70, 71)]
    proc.process(72, device.path)
    for path in unreadable:
        path.chmod(0)
    with without_root():
        found = scan([device], dict)
    for path in unreadable:
        path.chmod(0o700)
    assert [holder.pid for holder in found.leaked] == [72]
    assert found.unread == {70, 71}
    assert found.gaps[1].cause.startswith("permission denied")
    assert found.gaps[1].processes.startswith("2 processes such as 70")


@pytest.mark.parametrize(
    ("file", "content"),
    [("70/stat", "70 (tool) S"), ("70/fdinfo/3", ""), ("70/fdinfo/3", "flags: new"), ("stat", "no boot time")],
)
def test_process_with_unexpected_content_is_counted_as_unreadable(
    file: str, content: str, proc: Proc, device: BinderDevice
) -> None:
    """A kernel may change a format. The scan goes on, and says that it is incomplete."""
    proc.process(70, device.path)
    (proc.directory / file).write_text(content)
    found = scan([device], dict)
    assert (found.leaked, found.unread) == ((), frozenset({70}))
    assert str(found.gaps[1]).startswith("unexpected content of /proc")


def test_all_processes_are_visible_if_kernel_threads_are(proc: Proc) -> None:
    """Only the host's PID namespace shows kthreadd."""
    proc.process(1, name="kthreadd", parent=0)
    assert scan([], dict).gaps == (INVISIBLE,)
    proc.process(2, name="kthreadd", parent=0)
    assert scan([], dict).gaps == ()


# -- limits


def test_descriptors_of_a_pod_a_container_without_pod_and_a_user_are_limited(
    proc: Proc, device: BinderDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "MAX_DESCRIPTORS", 5)
    proc.process(70, *["/dev/zero"] * 6, cgroup=f"0::/docker/{C1}\n")
    proc.process(71, *["/dev/zero"] * 6)
    proc.process(72, *["/dev/zero"] * 5, cgroup=f"0::/docker/{C2}\n")
    for pid in (73, 74):
        proc.process(pid, *["/dev/zero"] * 3, cgroup=f"0::/kubepods/pod{UID}/{C1}\n")
    assert [gap.cause for gap in scan([device], dict).gaps[1:]] == [
        f"more than 5 file descriptors of container {C1}",
        f"more than 5 file descriptors of user {os.getuid()} outside containers",
        f"more than 5 file descriptors of pod {UID}",
    ]
