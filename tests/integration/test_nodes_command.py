"""``aosp-plugin nodes``: real processes and files, as an operator uses them."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from aosp_plugin.binder.provision.bulk import BINDERFS_DIR
from kubelet_standin import Kubelet
from tests.support import RESOURCE, DeviceDirectory, Serve, run_command, unprivileged

CHECKOUT = Path(__file__).parents[2]
NODES = (sys.executable, "-m", "aosp_plugin", "nodes")


class Done(NamedTuple):
    """A command that ended."""

    code: int
    out: str
    err: str


def run(*arguments: str) -> Done:
    """Run ``aosp-plugin nodes`` to its end, in this process."""
    return Done(*run_command("nodes", *arguments))


def start(command: list[str]) -> Done:
    """Run a command to its end."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)  # noqa: S603
    return Done(done.returncode, done.stdout, done.stderr)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="runs the command as another user, which requires root")
no_binderfs = pytest.mark.skipif(
    "\tbinder\n" in Path("/proc/filesystems").read_text(encoding="ascii"), reason="requires a kernel without binderfs"
)


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


def test_the_commands_create_list_and_delete(dev: Path) -> None:
    where = ("--device-dir", str(dev))
    created = run("create", "--count", "2", "--start", "9", "--stand-ins", *where)
    assert (created.code, created.err) == (0, "")
    assert created.out.startswith(f"{dev}: 2 devices created, 0 already present (aosp_binder9 to aosp_binder10, ")
    assert {path.stat().st_mode & 0o777 for path in dev.iterdir()} == {0o666}
    kind, names = "stand-in" if os.geteuid() == 0 else "file", ["aosp_binder9", "aosp_binder10"]
    listed = run("list", *where)
    assert listed == (0, "".join(f"{name}\t{kind}\t{dev}/{name}\n" for name in names), "")
    as_json = run("list", "--json", *where)
    assert json.loads(as_json.out) == [
        {"name": name, "kind": kind, "path": f"{dev}/{name}", "target": ""} for name in names
    ]
    assert run("delete", *where) == (0, f"{dev}: 2 devices deleted\n", "")
    assert json.loads(run("list", "--json", *where).out) == []


def test_a_failure_is_one_line_and_exit_code_1() -> None:
    assert run("list", "--device-dir", "/nope") == (
        1,
        "",
        "aosp-plugin: cannot read the device directory /nope: No such file or directory\n",
    )


@pytest.mark.parametrize(
    "command", [("create", "--count", "2"), ("list",), ("delete",)], ids=lambda command: command[0]
)
@pytest.mark.parametrize("stand_ins", [False, True])
def test_a_directory_that_cannot_be_read_is_one_line(
    command: tuple[str, ...], tmp_path: Path, *, stand_ins: bool
) -> None:
    """It is a link to itself, a file, or missing."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for name, reason in (("loop", "Too many levels"), ("file", "Not a directory"), ("none/x", "No such file")):
        flags = ["--stand-ins"] if stand_ins and command[0] == "create" else []
        done = run(*command, *flags, "--device-dir", f"{tmp_path}/{name}")
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert done.err.startswith(f"aosp-plugin: cannot read the device directory {tmp_path}/{name}: {reason}")


@no_binderfs
def test_create_on_a_host_without_binder_says_what_to_load(dev: Path) -> None:
    """Also as root: stand-ins, copies of /dev/null, are created on request only."""
    done = run("create", "--count", "360", "--device-dir", str(dev))
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"aosp-plugin: cannot mount a binderfs on {BINDERFS_DIR}: this kernel has no binderfs: modprobe binder_linux, "
        "or boot a kernel with CONFIG_ANDROID_BINDERFS\n"
    )
    assert not os.listdir(dev)


@needs_root
@pytest.mark.parametrize("variant", ["base", "provision", "privileged"])
async def test_stand_ins_are_unhealthy_with_the_configuration_of_the_manifests(
    variant: str, device_directory: DeviceDirectory, kubelet_dir: str, tmp_path: Path
) -> None:
    """Null devices in the device directory never reach a container as binder devices."""
    dev = str(device_directory.directory)
    assert run("create", "--count", "3", "--stand-ins", "--device-dir", dev).code == 0
    assert {os.stat(entry).st_rdev for entry in os.scandir(dev)} == {os.makedev(1, 3)}
    document = yaml.safe_load((CHECKOUT / f"deploy/{variant}/config.yaml").read_text())
    document |= {"device_dir": dev, "kubelet_dir": kubelet_dir, "listen": "", "phones": None}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(document | {"recreate": "never"}))
    flags = ("--config", str(tmp_path / "config.yaml"))
    async with Kubelet(kubelet_dir) as kubelet, Serve(device_directory, kubelet_dir, *flags, usual_flags=False):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).capacity == 3)
        assert kubelet.resource(RESOURCE).allocatable == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["create", "--count", "0"], "--count.*: 0 is not in the range 1<=x<=1048576"),
        (["create", "--start", "1"], "--count"),
        (["create", "--count", "1", "--prefix", "a/b"], "--prefix: 'a/b' gives names like 'a/b0': it is a path"),
        (["magic"], "'magic'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], text: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert re.match(f"aosp-plugin: .*{text}.*\n$", done.err), done.err


@needs_root
def test_an_unprivileged_user_creates_files_in_a_directory_of_their_own(public_dev: Path) -> None:
    where = ["--device-dir", str(public_dev)]
    created = start(unprivileged([*NODES, "create", "--count", "2", "--stand-ins", *where]))
    assert created.out.endswith("(aosp_binder0 to aosp_binder1, empty files, not binder)\n")
    assert start(unprivileged([*NODES, "delete", *where])) == (0, f"{public_dev}: 2 devices deleted\n", "")
    in_dev = start(unprivileged([*NODES, "create", "--count", "1", "--stand-ins", "--prefix", "test_binder"]))
    assert (in_dev.code, in_dev.out) == (1, "")
    assert in_dev.err == ("aosp-plugin: cannot create devices in /dev: Permission denied: run as root\n")


def test_a_reader_that_stops_early_is_not_an_error(dev: Path) -> None:
    run("create", "--count", "3000", "--stand-ins", "--device-dir", str(dev))
    done = start(["/bin/sh", "-c", f"{' '.join(NODES)} list --device-dir {dev} | head -1"])
    assert done.out.startswith("aosp_binder0\t")
    assert done.err == ""


def test_output_that_cannot_be_written_is_one_line(dev: Path) -> None:
    (dev / "aosp_binder0").touch()
    done = start(["/bin/sh", "-c", f"{' '.join(NODES)} list --device-dir {dev} > /dev/full"])
    assert done == (1, "", "aosp-plugin: [Errno 28] No space left on device\n")


def test_ctrl_c_is_one_line_and_the_same_command_continues(dev: Path) -> None:
    arguments = ("create", "--count", "20000", "--stand-ins", "--device-dir", str(dev))
    with subprocess.Popen(  # noqa: S603 - a command of this test
        [*NODES, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=CHECKOUT
    ) as process:
        while not os.listdir(dev):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert err == "aosp-plugin: interrupted: run the same command again to continue\n"
    assert 0 < len(os.listdir(dev)) < 20000
    assert run(*arguments).code == 0
    assert len(os.listdir(dev)) == 20000
