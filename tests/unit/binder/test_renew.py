"""Making a node anew: real files in the place of a binderfs, looked at by the real scanner."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.binder.discovery import health, scanner
from aosp_plugin.binder.discovery.binder_device import BinderDevice, Kind
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.discovery.names import LONGEST_NAME, name_problem
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.binder.provision.recreate import MARK, renew, sweep
from aosp_plugin.errors import BinderfsError, DevicesExhaustedError, NotPermittedError
from tests.unit.binder.test_provision import FakeBinderfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from aosp_plugin.binder.discovery.health import TrackedDevice

OPERATIONS = ("lstat", "unlink", "chown", "chmod", "rename")
"""The functions of ``os`` that a renewal calls; BINDER_CTL_ADD is the stand-in's."""


class Devices(Host):
    """Sees plain files as devices, so that nobody has to be root: each with its inode for its number."""

    def lstat(self, path: str) -> os.stat_result:
        """Look as a host does."""
        seen = os.lstat(self.process_path(path))
        if not stat.S_ISREG(seen.st_mode):
            return seen
        values = (stat.S_IFCHR | stat.S_IMODE(seen.st_mode), *seen[1:10])
        return os.stat_result(values, {"st_rdev": seen.st_ino, "st_mtime_ns": seen.st_mtime_ns})


class Place:
    """A host under a root: a device directory with a link to the node a1 in a binderfs, and the calls on them."""

    def __init__(self, root: Path, max_devices: int | None = None) -> None:
        self.root = root
        self.dev, self.run = root / "dev", root / "run"
        self.dev.mkdir(parents=True)
        self.run.mkdir()
        self.kernel = FakeBinderfs()
        self.kernel.mount(str(self.run), max_devices)
        self.host = Devices(str(root))
        self.add("a1")
        (self.dev / "a1").symlink_to("/run/a1")

    def add(self, name: str, mode: int = 0o640) -> None:
        """Make a node."""
        self.kernel.add_device(str(self.run), name)
        (self.run / name).chmod(mode)

    def scan(self, directory: str = "/dev") -> tuple[BinderDevice, ...]:
        """Look at the nodes."""
        driver = Driver(frozenset({self.run.stat().st_dev}))
        return scanner.scan(self.host, driver, directory, "a").nodes

    def node(self, name: str = "a1") -> BinderDevice:
        """Look at one node."""
        return next(node for node in self.scan() if node.name == name)

    def renew(self, node: BinderDevice | None = None, mode: int | None = None) -> None:
        """Renew a1."""
        renew(node or self.node(), self.host, self.kernel, mode)

    def sweep(self) -> int:
        """Sweep the binderfs."""
        return sweep("/run", self.host, self.kernel)

    def inode(self, name: str = "a1") -> int:
        """Return what tells a node from the one that takes its name."""
        return (self.run / name).lstat().st_ino

    def names(self) -> set[str]:
        """List the nodes of the binderfs."""
        return set(binderfs.devices_in(str(self.run)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "host")


@contextlib.contextmanager
def called_back(place: Place, callback: Callable[[str], None]) -> Iterator[None]:
    """Call ``callback`` with a point's name before and after each operation inside; its own are none of them."""
    inside = False

    def point(where: str) -> None:
        nonlocal inside
        if not inside:
            inside = True
            try:
                callback(where)
            finally:
                inside = False

    def wrapped(name: str, real: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        point(f"before {name}")
        result = real(*arguments, **more)
        point(f"after {name}")
        return result

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, functools.partial(wrapped, name, getattr(os, name)))
        patch.setattr(place.kernel, "hook", lambda step: point(f"after {step}"))
        yield


def points(place: Place) -> list[str]:
    """Return every point of a renewal, in order."""
    found: list[str] = []
    place.renew()  # coverage looks for a module's file, with lstat, when it sees it run for the first time
    node = place.node()
    with called_back(place, found.append):
        place.renew(node)
    return found


def test_a_renewed_node_is_another_one_of_the_same_name_and_file_system(place: Place) -> None:
    """The inode differs, which is a context of its own; st_dev and the time of the mount don't."""
    before = place.node()
    place.renew(before)
    after = place.node()
    assert before.identity is not None
    assert after.identity is not None
    assert after.identity.inode != before.identity.inode
    assert after.identity.file_system == before.identity.file_system
    assert place.names() == {"a1"}


def test_whoever_holds_the_old_node_keeps_it(place: Place) -> None:
    """What a leaked process has open is not what the name leads to."""
    with (place.run / "a1").open("rb") as held:
        place.renew()
        assert os.fstat(held.fileno()).st_ino != place.inode()


def test_the_new_node_has_the_old_one_s_mode_and_owner(place: Place) -> None:
    """Whoever set them up finds them as they were."""
    owner = (1000, 1001) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(place.run / "a1", *owner)
    (place.run / "a1").chmod(0o624)
    place.renew()
    seen = (place.run / "a1").stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o624, *owner)


