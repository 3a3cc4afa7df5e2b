"""Leaks: what a cgroup and a checkpoint tell, who is judged a leak, and a look through a made-up /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from aosp_plugin.binder.discovery.binder_device import BinderDevice, Identity, Kind
from aosp_plugin.daemon import leaks
from aosp_plugin.daemon.leaks import (
    LONGEST_COMMAND,
    Changes,
    Holder,
    Leaks,
    changes,
    container_of,
    find,
    judge,
    owners_from,
)
from aosp_plugin.errors import HostError
from aosp_plugin.testing import checkpoint as kubelets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = os.geteuid() == 0
TICKS = os.sysconf("SC_CLK_TCK")

UID = "3a1f0c9e-0000-4000-8000-00000000000a"
SNAKE = UID.replace("-", "_")
OTHER_UID = "3a1f0c9e-0000-4000-8000-00000000000b"
STATIC_UID = "0123456789abcdef0123456789abcdef"
C1 = "c1" * 32
C2 = "c2" * 32
RESOURCE = "aosp.io/binder"


class Proc:
    """A directory that looks like /proc to whoever reads a process's descriptors, cgroup and figures."""

    def __init__(self, directory: Path) -> None:
        """Begin with a kernel that started in 2023 and no processes; ``self`` is one that is not there."""
        self.directory = directory
        directory.chmod(0o755)
        (directory / "self").symlink_to("999")
        self.boot(1_700_000_000)

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self.directory)

    def boot(self, seconds: int) -> None:
        """Say when the kernel started, in seconds since the epoch."""
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
        """Make a process that has ``files`` open from descriptor 3 on, and return its directory."""
        made = self.directory / str(pid)
        for part in ("fd", "fdinfo"):
            (made / part).mkdir(parents=True)
        numbers = ["0"] * 50
        numbers[17] = str(12329 * TICKS // 100)
        (made / "stat").write_text(f"{pid} ({name}) S {parent} {' '.join(numbers)}\n")
        (made / "status").write_text("Uid:\t7\t1000\t7\t7\n")
        (made / "cmdline").write_bytes(command)
        (made / "cgroup").write_text(cgroup, errors="surrogateescape")
        for descriptor, file in enumerate(files, 3):
            self.descriptor(pid, descriptor, file, flags)
        return made

    def descriptor(self, pid: int, descriptor: int, file: str | Path, flags: int = os.O_RDWR) -> None:
        """Have a process open one more file."""
        (self.directory / f"{pid}/fd/{descriptor}").symlink_to(file)
        text = f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t9\nino:\t4\n"
        (self.directory / f"{pid}/fdinfo/{descriptor}").write_text(text)


@pytest.fixture
def proc() -> Iterator[Proc]:
    """Return a /proc without processes, in a directory that everybody can enter."""
    directory = tempfile.mkdtemp(prefix="proc-", dir="/tmp")
    yield Proc(Path(directory))
    shutil.rmtree(directory)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Go without root's rights inside."""
    if ROOT:
        os.seteuid(65534)
    try:
        yield
    finally:
        if ROOT:
            os.seteuid(0)


def file_node(path: Path, name: str = "") -> BinderDevice:
    """Return a node that is a plain file; it is made where it is missing."""
    path.touch()
    seen = path.stat()
    return BinderDevice(name or path.name, str(path), Kind.FILE, Identity(seen.st_dev, seen.st_rdev, seen.st_ino))


def device_node(path: str, kind: Kind, *, elsewhere: bool = False) -> BinderDevice:
    """Return a node of the device at ``path``, or one of the same number ``elsewhere``."""
    seen = Path(path).stat()
    inode = seen.st_ino + 1000 if elsewhere else seen.st_ino
    return BinderDevice("aosp_binder0", path, kind, Identity(seen.st_dev, seen.st_rdev, inode))


def found(nodes: Sequence[BinderDevice], proc: Proc) -> list[tuple[str, int]]:
    """Return node and PID of each holder, where nobody was given anything, in the order they are told."""
    return [(holder.node, holder.pid) for holder in find(nodes, dict, proc.path).found]


def holder(node: str = "n0", pid: int = 5, container: str = "", pod_uid: str = "", since_boot: float = 9.5) -> Holder:
    """Return a holder."""
    return Holder(node, pid, "tool", 1700000009.5, since_boot, 0, container, pod_uid)


def leaked(*holders: Holder, undecided: tuple[Holder, ...] = ()) -> Leaks:
    """Return what a round found."""
    return Leaks(holders, undecided, 0, whole=True)


# -- cgroups


@pytest.mark.parametrize(
    ("cgroup", "told"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{C1}", (C1, UID)),
        (f"0::/kubepods/pod{STATIC_UID}/{C1}", (C1, STATIC_UID)),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SNAKE}.slice/cri-containerd-{C1}.scope",
            (C1, UID),
        ),
        (f"0::/kubepods.slice/kubepods-pod{STATIC_UID}.slice/crio-{C1}.scope", (C1, STATIC_UID)),
        (f"0::/kubepods.slice/kubepods-besteffort-pod{SNAKE}.slice/crio-{C1}.scope/container", (C1, UID)),
        (f"0::/kubepods.slice/kubepods-besteffort-pod{SNAKE}.slice/docker-{C1}.scope", (C1, UID)),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SNAKE}.slice/crio-{C1}.scope", (C1, UID)),
        (f"0::/system.slice/containerd.service/kubepods-pod{SNAKE}.slice:cri-containerd:{C1}", (C1, UID)),
        (f"0::/../../pod{UID}/{C1}", (C1, UID)),
        (f"0::/../../kubepods-burstable-pod{SNAKE}.slice/cri-containerd-{C1}.scope", (C1, UID)),
        (f"0::/../cri-containerd-{C1}.scope", (C1, "")),
        (f"0::/kubepods/pod{UID}", ("", UID)),
        (f"0::/kubepods.slice/kubepods-pod{SNAKE}.slice", ("", UID)),
        (f"0::/kubepods/pod{UID}/crio-conmon-{C1}.scope", ("", UID)),
        (f"0::/k8s.io/{C1}", (C1, "")),
        (f"0::/docker/{C1}", (C1, "")),
        (f"0::/system.slice/docker-{C1}.scope", (C1, "")),
        (f"0::/machine.slice/libpod-{C1}.scope/container", (C1, "")),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/nerdctl-{C1}.scope", (C1, "")),
        (f"0::/machine.slice/libpod-conmon-{C1}.scope", ("", "")),
        (f"0::/machine.slice/machine-libpod_pod_{C2}.slice/libpod-{C1}.scope", (C1, "")),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice", ("", "")),
        ("0::/system.slice/podman.service", ("", "")),
        (f"0::/system.slice/x{C1}", ("", "")),
        (f"0::/system.slice/{C1}0", ("", "")),
        (f"0::/system.slice/tripod{UID}", ("", "")),
        (f"0::/pod{UID}0", ("", "")),
        ("0::/", ("", "")),
        ("", ("", "")),
    ],
)
def test_a_cgroup_tells_the_container_and_the_pod(cgroup: str, told: tuple[str, str]) -> None:
    """Of each runtime and both cgroup drivers; what it does not tell is empty."""
    assert container_of(cgroup) == told
    assert container_of(f"{cgroup}\n") == told


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["12:misc:/", f"4:memory:/kubepods/pod{UID}/{C1}", "0::/"], (C1, UID)),
        (["12:misc:/", f"4:memory:/docker/{C1}", f"1:name=systemd:/kubepods/pod{UID}/{C2}"], (C2, UID)),
        ([f"4:memory:/docker/{C1}", f"3:cpu:/docker/{C2}", "0::/"], (C1, "")),
    ],
)
def test_of_several_hierarchies_the_one_counts_that_tells_most(lines: list[str], told: tuple[str, str]) -> None:
    """With cgroup v1 a process is in one cgroup of each, and not all of them are the container's."""
    assert container_of("\n".join([*lines, ""])) == told


