"""How one node is made, by each of the ways: real files, and a directory in the place of a binderfs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.provision import makers
from aosp_plugin.binder.provision.makers import FileMaker, LinkMaker, ProvisionMethod, StandInMaker, State
from aosp_plugin.errors import DeviceExistsError, HostError, NotPermittedError

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="makes devices, which needs root")
NULL = os.makedev(1, 3)


class Plain:
    """A directory whose files pass for nodes; it is never mounted."""

    def mount(self, directory: str, max_devices: int | None = None, *, again: bool = False) -> None:
        """Have no part in these tests."""
        raise NotImplementedError(directory, max_devices, again)

    def unmount(self, directory: str) -> None:
        """Have no part in these tests."""
        raise NotImplementedError(directory)

    def mount_at(self, directory: str) -> binderfs.BinderfsMount | None:
        """Have no part in these tests."""
        raise NotImplementedError(directory)

    def devices_in(self, directory: str) -> list[str]:
        """Have no part in these tests."""
        raise NotImplementedError(directory)

    def add_device(self, directory: str, name: str) -> int:
        """Make a file of the mode that the kernel gives."""
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL, 0o600))
        return 0

    def remove_device(self, directory: str, name: str) -> bool:
        """Unlink as the real one does."""
        return binderfs.remove_device(directory, name)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    directory = tmp_path / "dev"
    directory.mkdir()
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    directory.mkdir()
    return directory


def links(dev: Path, run: Path, *, mode: int = 0o666, mounted: bool = True) -> LinkMaker:
    """Return a maker of links from one of these directories into the other."""
    return LinkMaker(str(dev), mode, str(run), Plain(), mounted=mounted)


@pytest.mark.parametrize(
    ("root", "filesystems", "way"),
    [
        (True, "nodev\tsysfs\nnodev\tbinder\n\text4\n", ProvisionMethod.BINDERFS),
        (True, "nodev\tsysfs\n\text4\n", ProvisionMethod.MKNOD),
        (True, "nodev\tbinderx\nnodev\tmy binder\n", ProvisionMethod.MKNOD),
        (False, "nodev\tbinder\n", ProvisionMethod.FILE),
    ],
)
def test_the_best_way_of_the_host_is_chosen(*, root: bool, filesystems: str, way: ProvisionMethod) -> None:
    """Real nodes where root has a binderfs, stand-ins where root has none, files for everybody else."""
    assert makers.choose_method(filesystems, root=root) is way


def test_the_way_here_is_that_of_this_user_and_kernel() -> None:
    """The real /proc/filesystems and user are asked."""
    text = Path("/proc/filesystems").read_text(encoding="ascii")
    assert makers.detect_method() is makers.choose_method(text, root=ROOT)


@pytest.mark.parametrize(
    ("maker", "kind", "number"),
    [
        (FileMaker, stat.S_IFREG, 0),
        pytest.param(StandInMaker, stat.S_IFCHR, NULL, marks=needs_root),
    ],
)
def test_a_file_or_stand_in_is_made_judged_and_removed(
    dev: Path, maker: type[FileMaker], kind: int, number: int
) -> None:
    """The umask has no say in its mode, another mode is put right in place, and nothing else is made."""
    one, before = maker(str(dev), 0o666), os.umask(0o077)
    try:
        assert one.look("a0") is State.ABSENT
        one.make("a0", State.ABSENT)
    finally:
        os.umask(before)
    seen = (dev / "a0").lstat()
    assert (seen.st_mode, seen.st_rdev, seen.st_size) == (kind | 0o666, number, 0)
    assert one.look("a0") is State.READY
    other = maker(str(dev), 0o640)
    assert other.look("a0") is State.UNFINISHED
    other.make("a0", State.UNFINISHED)
    assert ((dev / "a0").lstat().st_mode, (dev / "a0").lstat().st_ino) == (kind | 0o640, seen.st_ino)
    assert os.listdir(dev) == ["a0"]
    for state in (State.ABSENT, State.FOREIGN, State.UNFINISHED):
        assert os.listdir(dev) == ["a0"]
        one.remove("a0", state)
    assert os.listdir(dev) == []


@needs_root
@pytest.mark.parametrize(
    ("kind", "number", "file", "stand_in"),
    [
        (stat.S_IFREG, 0, State.READY, State.FOREIGN),
        (stat.S_IFCHR, NULL, State.FOREIGN, State.READY),
        (stat.S_IFCHR, os.makedev(1, 5), State.FOREIGN, State.FOREIGN),
        (stat.S_IFBLK, NULL, State.FOREIGN, State.FOREIGN),
        (stat.S_IFIFO, 0, State.FOREIGN, State.FOREIGN),
    ],
)
def test_each_knows_its_own_from_other_files(dev: Path, kind: int, number: int, file: State, stand_in: State) -> None:
    """Another number, or a block device of the same one, is not the stand-in that was made."""
    os.mknod(dev / "a0", kind | 0o600, number)
    assert FileMaker(str(dev), 0o600).look("a0") is file
    assert StandInMaker(str(dev), 0o600).look("a0") is stand_in


def test_a_file_with_something_in_it_or_behind_a_link_is_foreign(dev: Path) -> None:
    """It is somebody's, even if it was empty once."""
    (dev / "a0").write_text("mine")
    (dev / "empty").touch(0o666)
    (dev / "a1").symlink_to("empty")
    maker = FileMaker(str(dev), 0o666)
    assert [maker.look(name) for name in ("a0", "a1")] == [State.FOREIGN] * 2


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FileExistsError(17, "File exists"), DeviceExistsError, "can't do it: the name was taken meanwhile: try again"),
        (
            PermissionError(1, "No"),
            NotPermittedError,
            "can't do it: No: run as root, or choose a directory of your own",
        ),
        (OSError(28, "Full"), HostError, "can't do it: Full"),
    ],
)
def test_errors_of_the_system_are_told(error: OSError, kind: type[HostError], text: str) -> None:
    """What was tried, why it failed, and what to do; the system's error is the cause."""
    with pytest.raises(HostError) as caught, makers.telling("do it"):
        raise error
    assert (type(caught.value), str(caught.value), caught.value.__cause__) == (kind, text, error)


