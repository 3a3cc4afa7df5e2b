"""binderfs operations: exact requests to the kernel, and errors for its refusals."""

import contextlib
import errno
import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError, DevicesExhaustedError, NotPermittedError, Step
from aosp_plugin.binder.driver.host import MODULE_NAMES

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="creates devices or mounts, which requires root")


class Driver:
    """Replaces ``fcntl.ioctl``, because a test machine may have no binder driver."""

    def __init__(self, error: int = 0, reply: bytes = b"") -> None:
        self.error = error
        self.reply = reply
        self.calls: list[tuple[int, bytes]] = []
        self.access = -1

    def ioctl(self, descriptor: int, request: int, argument: bytearray) -> int:
        """Record the call, and write ``reply`` to the end of the argument."""
        self.calls.append((request, bytes(argument)))
        self.access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        argument[len(argument) - len(self.reply) :] = self.reply
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(fcntl, "ioctl", driver.ioctl)
    return driver


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Return a directory with a control file."""
    (tmp_path / "binder-control").touch()
    return str(tmp_path)


def test_refusal_has_the_class_and_text_for_the_errno() -> None:
    """An errno without an entry of its own gets the system's text."""
    for step, number, kind, cause in (
        (Step.MOUNT, errno.ENODEV, BinderfsError, "CONFIG_ANDROID_BINDERFS"),
        (Step.ADD, errno.EACCES, BinderfsError, "invalid name"),
        (Step.ADD, errno.ENOSPC, DevicesExhaustedError, "the max= of the mount is reached.* or all 1048576"),
        (Step.PROBE, errno.EACCES, NotPermittedError, "nodev"),
        (Step.PROBE, errno.ENXIO, BinderfsError, "a copy of it never opens"),
        (Step.ADD, errno.EFAULT, BinderfsError, "Bad address"),
    ):
        error = binderfs.kernel_error(step, number, "/run/here")
        assert type(error) is kind
        assert str(error).startswith(f"cannot {step.value} /run/here: ")
        assert re.search(cause, str(error))


def test_kernel_without_binderfs_may_have_loaded_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian's, which is built without binderfs: to load it again changes nothing."""
    for module, cause in (("other", "modprobe binder_linux"), (MODULE_NAMES[-1], "is loaded, and was built without")):
        (tmp_path / module).mkdir()
        monkeypatch.setattr(binderfs, "MODULES", str(tmp_path))
        assert cause in str(binderfs.kernel_error(Step.MOUNT, errno.ENODEV, "/run/here"))


def test_add_request_rejects_names_that_the_kernel_truncates() -> None:
    with pytest.raises(BinderfsError, match="255 bytes"):
        binderfs.add_request("é" * 128)
    assert binderfs.add_request("é" * 127 + "a")[:256] == "é".encode() * 127 + b"a\0", "the longest name"


@pytest.fixture
def no_leaked_descriptor() -> Iterator[None]:
    """Fail if the test leaves a descriptor open."""
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) <= len(before), "a host of another test may have been collected"


@pytest.mark.usefixtures("no_leaked_descriptor")
def test_add_device_sends_the_request_and_returns_the_device_number(directory: str, driver: Driver) -> None:
    """The request is a struct binderfs_device: the name in 256 bytes, and room for the major and minor number.

    The request number is _IOWR('b', 1, struct binderfs_device). The descriptor is read-only.
    """
    driver.reply = (244).to_bytes(4, sys.byteorder) + (70000).to_bytes(4, sys.byteorder)
    assert binderfs.add_device(directory, "aosp_binder1") == os.makedev(244, 70000)
    assert driver.calls == [(0xC1086201, b"aosp_binder1".ljust(256, b"\0") + bytes(8))]
    assert driver.access == os.O_RDONLY


def test_remove_device_accepts_that_the_device_does_not_exist(directory: str) -> None:
    os.mkdir(f"{directory}/features")
    os.mknod(f"{directory}/a")
    assert binderfs.device_names(directory) == ["a"]
    for _ in range(2):
        binderfs.remove_device(directory, "a")
    assert binderfs.device_names(directory) == []
    with pytest.raises(BinderfsError, match=f"cannot remove {directory}/features: Is a directory"):
        binderfs.remove_device(directory, "features")


@pytest.mark.usefixtures("no_leaked_descriptor")
def test_binder_version_returns_the_version_of_the_driver(directory: str, driver: Driver) -> None:
    """The request number is _IOWR('b', 9, struct binder_version). The descriptor is read-write."""
    for version in (8, -1):
        driver.reply = version.to_bytes(4, sys.byteorder, signed=True)
        assert binderfs.binder_version(f"{directory}/binder-control") == version
    assert driver.calls == [(0xC0046209, bytes(4))] * 2
    assert driver.access == os.O_RDWR


def test_files_of_other_drivers_and_directories_without_a_control_file_are_rejected(directory: str) -> None:
    """The ioctl is a real one here and fails with ENOTTY."""
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: binderfs.binder_version("/dev/null"), "/dev/null: not a device of the binder driver"),
        (lambda: binderfs.binder_version("/dev/none"), "/dev/none: No such file"),
        (lambda: binderfs.add_device(directory, "a"), "not the control file of a binderfs"),
        (lambda: binderfs.add_device("/none", "a"), "cannot open /none/binder-control: .*mount -t binder"),
    ]
    for call, error in cases:
        with pytest.raises(BinderfsError, match=error):
            call()


@needs_root
def test_unmount_rejects_links_and_busy_mounts(tmp_path: Path) -> None:
    """The mount is a real one, a tmpfs."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real = str(tmp_path / "real")
    try:
        binderfs.call("mount", b"none", os.fsencode(real), b"tmpfs", 0, b"")
    except PermissionError:
        pytest.skip("this root may not mount")
    try:
        with pytest.raises(BinderfsError, match="not a mount point"):
            binderfs.unmount(str(tmp_path / "link"))
        assert os.path.ismount(real)
        descriptor = os.open(real, os.O_RDONLY)
        with pytest.raises(BinderfsError, match="a process has one of its devices open"):
            binderfs.unmount(real)
        os.close(descriptor)
        binderfs.unmount(real)
        assert not os.path.ismount(real)
    finally:
        with contextlib.suppress(BinderfsError):
            binderfs.unmount(real)