@pytest.mark.parametrize(
    ("cgroup", "told"),
    [
        (f"0::/kubepods/pod{UID}/{C1}/docker/{C2}", (C1, UID)),
        (f"0::/docker/{C2}/kubelet/kubepods/pod{UID}/{C1}", (C1, UID)),
        (f"0::/kubepods/pod{UID}/{C1}/kubelet/kubepods/pod{OTHER_UID}/{C2}", (C1, UID)),
    ],
)
def test_of_nested_pods_the_outermost_counts_and_the_container_in_it(cgroup: str, told: tuple[str, str]) -> None:
    """It is the kubelet's of this host."""
    assert container_of(cgroup) == told


# -- checkpoints


def entry(pod: str, devices: dict[int, list[str]], resource: str = RESOURCE) -> kubelets.Entry:
    """Return what the checkpoint has of one container and resource."""
    return kubelets.Entry(pod, "c", resource, devices, b"")


def test_owners_are_read_from_what_a_kubelet_writes() -> None:
    """IDs are under their NUMA nodes; a device can be several pods', and other resources don't matter."""
    entries = [
        entry("p1", {-1: ["b1", "b2"]}),
        entry("p2", {0: ["b3"], 1: ["b4"]}),
        entry("p3", {-1: ["b1"]}),
        entry("p4", {-1: ["b5"]}, "aosp.io/phone"),
        entry("p5", {-1: ["b6"]}, "example.com/gpu"),
    ]
    text = kubelets.encode(kubelets.Checkpoint(entries, {RESOURCE: ["b1", "b9"]}))
    assert owners_from(text, {RESOURCE, "aosp.io/phone"}) == {
        "b1": {"p1", "p3"},
        "b2": {"p1"},
        "b3": {"p2"},
        "b4": {"p2"},
        "b5": {"p4"},
    }


