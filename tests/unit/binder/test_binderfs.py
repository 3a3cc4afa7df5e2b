"""The operations on a binderfs: exact requests, what the kernel's refusals mean, and the mount table."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from pathlib import Path

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsMount, Step
from aosp_plugin.errors import (
    BinderfsError,
    BinderMissingError,
    DeviceExistsError,
    DeviceNameError,
    DevicesExhaustedError,
    NotPermittedError,
)

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="makes devices or mounts, which needs root")


class Driver:
    """Stands in for the kernel behind ``fcntl.ioctl``, which no test machine can be sure to have."""

    def __init__(self, error: int = 0, reply: bytes = b"") -> None:
        self.error = error
        self.reply = reply
        self.calls: list[tuple[int, bytes]] = []
        self.access = -1

    def ioctl(self, descriptor: int, request: int, argument: bytearray) -> int:
        """Answer as fcntl.ioctl does, and note what was asked."""
        self.calls.append((request, bytes(argument)))
        self.access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        argument[len(argument) - len(self.reply) :] = self.reply
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    return made


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Return a directory that looks like a binderfs."""
    (tmp_path / "binder-control").touch()
    return str(tmp_path)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def iowr(number: int, size: int) -> int:
    """_IOWR('b', number, size) of include/uapi/asm-generic/ioctl.h."""
    return 3 << 30 | size << 16 | ord("b") << 8 | number


@pytest.mark.parametrize(
    ("step", "number", "kind", "word"),
    [
        (Step.MOUNT, errno.ENODEV, BinderMissingError, "CONFIG_ANDROID_BINDERFS"),
        (Step.MOUNT, errno.EPERM, NotPermittedError, "root"),
        (Step.MOUNT, errno.EACCES, NotPermittedError, "root"),
        (Step.MOUNT, errno.EINVAL, BinderfsError, "max="),
        (Step.MOUNT, errno.ENOSPC, DevicesExhaustedError, "1048576"),
        (Step.UNMOUNT, errno.EPERM, NotPermittedError, "root"),
        (Step.UNMOUNT, errno.EBUSY, BinderfsError, "open"),
        (Step.UNMOUNT, errno.EINVAL, BinderfsError, "nothing is mounted"),
        (Step.CONTROL, errno.EACCES, NotPermittedError, "root"),
        (Step.CONTROL, errno.EPERM, NotPermittedError, "device cgroup"),
        (Step.CONTROL, errno.ENOENT, BinderfsError, "mount -t binder"),
        (Step.ADD, errno.EEXIST, DeviceExistsError, "taken"),
        (Step.ADD, errno.EACCES, DeviceNameError, "name"),
        (Step.ADD, errno.EINVAL, BinderfsError, "control file"),
        (Step.ADD, errno.ENOTTY, BinderfsError, "control file"),
        (Step.REMOVE, errno.EACCES, NotPermittedError, "root"),
        (Step.REMOVE, errno.EPERM, NotPermittedError, "nobody"),
        (Step.REMOVE, errno.EBUSY, BinderfsError, "mounted on it"),
        (Step.PROBE, errno.EPERM, NotPermittedError, "device cgroup"),
        (Step.PROBE, errno.EACCES, NotPermittedError, "nodev"),
        (Step.PROBE, errno.ENXIO, BinderMissingError, "copy"),
        (Step.PROBE, errno.ENODEV, BinderMissingError, "driver"),
        (Step.PROBE, errno.ENOTTY, BinderfsError, "not a node of the binder driver"),
        (Step.PROBE, errno.EINVAL, BinderfsError, "not a node of the binder driver"),
        (Step.ADD, errno.EFAULT, BinderfsError, "Bad address"),
    ],
)
def test_a_refusal_of_the_kernel_is_one_line_of_the_right_kind(
    step: Step, number: int, kind: type[BinderfsError], word: str
) -> None:
    """Each errno at each step has its class, and a line with the path, the cause and what to do."""
    error = binderfs.refusal(step, number, "/run/here")
    assert type(error) is kind
    assert str(error).startswith(f"can't {step.value} /run/here: ")
    assert word in str(error).partition("/run/here: ")[2]
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("held", "limit", "words", "not_a_word"),
    [
        (10, 10, ["max=10 is reached", "remount"], "1048576"),
        (11, 10, ["max=10 is reached"], "1048576"),
        (9, 10, ["9 nodes of max=10", "1048576 minors", "open"], "reached"),
        (9, None, ["9 nodes of an unknown max=", "1048576 minors", "open"], "reached"),
    ],
)
def test_a_full_mount_is_told_from_used_up_minors(
    held: int, limit: int | None, words: list[str], not_a_word: str
) -> None:
    """ENOSPC stands for two limits, and the count of the nodes tells which."""
    text = str(binderfs.exhausted("/run/x/a", held, limit))
    assert text.startswith("can't make the node /run/x/a: ")
    assert all(word in text for word in words)
    assert not_a_word not in text


