"""``aosp-plugin nodes`` and ``hack/binder_nodes.py``: real processes and files, as a person would use them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.provision import bulk
from aosp_plugin.cli import nodes
from aosp_plugin.cli.nodes import main
from tests.support import as_nobody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKOUT = Path(__file__).parents[2]
SCRIPT = str(CHECKOUT / "hack" / "binder_nodes.py")
LEDGER = ".aosp-binder-nodes.json"
SYSTEM_PYTHON = "/usr/bin/python3"


def start(command: list[str], *, nobody: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as a user who is nobody if that is asked for."""
    if nobody:
        command = as_nobody(command)
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": "/", **more}
    done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603 - commands of these tests
        command, text=True, check=False, **settings
    )
    return done


def run(*arguments: str, python: str = sys.executable, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the script of the bare checkout, with no site-packages in its reach."""
    return start([python, "-I", "-S", SCRIPT, *arguments], **more)


def _system_python_will_do() -> bool:
    recent = "import sys; sys.exit(sys.version_info < (3, 11))"
    return os.access(SYSTEM_PYTHON, os.X_OK) and start([SYSTEM_PYTHON, "-c", recent]).returncode == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes devices or changes its user, which needs root")
needs_system_python = pytest.mark.skipif(
    not _system_python_will_do(), reason="needs a Python of the system's, 3.11 or later, for any user to run"
)
no_binderfs = pytest.mark.skipif(
    "binder" in Path("/proc/filesystems").read_text(encoding="ascii").split(), reason="this kernel has binderfs"
)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    directory = tmp_path / "dev"
    directory.mkdir()
    return directory


@pytest.fixture
def open_dev() -> Iterator[Path]:
    """Make a directory that any user may write to, where any user may go; in memory if that is possible."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as made:
        Path(made).chmod(0o777)
        yield Path(made)


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


def test_the_script_creates_lists_and_deletes_with_the_standard_library_alone(dev: Path) -> None:
    """A bare checkout does the whole round, each command with one summary and nothing on stderr."""
    where = ("--device-dir", str(dev))
    created = run("create", "--count", "3", "--start", "9", "--way", "file", *where)
    assert (created.returncode, created.stderr) == (0, "")
    assert created.stdout == (
        f"{dev}: aosp_binder9 to aosp_binder11 are there, 3 made now and 0 before (plain files, not devices)\n"
    )
    assert names(dev) == {"aosp_binder9", "aosp_binder10", "aosp_binder11", LEDGER}
    assert (dev / "aosp_binder9").stat().st_mode & 0o777 == 0o666
    listed = run("list", *where)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines() == [f"aosp_binder{n}\tfile\t{dev}/aosp_binder{n}" for n in (9, 10, 11)]
    deleted = run("delete", *where)
    assert (deleted.returncode, deleted.stderr) == (0, "")
    assert deleted.stdout == f"{dev}: 3 nodes deleted, 0 things left\n"
    assert names(dev) == set()


def test_nothing_but_the_standard_library_is_imported() -> None:
    """Neither the command nor what it stands on needs a package, on any path through its imports."""
    program = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); import aosp_plugin.cli.nodes; "
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    done = start([sys.executable, "-I", "-S", "-c", program])
    assert set(done.stdout.split()) <= {"aosp_plugin", "__main__", "_distutils_hack", "a1_coverage"}


def test_an_old_python_is_told() -> None:
    """A distribution's older Python gets a line, not a traceback from the depths of an import."""
    program = f"import runpy, sys; sys.version_info = (3, 10); runpy.run_path({SCRIPT!r}, run_name='__main__')"
    done = start([sys.executable, "-I", "-S", "-c", program])
    assert done.returncode == 1
    assert done.stderr.startswith("error: this needs Python 3.11 or later, and this is ")
    assert len(done.stderr.splitlines()) == 1


