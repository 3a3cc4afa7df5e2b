"""hack/binder_devices.py: stand-ins with the host's Python, and binder devices in a fake binderfs."""

import ast
import errno
import fcntl
import os
import pty
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Never

import pytest

from hack import binder_devices as command
from tests.binder_driver import CONTROL, KERNEL_DEVICES, check_new

FILE = Path(command.__file__)
ADD_DEVICE = command.add_device
OLDEST = "3.9"
PYENV = next(map(str, Path.home().glob(f".pyenv/versions/{OLDEST}.*/bin/python")), None)
PYTHON = PYENV or shutil.which(f"python{OLDEST}") or sys.executable
"""The oldest Python if the machine has it. pyenv's own python3.9 in PATH works in some directories only."""
STAND_IN = command.NULL_DEVICE if os.geteuid() == 0 else command.EMPTY_FILE


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


class FakeBinderfs:
    """Files instead of binder devices, in directories that are not mounts."""

    def __init__(self) -> None:
        self.mounts: dict[str, str] = {}
        """The source of each mount."""
        self.calls: list[str] = []
        """The name of each call that changes a mount: "mount" or "unmount"."""
        self.kernel_devices: tuple[str, ...] = ()
        """The binder devices that each mount creates (``devices=`` of the driver)."""
        self.hook: Callable[[str], None] = lambda _step: None
        """Called with the name of each step of the kernel."""

    def mount(self, directory: str, source: str) -> None:
        """Fill the directory as the kernel fills a new binderfs."""
        self.hook("mount")
        self.calls.append("mount")
        self.mounts[directory] = source
        for name in (CONTROL, *self.kernel_devices):
            os.mknod(f"{directory}/{name}")

    def unmount(self, directory: str) -> None:
        """Empty the directory."""
        self.calls.append("unmount")
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        del self.mounts[directory]

    def add_device(self, directory: str, name: str) -> None:
        """Create a file with the mode that the kernel gives."""
        check_new(name, os.listdir(directory))
        os.mknod(f"{directory}/{name}", 0o600)
        self.hook(f"add {name}")


class Host:
    """A device directory and a fake binderfs, for commands that run in this process."""

    def __init__(self, directory: Path, kernel: FakeBinderfs, capture: pytest.CaptureFixture[str]) -> None:
        self.dev, self.binderfs, self.kernel = directory / "dev", directory / "binderfs", kernel
        self.dev.mkdir()
        self._capture = capture

    def run(self, *arguments: str) -> Done:
        """Run a command with the prefix ``a``."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["binder_devices.py", *arguments, "--prefix=a", f"--device-dir={self.dev}"])
            code = command.main()
        return Done(code, *self._capture.readouterr())

    def links(self) -> dict[str, str]:
        """Return the target of each link in the device directory."""
        return {path.name: os.readlink(path) for path in self.dev.iterdir() if path.is_symlink()}

    def devices(self) -> dict[str, int]:
        """Return the permissions of each binder device."""
        return {path.name: stat.S_IMODE(path.stat().st_mode) for path in self.binderfs.glob("a*")}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Host:
    host = Host(tmp_path, FakeBinderfs(), capsys)
    monkeypatch.setattr(command, "BINDERFS", str(host.binderfs))
    monkeypatch.setattr(command, "mount", host.kernel.mount)
    monkeypatch.setattr(command, "unmount", host.kernel.unmount)
    monkeypatch.setattr(command, "mounted_source", lambda path: host.kernel.mounts.get(path, ""))
    monkeypatch.setattr(command, "add_device", host.kernel.add_device)
    return host


def names(count: int) -> list[str]:
    return [f"a{number}" for number in range(count)]


def test_the_file_is_valid_in_the_oldest_python() -> None:
    ast.parse(FILE.read_text(encoding="utf-8"), feature_version=tuple(map(int, OLDEST.split("."))))  # type: ignore[arg-type] # two numbers


@pytest.fixture
def memory() -> Iterator[Path]:
    """Return an empty directory in memory: on a disk, device files can take milliseconds each."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def test_5000_stand_ins_are_created_listed_and_deleted_without_installed_packages(memory: Path) -> None:
    """A terminal shows the progress."""
    terminal, stderr = pty.openpty()

    def run(*arguments: str) -> list[str]:
        line = (PYTHON, "-I", "-S", str(FILE), *arguments, f"--device-dir={memory}")
        return subprocess.run(line, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True).stdout.splitlines()  # noqa: S603 - this repository's file

    created = f"created, {{}} already present ({STAND_IN}s, not binder)"
    assert run("create", "--count=5000", "--stand-ins") == [f"{memory}: 5000 {created.format(0)}"]
    assert os.read(terminal, 10_000).startswith(b"\r\x1b[K0 of 5000 devices\r\x1b[K100 of 5000 devices")
    assert {path.stat().st_mode & 0o777 for path in memory.iterdir()} == {0o666}
    assert run("create", "--count=5001", "--stand-ins") == [f"{memory}: 1 {created.format(5000)}"]
    *devices, counts = run("list")
    assert devices[9:11] == [f"aosp_binder{number}\t{STAND_IN}\t{memory}/aosp_binder{number}" for number in (9, 10)]
    assert (len(devices), counts) == (5001, f"{memory}: 5001 {STAND_IN}")
    assert run("delete") == [f"{memory}: 5001 deleted"]
    assert run("list") == [f"{memory}: no devices"]
    os.close(terminal)
    os.close(stderr)