def test_a_mode_that_is_asked_for_takes_nothing_over_from_the_last_tenant(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have changed its node's mode and owner: the new one has the mode, and is the maker's own."""
    (place.run / "a1").chmod(0)
    monkeypatch.setattr(os, "chown", None)
    place.renew(mode=0o666)
    seen = (place.run / "a1").stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid) == (0o666, os.geteuid())


def test_the_real_file_behind_links_is_renewed(place: Place) -> None:
    """The link in the device directory may have another name than the node, and lead there over other links."""
    (place.root / "elsewhere").symlink_to("/run")
    (place.dev / "a7").symlink_to("../elsewhere/a1")
    before, link = place.inode(), (place.dev / "a7").lstat().st_ino
    place.renew(place.node("a7"))
    assert place.inode() != before
    assert (place.dev / "a7").lstat().st_ino == link
    assert place.names() == {"a1"}


def test_a_node_right_in_the_device_directory_is_renewed(place: Place) -> None:
    """The device directory may be the binderfs itself."""
    (node,) = place.scan("/run")
    before = place.inode()
    place.renew(node)
    assert place.inode() != before


def test_renewing_again_and_again_leaves_one_node(place: Place) -> None:
    """The same call works any number of times."""
    seen = {place.inode()}
    for _ in range(3):
        place.renew()
        assert place.names() == {"a1"}
    assert place.inode() not in seen


def test_health_never_flaps_during_a_renewal(place: Place) -> None:
    """A look before and after every single operation finds the node as healthy as it was."""
    judgement = functools.partial(health.judge, verify=Verify.BINDER)
    tracked: Mapping[str, TrackedDevice] = {}
    seen: list[str] = []

    def look(where: str) -> None:
        nonlocal tracked
        nodes = (*place.scan(), *place.scan("/run"))
        assert [node.name for node in nodes] == ["a1", "a1"], where
        tracked = health.follow(
            tracked, nodes, float(len(seen)), 300.0, lambda node, known: judgement(node, file_system=known)
        )
        assert [(one.node.kind, one.reason, one.since) for one in tracked.values()] == [(Kind.BINDERFS, None, 0.0)]
        seen.append(where)

    look("at first")
    with called_back(place, look):
        renew(place.node(), place.host, place.kernel)
    look("at last")
    assert {f"after added {MARK}a1", "after chown", "before chmod", "before rename", "after rename"} <= {*seen}


def test_a_look_warns_of_no_temporary_node(place: Place) -> None:
    """It begins with what no device prefix may begin with, so that it is neither a node nor a skipped file."""
    assert name_problem(MARK) is not None
    found: list[str] = []
    for prefix in ("a", "b", "+"):
        found += scanner.usable_names([f"{MARK}a1"], prefix)[0]
        found += scanner.usable_names([f"{MARK}a1"], prefix)[1]
    assert found == []


def test_the_temporary_name_of_every_device_id_fits(place: Place) -> None:
    """The longest ID has 63 characters of 4 bytes, and a binderfs takes 255 bytes."""
    name = "a" + "\U0001f4f1" * (LONGEST_NAME - 1)
    assert name_problem(name) is None
    binderfs.add_request(f"{MARK}{name}")
    binderfs.add_request(MARK + "\U0001f4f1" * LONGEST_NAME)
    place.add(name)
    (place.dev / name).symlink_to(f"/run/{name}")
    before = place.inode(name)
    place.renew(place.node(name))
    assert place.inode(name) != before


def renew_until(place: Place, stop: str, end: Callable[[], None]) -> None:
    """Renew a1, and call ``end`` at the point ``stop``."""
    node = place.node()
    with called_back(place, lambda where: end() if where == stop else None):
        place.renew(node)


def killed_at(place: Place, stop: str) -> bool:
    """Renew a1 in a process of its own, which ends without a chance to tidy up; say whether it got that far."""
    child = os.fork()
    if child == 0:  # pragma: no cover - it ends without a word to coverage
        renew_until(place, stop, lambda: os._exit(9))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_renewal_has_these_points(place: Place) -> None:
    """Those at which the tests below look, kill and interrupt."""
    assert points(place) == [
        *("before lstat", "after lstat", "before unlink", f"after added {MARK}a1"),
        *("before chown", "after chown", "before chmod", "after chmod", "before rename", "after rename"),
    ]


@pytest.mark.parametrize("heal", [Place.sweep, Place.renew])
def test_killed_at_any_point_it_leaves_a_usable_node_and_nothing_that_stays(
    place: Place, heal: Callable[[Place], object]
) -> None:
    """The old node or the new one is there; a temporary one goes by a sweep, or by the next renewal."""
    left = set()
    for stop in points(place):
        assert killed_at(place, stop)
        assert place.node().kind is Kind.BINDERFS
        assert stat.S_IMODE((place.run / "a1").stat().st_mode) == 0o640
        left |= place.names()
        heal(place)
        assert place.names() == {"a1"}
    assert left == {"a1", f"{MARK}a1"}


def test_interrupted_at_any_point_it_leaves_no_temporary_node(place: Place) -> None:
    """Whatever ends a renewal that is not the end of the process takes back what was begun."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    for stop in points(place):
        with pytest.raises(KeyboardInterrupt):
            renew_until(place, stop, interrupt)
        assert place.names() == {"a1"}


@pytest.mark.parametrize(
    ("operation", "number", "kind", "word"),
    [
        ("rename", errno.EBUSY, BinderfsError, "it is a mount point"),
        ("chmod", errno.EROFS, BinderfsError, "mounted read-only"),
        ("chown", errno.EPERM, NotPermittedError, "requires root"),
        ("chmod", errno.EACCES, NotPermittedError, "requires root"),
        ("rename", errno.EIO, BinderfsError, "Input/output error"),
    ],
)
def test_a_refusal_names_the_node_and_leaves_it_as_it_was(
    place: Place, monkeypatch: pytest.MonkeyPatch, operation: str, number: int, kind: type[BinderfsError], word: str
) -> None:
    """What to do is said, the old node is in its place, and the temporary one is gone."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    before, node = place.inode(), place.node()
    monkeypatch.setattr(os, operation, refuse)
    with pytest.raises(BinderfsError, match=f"^cannot recreate {place.run}/a1: .*{word}") as caught:
        place.renew(node)
    assert type(caught.value) is kind
    assert (place.inode(), place.names()) == (before, {"a1"})


def test_the_error_that_counts_is_the_first_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the temporary node can't be removed either, it is left to the next renewal."""
    node = place.node()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(place.kernel, "hook", lambda _step: monkeypatch.setattr(os, "unlink", refuse))
    with pytest.raises(BinderfsError, match="cannot recreate"):
        place.renew(node)
    monkeypatch.undo()
    assert place.sweep() == 1


def test_a_read_only_binderfs_is_told_before_anything_is_made(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """BINDER_CTL_ADD would work on it, and unlink would not: nothing that can't be removed is begun."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    node = place.node()
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(BinderfsError, match=r"a1: its binderfs is mounted read-only here"):
        place.renew(node)
    assert place.names() == {"a1"}


def test_without_room_for_one_more_the_old_node_stays(tmp_path: Path) -> None:
    """The error names the node, and says that max= needs one to spare."""
    place = Place(tmp_path / "host", max_devices=1)
    before = place.inode()
    with pytest.raises(
        DevicesExhaustedError, match=f"^cannot recreate {place.run}/a1: .* max=1 is reached.*one more"
    ) as caught:
        place.renew()
    assert isinstance(caught.value.__cause__, DevicesExhaustedError)
    assert (place.inode(), place.names()) == (before, {"a1"})
    place.kernel.mount(str(place.run), 2, again=True)
    place.renew()
    assert place.inode() != before


def test_a_node_that_is_gone_is_not_made(place: Place) -> None:
    """Its mode and owner are gone with it."""
    node = place.node()
    (place.run / "a1").unlink()
    with pytest.raises(BinderfsError, match="a1: it does not exist"):
        place.renew(node)
    assert place.names() == set()


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.BINDERFS])
def test_only_nodes_of_a_binderfs_are_renewed(place: Place, kind: Kind) -> None:
    """Others come from the driver's start or from somebody's mknod."""
    before = place.inode()
    with pytest.raises(BinderfsError, match=f"cannot recreate /dev/a1: its kind is {kind}"):
        place.renew(place.node()._replace(kind=kind))
    assert place.inode() == before


def test_a_single_node_that_was_bound_into_the_device_directory_is_not_renewed(place: Place) -> None:
    """Its directory is no binderfs: there is nothing to make a new one with, and the bind would keep the old one."""
    (place.dev / "a2").touch()
    node = place.node("a2")
    assert (node.kind, node.directory) == (Kind.BINDERFS, "")
    with pytest.raises(BinderfsError, match=r"cannot recreate /dev/a2: .*mount the whole binderfs"):
        place.renew(node)


def test_a_link_that_leads_elsewhere_since_the_look_is_not_followed(place: Place) -> None:
    """What stands there now was not looked at."""
    node = place.node()
    (place.dev / "a1").unlink()
    (place.dev / "a1").symlink_to("/dev/precious")
    (place.dev / "precious").touch()
    with pytest.raises(BinderfsError, match="cannot recreate /dev/a1"):
        place.renew(node)
    assert (place.dev / "precious").exists()
    (place.dev / "a1").unlink()
    (place.dev / "a1").symlink_to("a1")
    with pytest.raises(BinderfsError, match="cannot recreate /dev/a1: Too many levels"):
        place.renew(node)


def test_a_sweep_removes_what_killed_renewals_left_and_nothing_else(place: Place) -> None:
    """It counts them; the names that look alike are somebody's nodes."""
    others = {"a1", "a2", ",a3", "+a4", "a,+5"}
    for name in (*others - {"a1"}, f"{MARK}a1", f"{MARK}a9"):
        place.add(name)
    assert place.sweep() == 2
    assert place.names() == others
    assert place.sweep() == 0
    assert (place.run / CONTROL_NAME).exists()


def test_a_sweep_of_what_is_no_binderfs_is_told(place: Place) -> None:
    """There is no control file to make nodes with."""
    with pytest.raises(BinderfsError, match=f"cannot open {place.dev}/{CONTROL_NAME}"):
        sweep("/dev", place.host, place.kernel)


def test_renewals_and_sweeps_of_one_binderfs_keep_each_other_out(place: Place) -> None:
    """At each point another process would wait: a sweep must not take the temporary node of a renewal under way.

    A shared lock is tried, which an exclusive one alone refuses.
    """
    held: list[str] = []

    def try_to_lock(where: str) -> None:
        control = os.open(place.run / CONTROL_NAME, os.O_RDONLY)
        try:
            fcntl.flock(control, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(where)
        finally:
            os.close(control)

    every, node = points(place), place.node()
    with called_back(place, try_to_lock):
        renew(node, place.host, place.kernel)
    assert held == every
    del held[:]
    place.add(f"{MARK}a1")
    with called_back(place, try_to_lock):
        place.sweep()
    assert held == ["before unlink", "after unlink"]


def test_the_lock_is_not_on_what_tenants_can_open(place: Place) -> None:
    """Containers see the directory, and could hold a lock on it for ever."""
    directory = os.open(place.run, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        place.renew()
        assert place.sweep() == 0
    finally:
        os.close(directory)


def test_the_lock_ends_with_the_call(place: Place) -> None:
    """No descriptor stays open, after success or failure."""
    node = place.node()
    before = len(os.listdir("/proc/self/fd"))
    place.renew(node)
    place.sweep()
    (place.run / "a1").unlink()
    with pytest.raises(BinderfsError):
        place.renew(node)
    assert len(os.listdir("/proc/self/fd")) == before