def test_a_checkpoint_without_pods_has_no_owners() -> None:
    """The kubelet writes null in place of an empty list."""
    text = kubelets.encode(kubelets.Checkpoint(registered={RESOURCE: ["b1"]}))
    assert b'"PodDeviceEntries":null' in text
    assert owners_from(text, {RESOURCE}) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"Data":null}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"p"}]}}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"p","ResourceName":"r","DeviceIDs":["b1"]}]}}',
    ],
)
def test_what_is_no_checkpoint_raises(text: bytes) -> None:
    """The last one is that of kubelets before 1.20; no owners would make a leak of every holder."""
    with pytest.raises(HostError, match=r"kubelet_internal_checkpoint is not what a kubelet from 1\.20 on writes"):
        owners_from(text, {"r"})


# -- judgement

GIVEN = {"n0": {UID}}


@pytest.mark.parametrize(
    ("who", "owners", "verdict"),
    [
        (holder(container=C1, pod_uid=UID), GIVEN, False),
        (holder(container=C1, pod_uid=UID), {"n0": {OTHER_UID, UID}}, False),
        (holder(pod_uid=UID), GIVEN, False),
        (holder(container=C1, pod_uid=OTHER_UID), GIVEN, True),
        (holder(pod_uid=OTHER_UID), GIVEN, True),
        (holder(container=C1, pod_uid=UID), {"n1": {UID}}, True),
        (holder(), GIVEN, True),
        (holder(), {}, True),
        (holder(container=C1), GIVEN, None),
        (holder(container=C1), {"n1": {UID}}, True),
        (holder(container=C1), {"n0": frozenset()}, True),
        (holder(), None, True),
        (holder(container=C1), None, None),
        (holder(container=C1, pod_uid=UID), None, None),
        (holder(pod_uid=UID), None, None),
    ],
)
def test_a_leak_is_whoever_is_surely_in_no_pod_that_was_given_the_node(
    who: Holder, owners: dict[str, set[str]] | None, *, verdict: bool | None
) -> None:
    """A pod that can't be told, or owners that are not known, leave it undecided."""
    assert judge(who, owners) is verdict


# -- rounds


def test_a_leak_appears_once_and_is_gone_once() -> None:
    """What is told of one round is what the next one is compared with."""
    first, second = holder("n1"), holder("n2")
    one = changes((), leaked(first))
    two = changes(one.told, leaked(first, second))
    three = changes(two.told, leaked(second))
    assert one == Changes((first,), (), (first,))
    assert two == Changes((second,), (), (first, second))
    assert three == Changes((), (first,), (second,))
    assert changes(three.told, leaked(second)) == Changes((), (), (second,))