def test_create_links_to_devices_in_its_binderfs(host: Host) -> None:
    (host.dev / "a012").touch()
    done = host.run("create", "--start=9", "--count=2")
    assert done == (0, f"{host.dev}: 2 created, 0 already present (binder devices at {host.binderfs})\n", "")
    assert host.links() == {name: f"{host.binderfs}/{name}" for name in ("a9", "a10")}
    assert host.devices() == {"a9": 0o666, "a10": 0o666}
    (host.binderfs / "a9").unlink()
    assert host.run("list").out.splitlines() == [
        f"a9\tmissing\t{host.binderfs}/a9",
        f"a10\tbinder\t{host.binderfs}/a10",
        f"{host.dev}: 1 missing, 1 binder",
    ]


@pytest.mark.parametrize("step", ["mount", "add a0", "add a7"])
def test_create_completes_what_an_interrupted_one_has_begun(host: Host, step: str) -> None:
    """A device whose mode and link are missing is completed, too."""

    def interrupt(reached: str) -> None:
        if reached == step:
            raise KeyboardInterrupt

    host.kernel.hook = interrupt
    again = "binder_devices.py: interrupted: run the same command again to continue\n"
    assert host.run("create", "--count=8") == (130, "", again)
    host.kernel.hook = lambda _step: None
    assert host.run("create", "--count=8").code == 0
    assert (set(host.links()), host.devices()) == (set(names(8)), dict.fromkeys(names(8), 0o666))
    assert host.kernel.calls == ["mount"]


def test_delete_completes_what_an_interrupted_one_has_begun(host: Host) -> None:
    """Also devices without links, of an interrupted creation. Devices of the kernel do not keep the binderfs."""
    host.kernel.kernel_devices = KERNEL_DEVICES
    host.run("create", "--count=6")
    (host.binderfs / "a0").unlink()
    (host.dev / "a1").unlink()
    assert host.run("delete") == (0, f"{host.dev}: 6 deleted\n", "")
    assert (os.listdir(host.dev), host.kernel.mounts) == ([], {})
    assert host.binderfs.is_dir(), "a container may have the directory as a volume"


def test_delete_leaves_foreign_files_and_devices_of_another_prefix(host: Host) -> None:
    host.run("create", "--count=2")
    (host.dev / "a5").write_text("mine")
    (host.dev / "a6").symlink_to(f"{host.binderfs}/a0")
    (host.dev / "a07").touch()
    host.kernel.add_device(str(host.binderfs), "b0")
    (host.dev / "b0").symlink_to(f"{host.binderfs}/b0")
    assert host.run("delete") == (0, f"{host.dev}: 2 deleted\n", "")
    assert set(os.listdir(host.dev)) == {"a5", "a6", "a07", "b0"}
    assert set(os.listdir(host.binderfs)) == {"binder-control", "b0"}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("link", ()),
        ("fifo", ("--stand-ins",)),
        ("empty file", ()),
    ],
)
def test_create_names_what_is_in_the_way_and_creates_nothing(host: Host, kind: str, arguments: tuple[str, ...]) -> None:
    path = host.dev / "a1"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("null")
    else:
        path.write_text("" if kind == "empty file" else "mine")
    expected = f"binder_devices.py: {path} is in the way: remove it, or choose another --prefix or --start\n"
    assert host.run("create", "--count=3", *arguments) == (1, "", expected)
    assert (os.listdir(host.dev), host.kernel.calls) == (["a1"], [])


@pytest.mark.parametrize("source", ["binder", "aosp-test-devices:/elsewhere"])
def test_another_binderfs_in_the_place_is_left_alone(host: Host, source: str) -> None:
    host.binderfs.mkdir()
    host.kernel.mount(str(host.binderfs), source)
    host.kernel.add_device(str(host.binderfs), "a0")
    expected = f"the binderfs at {host.binderfs} is not for {host.dev} but is {source}: unmount it"
    for arguments in (("create", "--count=2"), ("delete",)):
        assert host.run(*arguments) == (1, "", f"binder_devices.py: {expected}\n")
    assert (list(host.devices()), host.kernel.mounts[str(host.binderfs)]) == (["a0"], source)


def test_limit_of_the_kernel_and_an_unreadable_directory_are_one_line(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Never:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "binder-control").touch()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "ioctl", refuse)
        with pytest.raises(command.CommandError, match=r"^cannot create .*/a0: a limit is reached"):
            ADD_DEVICE(str(tmp_path), "a0")
    host.dev.rmdir()
    done = host.run("list")
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