def test_the_request_numbers_are_those_of_the_headers() -> None:
    """BINDER_CTL_ADD and BINDER_VERSION are what the headers' macros come to."""
    assert binderfs.BINDER_CTL_ADD == iowr(1, 256 + 4 + 4) == 3238552065
    assert binderfs.BINDER_VERSION == iowr(9, 4) == 0xC0046209
    assert binderfs.PROTOCOL_VERSION == 8


def test_the_request_is_a_struct_binderfs_device() -> None:
    """The name stands at 0, zero-padded to 256 bytes, and major and minor follow as 0."""
    assert binderfs.add_request("aosp_binder1") == b"aosp_binder1".ljust(256, b"\0") + bytes(8)


def test_the_longest_name_keeps_its_final_zero() -> None:
    """255 bytes are taken, and the kernel still finds the end."""
    assert binderfs.add_request("é" * 127 + "a")[:256] == "é".encode() * 127 + b"a\0"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "x" * 256, "é" * 128])
def test_a_name_that_the_kernel_would_refuse_or_cut_is_refused_first(name: str) -> None:
    """Names that give EACCES, and those that would become another name, never reach the kernel."""
    with pytest.raises(DeviceNameError, match="255 bytes"):
        binderfs.add_request(name)


def test_add_node_sends_the_request_and_returns_the_device_number(directory: str, driver: Driver) -> None:
    """The kernel gets name and number on a descriptor opened for reading, and its answer is st_rdev's form."""
    driver.reply = (244).to_bytes(4, sys.byteorder) + (70000).to_bytes(4, sys.byteorder)
    before = descriptors()
    assert binderfs.add_device(directory, "aosp_binder1") == os.makedev(244, 70000)
    assert driver.calls == [(0xC1086201, b"aosp_binder1".ljust(256, b"\0") + bytes(8))]
    assert driver.access == os.O_RDONLY
    assert descriptors() == before


def test_add_node_says_that_the_name_is_taken_and_closes_the_control_file(directory: str, driver: Driver) -> None:
    """EEXIST is DeviceExistsError with the path, whatever number the kernel wrote back."""
    driver.error, driver.reply = errno.EEXIST, b"\1\0\0\0\2\0\0\0"
    before = descriptors()
    with pytest.raises(DeviceExistsError, match=f"{directory}/a: the name is taken"):
        binderfs.add_device(directory, "a")
    assert descriptors() == before


def test_a_full_mount_does_not_hide_that_the_name_is_taken(directory: str, driver: Driver) -> None:
    """The kernel says ENOSPC before it looks at the name, so a name that is there counts as taken."""
    driver.error = errno.ENOSPC
    os.symlink("nowhere", f"{directory}/a")
    with pytest.raises(DeviceExistsError):
        binderfs.add_device(directory, "a")