@pytest.mark.parametrize(
    ("link", "node", "mounted", "state"),
    [
        (None, None, True, State.ABSENT),
        (None, 0o666, True, State.UNFINISHED),
        (None, 0o666, False, State.ABSENT),
        ("ours", None, True, State.UNFINISHED),
        ("ours", 0o600, True, State.UNFINISHED),
        ("ours", 0o666, True, State.READY),
        ("ours", 0o666, False, State.UNFINISHED),
        ("another", 0o666, True, State.FOREIGN),
        ("a file", 0o666, True, State.FOREIGN),
    ],
)
def test_link_and_node_are_judged_together(
    dev: Path, run: Path, *, link: str | None, node: int | None, mounted: bool, state: State
) -> None:
    """Without the mount, files in its directory are no nodes."""
    if node is not None:
        (run / "a0").touch()
        (run / "a0").chmod(node)
    if link == "a file":
        (dev / "a0").touch()
    elif link is not None:
        (dev / "a0").symlink_to(run / "a0" if link == "ours" else "a1")
    maker = links(dev, run, mounted=mounted)
    assert maker.look("a0") is state
    assert maker.place("a0") == f"{run if link is None else dev}/a0"
    maker.remove("a0", state)
    assert os.path.lexists(dev / "a0") == (state is State.FOREIGN)
    assert (run / "a0").exists() == (node is not None and not mounted)


def test_a_link_appears_when_its_node_is_ready(dev: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who watch the device directory find the node behind a new link in its final mode."""
    real, modes = os.symlink, []

    def symlink(target: str, link: str) -> None:
        modes.append(stat.S_IMODE(os.stat(target).st_mode))
        real(target, link)

    monkeypatch.setattr(os, "symlink", symlink)
    links(dev, run).make("a0", State.ABSENT)
    assert modes == [0o666]
    assert links(dev, run).look("a0") is State.READY


@pytest.mark.parametrize("lost", ["link", "node", "mode"])
def test_what_is_lost_of_a_node_is_made_again(dev: Path, run: Path, lost: str) -> None:
    """The rest of it stays the same one."""
    maker = links(dev, run)
    maker.make("a0", State.ABSENT)
    before = (run / "a0").stat().st_ino, (dev / "a0").lstat().st_ino
    if lost == "mode":
        (run / "a0").chmod(0o600)
    else:
        (dev if lost == "link" else run).joinpath("a0").unlink()
    maker.make("a0", maker.look("a0"))
    assert maker.look("a0") is State.READY
    after = (run / "a0").stat().st_ino, (dev / "a0").lstat().st_ino
    assert lost == "node" or after[0] == before[0]
    assert lost == "link" or after[1] == before[1]


def test_a_name_taken_meanwhile_gets_no_node(dev: Path, run: Path) -> None:
    """Somebody has put a file in the place of the link: the node that was made for it goes."""
    (dev / "a0").touch()
    with pytest.raises(DeviceExistsError, match=f"can't make {dev}/a0: the name was taken meanwhile"):
        links(dev, run).make("a0", State.ABSENT)
    assert os.listdir(run) == []


def test_a_look_that_fails_is_not_taken_for_a_stranger(dev: Path, run: Path) -> None:
    """An error other than 'no link' comes out as it is: here a name that is too long."""
    with pytest.raises(OSError, match="File name too long"):
        links(dev, run, mounted=False).look("x" * 300)