def test_a_leak_that_can_no_longer_be_decided_is_not_gone() -> None:
    """Nor has it appeared anew when it is decided again; one that was never decided is not told."""
    known, unknown = holder("n1", container=C1), holder("n2", container=C1)
    one = changes((known,), leaked(undecided=(known, unknown)))
    assert one == Changes((), (), (known,))
    assert changes(one.told, leaked(known)) == Changes((), (), (known,))


@pytest.mark.parametrize("other", [holder("n1"), holder(pid=6), holder(since_boot=9.51)])
def test_another_node_process_or_start_is_another_leak(other: Holder) -> None:
    """A later process can have the PID of an earlier one."""
    assert changes((holder(),), leaked(other)) == Changes((other,), (holder(),), (other,))


def test_a_process_that_calls_itself_otherwise_is_the_same_leak() -> None:
    """So is one whose start comes out otherwise since the clock was set."""
    renamed = holder()._replace(command="other", started=0.0, container=C1)
    assert changes((holder(),), leaked(renamed)) == Changes((), (), (holder(),))


# -- a look


def test_a_holder_is_described(proc: Proc, tmp_path: Path) -> None:
    """PID, command line, start, effective user, container and pod."""
    node = file_node(tmp_path / "aosp_binder0")
    proc.process(70, tmp_path / "else", node.path, cgroup=f"0::/kubepods/pod{UID}/{C1}\n")
    expected = Holder("aosp_binder0", 70, "tool -v", 1_700_000_123.29, 123.29, 1000, C1, UID)
    assert find([node], dict, proc.path).found == (expected,)


def test_each_holder_is_judged(proc: Proc, tmp_path: Path) -> None:
    """The owner's processes are in neither list."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path, cgroup=f"0::/kubepods/pod{UID}/{C1}\n")
    proc.process(71, node.path, cgroup=f"0::/kubepods/pod{OTHER_UID}/{C1}\n")
    proc.process(72, node.path, cgroup=f"0::/k8s.io/{C1}\n")
    proc.process(73, node.path)
    seen = find([node], lambda: GIVEN, proc.path)
    assert [one.pid for one in seen.found] == [71, 73]
    assert [one.pid for one in seen.undecided] == [72]


def test_owners_are_asked_after_the_look(proc: Proc, tmp_path: Path) -> None:
    """A pod that comes meanwhile would otherwise hold its node before it was given it."""
    node = file_node(tmp_path / "n0")
    process = proc.process(70, node.path, cgroup=f"0::/kubepods/pod{OTHER_UID}/{C1}\n")

    def owners() -> dict[str, set[str]]:
        shutil.rmtree(process)
        return GIVEN

    assert [one.pid for one in find([node], owners, proc.path).found] == [70]


def test_holders_are_told_by_node_in_natural_order_then_by_pid(proc: Proc, tmp_path: Path) -> None:
    """As everything else here is."""
    nine, ten = (file_node(tmp_path / f"aosp_binder{number}") for number in (9, 10))
    proc.process(100, nine.path)
    proc.process(70, ten.path, nine.path)
    assert found([ten, nine], proc) == [("aosp_binder9", 70), ("aosp_binder9", 100), ("aosp_binder10", 70)]


def test_a_node_held_twice_by_one_process_is_told_once(proc: Proc, tmp_path: Path) -> None:
    """A node of two names is told by each: whoever is given either shares it."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path, node.path)
    assert found([node, node._replace(name="n1")], proc) == [("n0", 70), ("n1", 70)]


@pytest.mark.parametrize("kind", [Kind.FILE, Kind.BINDERFS])
def test_a_file_and_a_binderfs_node_are_told_by_their_inode(kind: Kind, proc: Proc) -> None:
    """A copy of a binderfs node's number opens nothing."""
    proc.process(70, "/dev/tty")
    assert found([device_node("/dev/tty", kind)], proc) == [("aosp_binder0", 70)]
    assert found([device_node("/dev/tty", kind, elsewhere=True)], proc) == []