@needs_root
def test_stand_ins_are_made_by_root(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--way mknod makes character devices, and the summary does not call them binder."""
    assert main(["create", "--count", "2", "--way", "mknod", "--mode", "0600", "--device-dir", str(dev)]) == 0
    assert "(stand-ins: null devices, not binder)" in capsys.readouterr().out
    assert (dev / "aosp_binder1").is_char_device()
    assert (dev / "aosp_binder1").stat().st_mode & 0o777 == 0o600
    assert main(["delete", "--device-dir", str(dev)]) == 0


@needs_root
@no_binderfs
def test_auto_says_why_it_makes_stand_ins(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Root on a kernel without binderfs gets stand-ins, and is told so."""
    assert main(["create", "--count", "1", "--device-dir", str(dev)]) == 0
    assert capsys.readouterr().out.endswith("not binder, since this kernel has no binderfs)\n")
    assert (dev / "aosp_binder0").is_char_device()


@needs_root
@needs_system_python
def test_auto_makes_plain_files_without_root(open_dev: Path) -> None:
    """Another user gets files, is told so, and can delete them; devices and mounts are refused in one line."""
    where = ("--device-dir", str(open_dev))
    created = run("create", "--count", "2", *where, python=SYSTEM_PYTHON, nobody=True)
    assert created.stdout.endswith("2 made now and 0 before (plain files, not devices, since this is not root)\n")
    deleted = run("delete", *where, python=SYSTEM_PYTHON, nobody=True)
    assert deleted.stdout == f"{open_dev}: 2 nodes deleted, 0 things left\n"
    devices = run("create", "--count", "2", "--way", "mknod", *where, python=SYSTEM_PYTHON, nobody=True)
    assert devices.returncode == 1
    assert devices.stderr == (
        f"error: can't make {open_dev}/aosp_binder0: Operation not permitted: "
        "devices need root and CAP_MKNOD, plain files do not\n"
    )
    mount = ("--way", "binderfs", "--binderfs-dir", f"{open_dev}/binderfs")
    real = run("create", "--count", "2", *mount, *where, python=SYSTEM_PYTHON, nobody=True)
    assert (real.returncode, real.stderr) == (
        1,
        f"error: cannot mount a binderfs on {open_dev}/binderfs: requires root (CAP_SYS_ADMIN on the host)\n",
    )
    assert names(open_dev) == set()


@needs_root
@needs_system_python
def test_dev_is_not_for_everybody(open_dev: Path) -> None:
    """Without root and without --device-dir, the error says what to do."""
    done = run("create", "--count", "1", python=SYSTEM_PYTHON, nobody=True)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: can't write /dev/{LEDGER}: Permission denied: run as root, or choose a directory of your own\n"
    )


