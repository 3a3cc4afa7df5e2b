"""``aosp-plugin nodes`` and ``hack/binder_nodes.py``: real processes and files, as an operator uses them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import yaml

from kubelet_standin import Kubelet
from tests.support import RESOURCE, DeviceDirectory, Serve, unprivileged

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).parents[2]
SCRIPT = str(CHECKOUT / "hack" / "binder_nodes.py")
SYSTEM_PYTHON = "/usr/bin/python3"


class Done(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


class FrontEnd(NamedTuple):
    """One of the two commands."""

    command: tuple[str, ...]
    prefix: str
    """What every error starts with."""

    def run(self, *arguments: str) -> Done:
        """Run the command to its end."""
        return start([*self.command, *arguments])


PLUGIN = FrontEnd((sys.executable, "-m", "aosp_plugin", "nodes"), "aosp-plugin: ")
HACK = FrontEnd((sys.executable, "-I", "-S", SCRIPT), "binder_nodes: ")
"""Isolated, and without site-packages: as with the Python of a host that has no package installed."""


def start(command: list[str]) -> Done:
    """Run a command to its end."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)  # noqa: S603
    return Done(done.returncode, done.stdout, done.stderr)


def _has_system_python() -> bool:
    recent = "import sys; sys.exit(sys.version_info < (3, 11))"
    return os.access(SYSTEM_PYTHON, os.X_OK) and start([SYSTEM_PYTHON, "-c", recent]).code == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="runs the command as another user, which requires root")
needs_system_python = pytest.mark.skipif(
    not _has_system_python(), reason="requires a system Python of version 3.11 or later, which every user can run"
)
no_binderfs = pytest.mark.skipif(
    "\tbinder\n" in Path("/proc/filesystems").read_text(encoding="ascii"), reason="requires a kernel without binderfs"
)
both = pytest.mark.parametrize("front_end", [PLUGIN, HACK], ids=["aosp-plugin", "hack"])


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    directory = tmp_path / "dev"
    directory.mkdir()
    return directory


@pytest.fixture
def public_dev() -> Iterator[Path]:
    """Create a device directory that every user can write to."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


@both
def test_the_commands_create_list_and_delete(front_end: FrontEnd, dev: Path) -> None:
    where = ("--device-dir", str(dev))
    created = front_end.run("create", "--count", "2", "--start", "9", "--mode", "0640", "--stand-ins", *where)
    assert (created.code, created.err) == (0, "")
    assert created.out.startswith(f"{dev}: 2 stand-ins created, 0 already present (aosp_binder9 to aosp_binder10, ")
    assert {path.stat().st_mode & 0o777 for path in dev.iterdir()} == {0o640}
    kind, names = "stand-in" if os.geteuid() == 0 else "file", ["aosp_binder9", "aosp_binder10"]
    listed = front_end.run("list", *where)
    assert listed == (0, "".join(f"{name}\t{kind}\t{dev}/{name}\n" for name in names), "")
    as_json = front_end.run("list", "--json", *where)
    assert json.loads(as_json.out) == [
        {"name": name, "kind": kind, "path": f"{dev}/{name}", "target": ""} for name in names
    ]
    assert front_end.run("delete", *where) == (0, f"{dev}: 2 stand-ins deleted\n", "")
    assert json.loads(front_end.run("list", "--json", *where).out) == []


@both
def test_a_failure_is_one_line_and_exit_code_1(front_end: FrontEnd) -> None:
    assert front_end.run("list", "--device-dir", "/nope") == (
        1,
        "",
        f"{front_end.prefix}cannot read the device directory /nope: No such file or directory\n",
    )


@both
@pytest.mark.parametrize(
    "command", [("create", "--count", "2"), ("list",), ("delete",)], ids=lambda command: command[0]
)
@pytest.mark.parametrize("stand_ins", [False, True])
def test_a_directory_that_cannot_be_read_is_one_line(
    front_end: FrontEnd, command: tuple[str, ...], tmp_path: Path, *, stand_ins: bool
) -> None:
    """It is a link to itself, a file, or missing."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name, reason in (("loop", "Too many levels"), ("file", "Not a directory"), ("none/x", "No such file")):
        flags = ["--stand-ins"] if stand_ins and command[0] == "create" else []
        done = front_end.run(*command, *flags, "--device-dir", f"{tmp_path}/{name}")
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert done.err.startswith(f"{front_end.prefix}cannot read the device directory {tmp_path}/{name}: {reason}")


@both
@no_binderfs
def test_create_on_a_host_without_binder_says_what_to_load(front_end: FrontEnd, dev: Path) -> None:
    """Also as root: stand-ins, copies of /dev/null, are created on request only."""
    done = front_end.run("create", "--count", "360", "--device-dir", str(dev))
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"{front_end.prefix}this kernel has no binderfs: modprobe binder_linux, or boot a kernel with "
        "CONFIG_ANDROID_BINDERFS; --stand-ins creates test devices that are not binder\n"
    )
    assert not os.listdir(dev)