@pytest.mark.parametrize("kind", [Kind.CDEV, Kind.STAND_IN])
def test_other_devices_are_told_by_their_number(kind: Kind, proc: Proc) -> None:
    """A runtime gives the container a copy."""
    proc.process(70, "/dev/tty")
    assert found([device_node("/dev/tty", kind, elsewhere=True)], proc) == [("aosp_binder0", 70)]


def test_a_stand_in_made_of_dev_null_is_told_by_its_inode(proc: Proc) -> None:
    """Its number is open in nearly every process."""
    proc.process(70, "/dev/null")
    assert found([device_node("/dev/null", Kind.STAND_IN, elsewhere=True)], proc) == []
    assert found([device_node("/dev/null", Kind.STAND_IN)], proc) == [("aosp_binder0", 70)]


@pytest.mark.skipif(not ROOT, reason="mknod needs root")
def test_a_block_device_of_the_same_number_is_no_node(proc: Proc, tmp_path: Path) -> None:
    """Numbers of block and character devices have nothing to do with each other."""
    os.mknod(tmp_path / "block", 0o600 | stat.S_IFBLK, os.makedev(5, 0))
    proc.process(70, tmp_path / "block")
    assert found([device_node("/dev/tty", Kind.CDEV)], proc) == []


def test_nodes_that_are_gone_or_no_device_are_not_looked_for(proc: Proc, tmp_path: Path) -> None:
    """An absent one has no identity; a socket in its place is never handed out."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path)
    absent = BinderDevice("n1", "/dev/n1", Kind.ABSENT)
    assert found([absent, node._replace(kind=Kind.OTHER)], proc) == []


def test_a_path_only_descriptor_holds_nothing(proc: Proc, tmp_path: Path) -> None:
    """Runtimes have such of what they mount; another one that is open counts."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path, flags=os.O_PATH | os.O_CLOEXEC)
    assert found([node], proc) == []
    proc.descriptor(70, 4, node.path)
    assert found([node], proc) == [("n0", 70)]


def test_this_process_is_not_told(proc: Proc, tmp_path: Path) -> None:
    """The plugin's own probes are no leaks."""
    node = file_node(tmp_path / "n0")
    proc.process(999, node.path)
    proc.process(99, node.path)
    assert found([node], proc) == [("n0", 99)]


# -- commands


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (b"/bin/sh\0-c\0a b\0", "/bin/sh -c a b"),
        (b"", "[tool]"),
        (b"a\nb\0\x1b[1m\0\xff\0\xe2\x80\xae\0", "a?b ?[1m ? ?"),
        ("öl\0".encode(), "öl"),
        (b"x" * LONGEST_COMMAND + b"y\0", "x" * LONGEST_COMMAND),
    ],
)
def test_a_command_can_be_printed_and_is_not_long(command: bytes, told: str, proc: Proc, tmp_path: Path) -> None:
    """A process writes what it likes into its command line."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path, command=command)
    assert find([node], dict, proc.path).found[0].command == told


def test_a_cgroup_that_is_not_utf_8_is_no_trouble(proc: Proc, tmp_path: Path) -> None:
    """Its name is bytes, as that of every directory."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path, cgroup=f"0::/kubepods/pod{UID}/{C1}/\udcff\n")
    assert find([node], dict, proc.path).found[0].container == C1


def test_the_time_since_boot_stays_when_the_clock_is_set(proc: Proc, tmp_path: Path) -> None:
    """The kernel then tells another time of its start; the leak is the same."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path)
    before = find([node], dict, proc.path)
    proc.boot(1_700_003_601)
    after = find([node], dict, proc.path)
    assert after.found[0].started == before.found[0].started + 3601
    assert changes(before.found, after) == Changes((), (), before.found)


# -- what ends, and what can't be seen


def test_a_process_that_ends_meanwhile_is_normal(proc: Proc, tmp_path: Path) -> None:
    """Before its descriptors are read, or before it is described; nobody counts it, and the others are told."""
    node = file_node(tmp_path / "n0")
    shutil.rmtree(proc.process(70) / "fd")
    (proc.process(71, node.path) / "stat").unlink()
    (proc.process(72, node.path) / "cgroup").unlink()
    proc.process(73, node.path)
    seen = find([node], dict, proc.path)
    assert [one.pid for one in seen.found] == [73]
    assert seen.unreadable == 0


def test_a_descriptor_that_closes_meanwhile_holds_nothing(proc: Proc, tmp_path: Path) -> None:
    """The process's other descriptors still count."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path)
    proc.process(71, node.path, node.path)
    for pid in (70, 71):
        (proc.directory / f"{pid}/fdinfo/3").unlink()
    assert found([node], proc) == [("n0", 71)]