def test_a_full_mount_is_named_with_its_limit(directory: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many nodes as max= says, the error is that max= is reached."""
    driver.error = errno.ENOSPC
    monkeypatch.setattr(binderfs, "mount_at", lambda path: BinderfsMount(path, 1, 1))
    os.mknod(f"{directory}/other")
    with pytest.raises(DevicesExhaustedError, match="max=1 is reached"):
        binderfs.add_device(directory, "a")


def test_where_the_mount_table_does_not_help_both_limits_are_named(directory: str, driver: Driver) -> None:
    """A directory that is not in the mount table has an unknown max=."""
    driver.error = errno.ENOSPC
    with pytest.raises(DevicesExhaustedError, match="0 nodes of an unknown max="):
        binderfs.add_device(directory, "a")


def test_a_directory_without_control_file_is_no_binderfs(tmp_path: Path) -> None:
    """The error names the control file and how to get one."""
    with pytest.raises(BinderfsError, match=f"can't open {tmp_path}/binder-control: .*mount -t binder"):
        binderfs.add_device(str(tmp_path), "a")


def test_a_plain_file_is_no_control_file(directory: str) -> None:
    """A real ioctl on a file that only has the name is refused with ENOTTY, and told."""
    with pytest.raises(BinderfsError, match="not the control file of a binderfs") as caught:
        binderfs.add_device(directory, "a")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOTTY


def test_remove_node_says_whether_there_was_one(directory: str) -> None:
    """A node is unlinked; one that is gone is no error."""
    os.mknod(f"{directory}/a")
    assert binderfs.remove_device(directory, "a") is True
    assert not os.path.lexists(f"{directory}/a")
    assert binderfs.remove_device(directory, "a") is False


def test_what_cannot_be_removed_is_told(directory: str) -> None:
    """A directory, as binderfs' features is one, is refused with its path."""
    os.mkdir(f"{directory}/features")
    with pytest.raises(BinderfsError, match=f"can't remove the node {directory}/features: Is a directory"):
        binderfs.remove_device(directory, "features")


def test_the_nodes_are_all_but_directories_and_the_control_file(directory: str) -> None:
    """Not features and binder_logs, which are directories, and not binder-control, which makes nodes."""
    os.mkdir(f"{directory}/features")
    os.mknod(f"{directory}/a")
    os.mknod(f"{directory}/b")
    assert sorted(binderfs.devices_in(directory)) == ["a", "b"]


@pytest.mark.parametrize("version", [8, 7, -1])
def test_binder_version_returns_what_the_driver_says(directory: str, driver: Driver, version: int) -> None:
    """The answer is a signed number, asked for with BINDER_VERSION on a descriptor open for both directions."""
    driver.reply = version.to_bytes(4, sys.byteorder, signed=True)
    before = descriptors()
    assert binderfs.binder_version(f"{directory}/binder-control") == version
    assert driver.calls == [(0xC0046209, bytes(4))]
    assert driver.access == os.O_RDWR
    assert descriptors() == before


def test_a_device_of_another_driver_is_not_binder() -> None:
    """/dev/null opens, but does not know the question."""
    before = descriptors()
    with pytest.raises(BinderfsError, match="/dev/null: it is not a node of the binder driver"):
        binderfs.binder_version("/dev/null")
    assert descriptors() == before


def test_a_node_that_is_gone_is_told_with_its_path(tmp_path: Path) -> None:
    """What has no class of its own comes with the system's text and the OSError as its cause."""
    with pytest.raises(BinderfsError, match=f"{tmp_path}/a: No such file") as caught:
        binderfs.binder_version(f"{tmp_path}/a")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@needs_root
def test_a_device_number_without_driver_is_a_missing_driver(tmp_path: Path) -> None:
    """Opening a number that nobody registered gives ENXIO, as a copy of a binderfs node does."""
    path = str(tmp_path / "a")
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(511, 12345))
    with pytest.raises(BinderMissingError, match="no driver is behind it"):
        binderfs.binder_version(path)


MOUNTINFO = r"""
22 28 0:21 / /sys rw,relatime shared:7 - sysfs sysfs rw
90 28 0:45 / /run/aosp-binderfs rw,relatime shared:40 master:2 - binder binder rw,max=5000
91 28 0:300 / /mnt/a\040b\134c rw - binder my-binder rw,max=1048576,stats=global
92 28 0:45 /aosp_binder1 /var/lib/pod/dev/aosp_binder1 rw - binder binder rw
93 28 259:1 / /mnt/binder rw - ext4 /dev/binder rw,max=9
""".strip()