@needs_root
@pytest.mark.parametrize("variant", ["base", "provision", "privileged"])
async def test_stand_ins_are_unhealthy_with_the_configuration_of_the_manifests(
    variant: str, device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path
) -> None:
    """Null devices in the device directory never reach a container as binder devices."""
    dev = str(device_directory.directory)
    assert PLUGIN.run("create", "--count", "3", "--stand-ins", "--device-dir", dev).code == 0
    assert {os.stat(entry).st_rdev for entry in os.scandir(dev)} == {os.makedev(1, 3)}
    document = yaml.safe_load((CHECKOUT / f"deploy/{variant}/config.yaml").read_text())
    document |= {"device_dir": dev, "kubelet_dir": kubelet_dir, "listen": "", "phones": None}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(document | {"recreate": "never"}))
    flags = ("--config", str(tmp_path / "config.yaml"))
    async with Kubelet(kubelet_dir) as kubelet, Serve(device_directory, kubelet_dir, *flags, usual_flags=False):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 3)
        assert kubelet.resource(RESOURCE).allocatable == 0


@both
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "--count", "0"], "--count: 0 is not a number from 1 to 1048576"),
        (["create", "--start", "1"], "--count"),
        (["create", "--count", "1", "--mode", "4755"], "--mode.*: '4755' is not an octal mode from 0000 to 0777"),
        (
            ["create", "--count", "1", "--binderfs-dir", "/dev/binderfs"],
            "--binderfs-dir: '/dev/binderfs' is below /dev",
        ),
        (["delete", "--binderfs-dir", ""], "--binderfs-dir: '' is not allowed: it is empty"),
        (["magic"], "'magic'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(front_end: FrontEnd, arguments: list[str], text: str) -> None:
    done = front_end.run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert re.match(f"{front_end.prefix}.*{text}.*\n$", done.err), done.err


def test_the_script_imports_the_standard_library_alone() -> None:
    program = (
        f"import sys, runpy; sys.argv = ['x', '--help']; runpy.run_path({SCRIPT!r}, run_name='module'); "
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    done = start([sys.executable, "-I", "-S", "-c", program])
    assert set(done.out.split()) <= {"aosp_plugin", "__main__", "_distutils_hack", "a1_coverage"}


def test_the_script_names_the_required_python() -> None:
    program = f"import runpy, sys; sys.version_info = (3, 10); runpy.run_path({SCRIPT!r}, run_name='__main__')"
    done = start([sys.executable, "-I", "-S", "-c", program])
    assert done.code == 1
    assert re.fullmatch(r"binder_nodes: Python 3\.11 or later is required; this is [\d.+]+\n", done.err)


@needs_root
@needs_system_python
def test_an_unprivileged_user_creates_files_in_a_directory_of_their_own(public_dev: Path) -> None:
    command = [SYSTEM_PYTHON, "-I", "-S", SCRIPT]
    where = ["--device-dir", str(public_dev)]
    created = start(unprivileged([*command, "create", "--count", "2", "--stand-ins", *where]))
    assert created.out.endswith("(aosp_binder0 to aosp_binder1, empty files, not binder)\n")
    assert start(unprivileged([*command, "delete", *where])) == (0, f"{public_dev}: 2 stand-ins deleted\n", "")
    in_dev = start(unprivileged([*command, "create", "--count", "1", "--stand-ins", "--prefix", "test_binder"]))
    assert (in_dev.code, in_dev.out) == (1, "")
    assert in_dev.err == ("binder_nodes: cannot create /dev/test_binder0: Permission denied: run as root\n")


@both
def test_a_reader_that_stops_early_is_not_an_error(front_end: FrontEnd, dev: Path) -> None:
    front_end.run("create", "--count", "3000", "--stand-ins", "--device-dir", str(dev))
    done = start(["/bin/sh", "-c", f"{' '.join(front_end.command)} list --device-dir {dev} | head -1"])
    assert done.out.startswith("aosp_binder0\t")
    assert done.err == ""


@both
def test_output_that_cannot_be_written_is_one_line(front_end: FrontEnd, dev: Path) -> None:
    (dev / "aosp_binder0").touch()
    done = start(["/bin/sh", "-c", f"{' '.join(front_end.command)} list --device-dir {dev} > /dev/full"])
    assert done == (1, "", f"{front_end.prefix}[Errno 28] No space left on device\n")


@both
def test_ctrl_c_is_one_line_and_the_same_command_continues(front_end: FrontEnd, dev: Path) -> None:
    arguments = ("create", "--count", "20000", "--stand-ins", "--device-dir", str(dev))
    with subprocess.Popen(  # noqa: S603 - a command of this test
        [*front_end.command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT
    ) as process:
        while not os.listdir(dev):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err == f"{front_end.prefix}interrupted: run the same command again to continue\n"
    assert 0 < len(os.listdir(dev)) < 20000
    assert front_end.run(*arguments).code == 0
    assert len(os.listdir(dev)) == 20000