@needs_root
@no_binderfs
def test_a_kernel_without_binderfs_is_one_line(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--way binderfs does not fall back: exit code 1, a line, and nothing left behind."""
    mount = f"{dev}/binderfs"
    arguments = ["create", "--count", "1", "--way", "binderfs", "--binderfs-dir", mount, "--device-dir", str(dev)]
    assert main(arguments) == 1
    assert capsys.readouterr().err == (
        f"error: cannot mount a binderfs on {mount}: this kernel has no binderfs: modprobe binder_linux, "
        "or boot a kernel with CONFIG_ANDROID_BINDERFS\n"
    )
    assert names(dev) == set()


def test_a_taken_name_is_one_line(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, the path, and nothing made."""
    (dev / "aosp_binder1").write_text("mine")
    assert main(["create", "--count", "3", "--way", "file", "--device-dir", str(dev)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {dev}/aosp_binder1 is taken by something that was not made here")
    assert len(err.splitlines()) == 1
    assert names(dev) == {"aosp_binder1"}


class RefusingBinderfs:
    """A binderfs, mounted, that has no room."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def mount(self, directory: str, max_devices: int | None = None, *, again: bool = False) -> None:
        """Note what is asked for."""
        self.asked.append((directory, max_devices, again))

    def unmount(self, directory: str) -> None:
        """Have no part in these tests."""
        raise NotImplementedError(directory)

    def mount_at(self, directory: str) -> binderfs.BinderfsMount | None:
        """Be mounted everywhere."""
        return binderfs.BinderfsMount(directory, 1, 5)

    def devices_in(self, directory: str) -> list[str]:
        """Have no part in these tests."""
        raise NotImplementedError(directory)

    def add_device(self, directory: str, name: str) -> int:
        """Have no minor left."""
        raise binderfs.exhausted(f"{directory}/{name}", 0, 5)

    def remove_device(self, directory: str, name: str) -> bool:
        """Have no part in these tests."""
        raise NotImplementedError(directory, name)


def test_used_up_minors_are_one_line(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flags reach the binderfs, and its refusal reaches the person."""
    kernel = RefusingBinderfs()
    where = ["--device-dir", str(dev), "--binderfs-dir", f"{dev}/../run"]
    arguments = ["create", "--count", "1", "--way", "binderfs", "--max", "7", *where]
    assert main(arguments, binderfs=kernel) == 1
    assert kernel.asked == [(f"{dev.parent}/run", 7, True)]
    assert capsys.readouterr().err == (
        f"error: cannot create {dev.parent}/run/aosp_binder0: the mount contains 0 devices of max=5, so all "
        "1048576 minor numbers of the binderfs mounts are in use: remove binder devices elsewhere, or end the "
        "processes that have removed devices open\n"
    )


def test_an_error_of_the_system_is_one_line(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody foresaw has no traceback either."""

    class Broken(RefusingBinderfs):
        def mount_at(self, directory: str) -> binderfs.BinderfsMount | None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), directory)

    arguments = ["create", "--count", "1", "--way", "binderfs", "--device-dir", str(dev)]
    assert main(arguments, binderfs=Broken()) == 1
    assert capsys.readouterr().err == "error: [Errno 5] Input/output error: '/run/aosp-binderfs'\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--count", "0"], ["--count", "'0'", "1 to 1048576"]),
        (["--count", "-5"], ["--count", "'-5'", "1 to 1048576"]),
        (["--count", "1048577"], ["--count", "'1048577'", "1 to 1048576"]),
        (["--count", "many"], ["--count", "'many'", "1 to 1048576"]),
        (["--count", "٣"], ["--count", "'٣'", "1 to 1048576"]),
        (["--count", "1", "--start", "-1"], ["--start", "'-1'", "0 to 1048576"]),
        (["--count", "1", "--max", "0"], ["--max", "'0'", "1 to 1048576"]),
        (["--count", "1", "--mode", "888"], ["--mode", "'888'", "0000 to 0777"]),
        (["--count", "1", "--mode", "4755"], ["--mode", "'4755'", "0000 to 0777"]),
        (["--count", "1", "--prefix", "a/b"], ["--prefix", "'a/b'", "it is a path", "without '/'"]),
        (["--count", "1", "--prefix", "../"], ["--prefix", "'../'", "it is a path"]),
        (["--count", "1", "--prefix", ""], ["--prefix", "''", "it is only a number"]),
        (["--count", "11", "--prefix", "x" * 62], ["--prefix", "x" * 62 + "10", "64 characters", "up to 63"]),
        (["--count", "1", "--way", "magic"], ["--way", "'magic'", "binderfs", "mknod", "file"]),
        (["--count", "1", "--way", "file", "--max", "5"], ["--max", "5", "--way file"]),
        (["--count", "1", "--way", "mknod", "--max", "5"], ["--max", "5", "--way mknod"]),
        (["--count", "1", "--binderfs-dir", "/no", "--device-dir", "/no"], ["--binderfs-dir", "'/no'", "too"]),
        (["--count", "1", "--device-dir", ""], ["--device-dir", "''", "not a path"]),
        (["--start", "1"], ["--count", "required"]),
    ],
)
def test_a_bad_value_names_the_flag_the_value_and_what_is_allowed(
    arguments: list[str], words: list[str], dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the last line says it all."""
    assert main(["create", "--device-dir", str(dev), *arguments], prog="p") == 2
    out, err = capsys.readouterr()
    line = err.splitlines()[-1]
    assert out == ""
    assert line.startswith("p create: error: ")
    assert [word for word in words if word not in line] == []


def test_the_longest_names_are_taken(dev: Path) -> None:
    """63 characters are allowed, number included."""
    prefix = "x" * 62
    assert main(["create", "--count", "10", "--prefix", prefix, "--way", "file", "--device-dir", str(dev)]) == 0
    assert f"{prefix}9" in names(dev)


@pytest.mark.parametrize("arguments", [[], ["magic"], ["delete", "--count", "1"]])
def test_bad_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """No command, an unknown one, and a flag of another."""
    assert main(arguments, prog="p") == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_help_is_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of a command shows its defaults."""
    assert main(["create", "--help"], prog="p") == 0
    out = capsys.readouterr().out
    for default in ("(0)", "(aosp_binder)", "(/dev)", "(/run/aosp-binderfs)", "(0666)"):
        assert default in out


def test_the_list_as_json(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An array of objects with name, kind, path and target, in natural order."""
    main(["create", "--count", "2", "--start", "9", "--way", "file", "--device-dir", str(dev)])
    capsys.readouterr()
    assert main(["list", "--json", "--device-dir", str(dev)]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": f"aosp_binder{n}", "kind": "file", "path": f"{dev}/aosp_binder{n}", "target": ""} for n in (9, 10)
    ]


def test_the_list_shows_where_links_lead(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link whose binderfs is gone is shown as absent, with its target."""
    ranges = {"way": "binderfs", "prefix": "b", "binderfs": "/run/none", "ranges": [[0, 1]]}
    (dev / LEDGER).write_text(json.dumps({"made": [ranges], "mounts": []}))
    (dev / "b0").symlink_to("/run/none/b0")
    assert main(["list", "--device-dir", str(dev)]) == 0
    assert capsys.readouterr().out == "b0\tabsent\t/run/none/b0\n"


def test_an_empty_list_is_empty(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No nodes is no error, in text and in JSON."""
    assert main(["list", "--device-dir", str(dev)]) == 0
    assert main(["list", "--json", "--device-dir", str(dev)]) == 0
    assert capsys.readouterr() == ("[]\n", "")


def test_what_delete_leaves_is_told(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each on stderr; the exit code is 0, since all that was ours is gone."""
    main(["create", "--count", "2", "--way", "file", "--device-dir", str(dev)])
    (dev / "aosp_binder0").write_text("mine")
    capsys.readouterr()
    assert main(["delete", "--device-dir", str(dev)]) == 0
    assert capsys.readouterr() == (
        f"{dev}: 1 nodes deleted, 1 things left\n",
        f"left: {dev}/aosp_binder0 is not what was made there any more\n",
    )
    assert names(dev) == {"aosp_binder0"}


def test_the_directory_is_the_same_however_it_is_written(
    dev: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relative path and a link lead to the same nodes."""
    (dev.parent / "link").symlink_to("dev")
    monkeypatch.chdir(dev.parent)
    assert main(["create", "--count", "1", "--way", "file", "--device-dir", "link"]) == 0
    assert capsys.readouterr().out.startswith(f"{dev}: ")


def test_a_reader_that_stops_is_no_traceback(dev: Path) -> None:
    """`list | head -1` ends without a word on stderr."""
    main(["create", "--count", "3000", "--way", "file", "--device-dir", str(dev)])
    command = f"{sys.executable} -I -S {SCRIPT} list --device-dir {dev} | head -1"
    done = start(["/bin/sh", "-c", command])
    assert (done.stdout, done.stderr) == (f"aosp_binder0\tfile\t{dev}/aosp_binder0\n", "")


@contextlib.contextmanager
def terminal() -> Iterator[Callable[[], list[str]]]:
    """Put a terminal in the place of stderr; give a function that says what was drawn, carriage by carriage."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream, contextlib.redirect_stderr(stream):

        def drawn() -> list[str]:
            stream.write("END")
            stream.flush()
            text = ""
            while not text.endswith("END"):
                text += os.read(master, 65536).decode()
            return text.removesuffix("END").replace("\r\n", "\n").split("\r")

        yield drawn
    os.close(master)


def test_a_terminal_gets_a_bar(dev: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bar goes to stderr, grows to its end, is wiped, and is not in the summary."""
    with terminal() as drawn:
        assert main(["create", "--count", "1000", "--way", "file", "--device-dir", str(dev)]) == 0
        first, *bars, wiped, last = drawn()
    assert (first, wiped.strip(" "), last) == ("", "", "")
    assert bars[0] == f"[{'.' * 40}]   0% of 1000"
    assert f"[{'#' * 20}{'.' * 20}]  50% of 1000" in bars
    assert bars[-1] == f"[{'#' * 40}] 100% of 1000"
    assert len(bars) == len(set(bars)) < 150  # drawn where it changes, not at each node
    assert len(wiped) >= len(bars[-1])
    assert capsys.readouterr().out.startswith(f"{dev}: aosp_binder0 to aosp_binder999 are there")


@pytest.mark.parametrize(
    ("end", "code", "line"),
    [
        (OSError(errno.EIO, "too bad"), 1, "error: [Errno 5] too bad\n"),
        (KeyboardInterrupt(), 130, "interrupted after 1 nodes: the same command goes on from there\n"),
    ],
)
def test_the_last_line_is_not_drawn_over_the_bar(
    dev: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, code: int, line: str
) -> None:
    """The bar of what failed or was interrupted is wiped first."""

    class Bar(nodes.Bar):
        def __call__(self, done: int, total: int) -> None:
            super().__call__(done, total)
            raise end

    monkeypatch.setattr(nodes, "Bar", Bar)
    with terminal() as drawn:
        assert main(["create", "--count", "9", "--way", "file", "--device-dir", str(dev)]) == code
        _, bar, wiped, last = drawn()
    assert len(wiped) >= len(bar)
    assert (wiped.strip(" "), last) == ("", line)


def test_ctrl_c_before_the_first_node_counts_none(
    dev: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says 0, with nothing drawn before it."""

    def press(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk, "delete", press)
    assert main(["delete", "--device-dir", str(dev)]) == 130
    assert capsys.readouterr().err == "interrupted after 0 nodes: the same command goes on from there\n"


def test_a_closed_pipe_is_exit_code_1(
    dev: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is said of it, and nothing is said at exit, when Python flushes what is left."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["list", "--json", "--device-dir", str(dev)]) == 1
    assert capsys.readouterr().err == ""


PAUSED = """
import sys
sys.path.insert(0, {checkout!r})
from aosp_plugin.cli import nodes
class Bar(nodes.Bar):
    def __call__(self, done, total):
        super().__call__(done, total)
        if done == 3:
            print("three are done", flush=True)
            sys.stdin.read()
nodes.Bar = Bar
sys.exit(nodes.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["create", "delete"])
def test_ctrl_c_says_how_to_go_on_and_going_on_works(dev: Path, command: str) -> None:
    """A real SIGINT after three nodes: exit code 130, one line, and the same command does the rest."""
    where = ["--device-dir", str(dev)]
    create = ["create", "--count", "8", "--way", "file", *where]
    if command == "delete":
        assert main(create) == 0
    arguments = create if command == "create" else ["delete", *where]
    program = PAUSED.format(checkout=str(CHECKOUT))
    with subprocess.Popen(  # noqa: S603 - a program of this test
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "three are done\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted after 3 nodes: the same command goes on from there\n"
        assert process.wait() == 130
    assert len(names(dev) - {LEDGER}) == (3 if command == "create" else 5)
    done = run(*arguments)
    assert done.returncode == 0
    if command == "create":
        assert "5 made now and 3 before" in done.stdout
        assert run("delete", *where).returncode == 0
    assert names(dev) == set()


@needs_root
@pytest.mark.parametrize("way", ["mknod", "file"])
def test_ten_thousand_nodes(open_dev: Path, way: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The number that this is for: created, created again, listed and deleted."""
    arguments = ["create", "--count", "10000", "--way", way, "--device-dir", str(open_dev)]
    assert main(arguments) == 0
    assert "10000 made now and 0 before" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "0 made now and 10000 before" in capsys.readouterr().out
    assert main(["list", "--device-dir", str(open_dev)]) == 0
    assert capsys.readouterr().out.count("\n") == 10000
    assert main(["delete", "--device-dir", str(open_dev)]) == 0
    assert names(open_dev) == set()


def test_the_command_line_of_the_process_is_the_default(
    dev: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without argv, main reads sys.argv, as the script wants."""
    monkeypatch.setattr(sys, "argv", ["x", "list", "--device-dir", str(dev)])
    assert nodes.main() == 0