def test_a_descriptor_that_leads_elsewhere_once_described_holds_nothing(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe closes the node at once, and the next file gets its number."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path)
    describe = leaks._describe

    def busy(pid: int, directory: str) -> Holder:
        Path(directory, "fd/3").unlink()
        Path(directory, "fd/3").symlink_to(proc.directory)
        return describe(pid, directory)

    monkeypatch.setattr(leaks, "_describe", busy)
    assert found([node], proc) == []


@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess(70)])
def test_a_process_that_ends_while_it_is_described_is_normal(
    error: Exception, proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has two numbers for it (ENOENT at an open, ESRCH at a read), and psutil an error of its own."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path)

    def describe(*_: object) -> Holder:
        raise error

    monkeypatch.setattr(leaks, "_describe", describe)
    assert find([node], dict, proc.path) == Leaks((), (), 0, whole=False)


def test_of_a_process_that_holds_no_node_nothing_more_is_read(proc: Proc, tmp_path: Path) -> None:
    """So that what else it hides does not count."""
    node = file_node(tmp_path / "n0")
    command = proc.process(70, tmp_path) / "cmdline"
    command.chmod(0)
    with as_nobody():
        assert find([node], dict, proc.path).unreadable == 0


def test_a_look_leaves_nothing_open(proc: Proc, tmp_path: Path) -> None:
    """Neither of a process that is told, nor of one that has ended."""
    node = file_node(tmp_path / "n0")
    proc.process(70, node.path)
    (proc.process(71, node.path) / "stat").unlink()
    before = os.listdir("/proc/self/fd")
    assert found([node], proc) == [("n0", 70)]
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("part", ["fd", "cmdline"])
def test_a_process_that_may_not_be_looked_at_is_counted(part: str, proc: Proc, tmp_path: Path) -> None:
    """Without rights nothing is found, and that must not look as if there were nothing."""
    node = file_node(proc.directory / "n0")
    closed = [proc.process(pid, node.path) / part for pid in (70, 71)]
    proc.process(72, node.path)
    for path in closed:
        path.chmod(0)
    with as_nobody():
        seen = find([node], dict, proc.path)
    for path in closed:
        path.chmod(0o700)
    assert [one.pid for one in seen.found] == [72]
    assert seen.unreadable == 2


def test_a_file_that_its_file_system_hides_hides_no_other(proc: Proc) -> None:
    """A user's FUSE refuses even root to stat it; the descriptor's text can be read, as the kernel's refusal can't."""
    node = file_node(proc.directory / "n0")
    hidden = proc.directory / "hidden"
    hidden.mkdir()
    proc.process(70, hidden / "file", node.path)
    hidden.chmod(0)
    with as_nobody():
        seen = find([node], dict, proc.path)
    hidden.chmod(0o700)
    assert [one.pid for one in seen.found] == [70]
    assert seen.unreadable == 0


@pytest.mark.parametrize(
    ("processes", "whole"),
    [
        ([(2, "kthreadd", 0)], True),
        ([(1, "kthreadd", 0)], False),
        ([(2, "kthreadd", 1)], False),
        ([(2, "sh", 0)], False),
        ([(1, "init", 0)], False),
    ],
)
def test_all_processes_are_seen_where_the_kernels_own_are(
    processes: list[tuple[int, str, int]], proc: Proc, *, whole: bool
) -> None:
    """They are in no PID namespace but the host's."""
    for pid, name, parent in processes:
        proc.process(pid, name=name, parent=parent)
    assert find([], dict, proc.path).whole is whole


def test_a_proc_that_is_none_raises(tmp_path: Path) -> None:
    """And psutil reads again what it read before."""
    before = psutil.PROCFS_PATH
    with pytest.raises(FileNotFoundError):
        find([], dict, str(tmp_path))
    assert before == psutil.PROCFS_PATH