def test_the_mount_table_is_read_whole() -> None:
    """Every mount of type binder comes back with its path unescaped, its st_dev and its max=; no other does."""
    assert binderfs.binder_mounts(MOUNTINFO) == (
        BinderfsMount("/run/aosp-binderfs", os.makedev(0, 45), 5000),
        BinderfsMount("/mnt/a b\\c", os.makedev(0, 300), 1048576),
        BinderfsMount("/var/lib/pod/dev/aosp_binder1", os.makedev(0, 45), None),
    )


def test_an_unreadable_mount_table_holds_no_binderfs() -> None:
    """Empty text is an empty table."""
    assert binderfs.binder_mounts("") == ()


def test_no_binderfs_is_at_a_plain_or_missing_directory(tmp_path: Path) -> None:
    """The real mount table is asked, and has none there."""
    assert binderfs.mount_at(str(tmp_path)) is None
    assert binderfs.mount_at(str(tmp_path / "missing")) is None


def test_a_mount_is_found_through_links_and_only_if_it_is_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path and st_dev must both be right: what is mounted over a binderfs hides it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real = os.path.realpath(tmp_path / "real")
    device = os.stat(real).st_dev
    table = [BinderfsMount(real, device + 1, 1), BinderfsMount("/other", device, 2), BinderfsMount(real, device, 3)]
    monkeypatch.setattr(binderfs, "binder_mounts", lambda _text: tuple(table))
    assert binderfs.mount_at(str(tmp_path / "link")) == table[2]
    del table[2]
    assert binderfs.mount_at(str(tmp_path / "link")) is None


@pytest.mark.parametrize(
    ("limit", "again", "flags", "options"),
    [(None, False, 0, b""), (7, False, 0, b"max=7"), (9, True, 32, b"max=9")],
)
def test_mount_asks_for_a_binderfs_without_flags(
    monkeypatch: pytest.MonkeyPatch, *, limit: int | None, again: bool, flags: int, options: bytes
) -> None:
    """mount(2) gets type binder, max= where it is asked for, and MS_REMOUNT (32) to change that; never nodev."""
    calls: list[tuple[object, ...]] = []

    def call(*arguments: object) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(binderfs, "_call", call)
    binderfs.mount("/run/x", limit, again=again)
    assert calls == [("mount", b"binder", b"/run/x", b"binder", flags, options)]


@needs_root
@pytest.mark.skipif(
    "binder" in Path("/proc/filesystems").read_text(encoding="ascii").split(), reason="this kernel has binderfs"
)
def test_a_kernel_without_binderfs_is_told(tmp_path: Path) -> None:
    """A real mount(2) gives ENODEV here."""
    with pytest.raises(BinderMissingError, match=f"can't mount a binderfs on {tmp_path}: this kernel has none"):
        binderfs.mount(str(tmp_path))


@needs_root
def test_nobody_but_root_mounts() -> None:
    """A real mount(2) and umount(2) of another user give EPERM, on any kernel."""
    pytest.importorskip("ctypes")  # an interpreter under /root is out of reach in a moment
    os.seteuid(65534)
    try:
        with pytest.raises(NotPermittedError, match="can't mount a binderfs on /: it needs root"):
            binderfs.mount("/")
        with pytest.raises(NotPermittedError, match="can't unmount /proc: it needs root"):
            binderfs.unmount("/proc")
    finally:
        os.seteuid(0)


@needs_root
def test_unmount_unmounts_and_refuses_links(tmp_path: Path) -> None:
    """A real mount goes; where nothing is mounted, or at a link to a mount, the kernel refuses."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real = str(tmp_path / "real")
    number = binderfs._call("mount", b"none", os.fsencode(real), b"tmpfs", 0, b"")
    if not os.path.ismount(real):
        pytest.skip("this root may not mount")
    assert number == 0
    try:
        with pytest.raises(BinderfsError, match="nothing is mounted there"):
            binderfs.unmount(str(tmp_path / "link"))
        assert os.path.ismount(real)
        held = os.open(real, os.O_RDONLY)
        with pytest.raises(BinderfsError, match="a process holds a node of it open"):
            binderfs.unmount(real)
        os.close(held)
        binderfs.unmount(real)
        assert not os.path.ismount(real)
    finally:
        with contextlib.suppress(BinderfsError):
            binderfs.unmount(real)
