"""Making and removing nodes: real files in a real directory, with a stand-in for the kernel's binderfs alone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.provision import bulk
from aosp_plugin.binder.provision.bulk import Created, Deleted, Made, Request
from aosp_plugin.binder.provision.ledger import LEDGER, locked
from aosp_plugin.binder.provision.makers import ProvisionMethod, State
from aosp_plugin.errors import (
    BinderfsError,
    BinderMissingError,
    DeviceExistsError,
    DevicesExhaustedError,
    HostError,
    NotPermittedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="makes devices or changes its user, which needs root")
every_way = pytest.mark.parametrize(
    "way", [pytest.param(ProvisionMethod.MKNOD, marks=needs_root), ProvisionMethod.FILE, ProvisionMethod.BINDERFS]
)


class FakeBinderfs:
    """A binderfs made of plain files: what ``provision`` sees of one, on a machine whose kernel has none."""

    def __init__(self, first_nodes: tuple[str, ...] = ()) -> None:
        self.first_nodes = first_nodes
        self.mounts: dict[str, binderfs.BinderfsMount] = {}
        self.seconds = 0
        self.calls: list[tuple[object, ...]] = []
        self.hook: Callable[[str], None] = lambda _step: None

    def mount(self, directory: str, max_devices: int | None = None, *, again: bool = False) -> None:
        """Fill the directory as a new binderfs is filled."""
        self.calls.append(("mount", directory, max_devices, again))
        self.hook("before mount")
        self.mounts[directory] = binderfs.BinderfsMount(directory, 1, max_devices or 1048576)
        if not again:
            for name in (CONTROL_NAME, *self.first_nodes):
                os.mknod(f"{directory}/{name}")
            # A second later each time; the device number is the same, as it is for two mounts in turn.
            self.seconds += 1
            os.utime(f"{directory}/{CONTROL_NAME}", (self.seconds, self.seconds))
        self.hook("after mount")

    def unmount(self, directory: str) -> None:
        """Empty the directory."""
        self.calls.append(("unmount", directory))
        self.hook("unmount")
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        del self.mounts[directory]

    def mount_at(self, directory: str) -> binderfs.BinderfsMount | None:
        """Say what is mounted."""
        return self.mounts.get(directory)

    def devices_in(self, directory: str) -> list[str]:
        """List as the real one does."""
        return binderfs.devices_in(directory)

    def add_device(self, directory: str, name: str) -> int:
        """Make a plain file of the mode that the kernel gives, with the kernel's refusals."""
        limit = self.mounts[directory].max_devices
        held = len(binderfs.devices_in(directory))
        if limit is not None and held >= limit:
            raise binderfs.exhausted(f"{directory}/{name}", held, limit)
        try:
            os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise binderfs.refusal(binderfs.Step.ADD, errno.EEXIST, f"{directory}/{name}") from None
        self.hook(f"added {name}")
        return 0

    def remove_device(self, directory: str, name: str) -> bool:
        """Unlink as the real one does."""
        return binderfs.remove_device(directory, name)


class Place:
    """A device directory, a place for a binderfs, and the calls on them."""

    def __init__(self, directory: Path) -> None:
        self.dev = directory / "dev"
        self.dev.mkdir()
        self.run = directory / "binderfs"
        self.kernel = FakeBinderfs()

    def create(
        self,
        count: int,
        *,
        way: ProvisionMethod = ProvisionMethod.FILE,
        progress: bulk.Progress | None = None,
        **more: object,
    ) -> Created:
        """Call create for names a0, a1, ..."""
        request = Request(
            **{  # type: ignore[arg-type]
                "directory": str(self.dev), "prefix": "a", "first": 0, "count": count, "way": way,
                "binderfs": str(self.run), **more,
            }
        )  # fmt: skip
        return bulk.create(request, self.kernel, progress)

    def delete(self, progress: bulk.Progress | None = None) -> Deleted:
        """Call delete."""
        return bulk.delete(str(self.dev), self.kernel, progress)

    def made(self) -> list[str]:
        """List the names that made_in gives."""
        return [one.name for one in bulk.made_in(str(self.dev), self.kernel)]

    def names(self) -> set[str]:
        """List what is in the device directory."""
        return set(os.listdir(self.dev))

    def ledger(self) -> dict[str, list[dict[str, object]]]:
        """Read the ledger as JSON."""
        data: dict[str, list[dict[str, object]]] = json.loads((self.dev / LEDGER).read_text())
        return data

    def mounted(self) -> bool:
        """Say whether there is a mount, or anything of one."""
        return bool(self.kernel.mounts) or (self.run.exists() and os.listdir(self.run) != [])

    def first_nodes(self) -> list[str]:
        """Return the nodes that are in the ledger as the mount's own."""
        data: list[str] = json.loads((self.dev / LEDGER).read_text())["mounts"][0]["mounted"]["first_nodes"]
        return data

    def recorded(self) -> list[object]:
        """Return the ranges of numbers in the ledger."""
        return [one["ranges"] for one in self.ledger()["made"]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def interrupt_at(point: int) -> bulk.Progress:
    """Return a progress callback that presses Ctrl-C after so many nodes."""

    def progress(done: int, total: int) -> None:
        if done == point:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize(
    ("state", "owned", "make", "taken"),
    [
        (State.ABSENT, False, [7], []),
        (State.ABSENT, True, [7], []),
        (State.UNFINISHED, True, [7], []),
        (State.UNFINISHED, False, [], [7]),
        (State.READY, True, [], []),
        (State.READY, False, [], [7]),
        (State.FOREIGN, True, [], [7]),
        (State.FOREIGN, False, [], [7]),
    ],
)
def test_the_plan_makes_what_is_missing_and_knows_what_is_taken(
    *, state: State, owned: bool, make: list[int], taken: list[int]
) -> None:
    """Only what is in the ledger counts as ours, however much another file looks like it."""
    assert bulk.plan({7: state}, {7} if owned else {8}) == (make, taken)


def test_binderfs_nodes_are_made_in_our_own_mount_and_linked(place: Place) -> None:
    """The directory is made, mounted with max=, and filled with nodes of the mode that was asked for."""
    assert place.create(2, way=ProvisionMethod.BINDERFS, max_devices=50) == Created(2, 0)
    assert place.kernel.calls == [("mount", str(place.run), 50, False)]
    assert place.names() == {"a0", "a1", LEDGER}
    for name in ("a0", "a1"):
        assert os.readlink(place.dev / name) == f"{place.run}/{name}"
        assert stat.S_IMODE((place.run / name).stat().st_mode) == 0o666


@every_way
def test_a_second_create_changes_nothing(place: Place, way: ProvisionMethod) -> None:
    """All nodes are present, and are the same files as before."""
    place.create(4, way=way)
    before = {name: (place.dev / name).lstat().st_ino for name in place.names() - {LEDGER}}
    assert place.create(4, way=way) == Created(0, 4)
    assert {name: (place.dev / name).lstat().st_ino for name in place.names() - {LEDGER}} == before
    assert len([call for call in place.kernel.calls if call[0] == "mount"]) == (way is ProvisionMethod.BINDERFS)


@every_way
def test_delete_takes_back_all_that_create_made(place: Place, way: ProvisionMethod) -> None:
    """Nodes, ledger and mount go; a second delete has nothing to do."""
    place.create(4, way=way)
    assert place.delete() == Deleted(4, ())
    assert place.names() == set()
    assert not place.mounted()
    assert place.delete() == Deleted(0, ())


@every_way
def test_an_interrupted_create_goes_on_where_it_stopped(place: Place, way: ProvisionMethod) -> None:
    """After Ctrl-C the ledger holds what was made, and the next call makes the rest."""
    with pytest.raises(KeyboardInterrupt):
        place.create(6, way=way, progress=interrupt_at(2))
    assert place.names() == {"a0", "a1", LEDGER}
    assert place.recorded() == [[[0, 2]]]
    assert place.create(6, way=way) == Created(4, 2)
    assert place.recorded() == [[[0, 6]]]


@every_way
def test_an_interrupted_create_can_be_deleted(place: Place, way: ProvisionMethod) -> None:
    """What was made until Ctrl-C goes, all of it."""
    with pytest.raises(KeyboardInterrupt):
        place.create(6, way=way, progress=interrupt_at(2))
    assert place.delete() == Deleted(2, ())
    assert place.names() == set()
    assert not place.mounted()


@every_way
@pytest.mark.parametrize("then", ["create", "delete"])
def test_a_killed_create_loses_no_node(place: Place, way: ProvisionMethod, then: str) -> None:
    """Killed without a chance to tidy up, it has recorded more than it made, and both commands cope."""

    def die(done: int, total: int) -> None:
        if done == 2:
            os._exit(9)

    child = os.fork()
    if child == 0:  # pragma: no cover - it ends without a word to coverage
        place.create(6, way=way, progress=die)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    if way is ProvisionMethod.BINDERFS:  # the child's stand-in for the kernel died with it; a kernel's mount does not
        place.kernel.mounts[str(place.run)] = binderfs.BinderfsMount(str(place.run), 1, None)
    assert place.names() == {"a0", "a1", LEDGER}
    assert place.recorded() == [[[0, 6]]]
    if then == "create":
        assert place.create(6, way=way) == Created(4, 2)
    assert place.delete() == Deleted(6 if then == "create" else 2, ())
    assert place.names() == set()
    assert not place.mounted()


@every_way
def test_an_interrupted_delete_goes_on_where_it_stopped(place: Place, way: ProvisionMethod) -> None:
    """After Ctrl-C the ledger holds what is left, and the next call removes that."""
    place.create(6, way=way)
    with pytest.raises(KeyboardInterrupt):
        place.delete(interrupt_at(4))
    assert place.names() == {"a4", "a5", LEDGER}
    assert place.recorded() == [[[4, 2]]]
    assert place.delete() == Deleted(2, ())
    assert place.names() == set()


def test_creates_add_up(place: Place) -> None:
    """Other counts, prefixes and ways join what is there, and one delete removes them all."""
    place.create(2)
    assert place.create(4) == Created(2, 2)
    assert place.create(2, first=10) == Created(2, 0)
    assert place.create(2, prefix="b", way=ProvisionMethod.BINDERFS) == Created(2, 0)
    assert place.made() == ["a0", "a1", "a2", "a3", "a10", "a11", "b0", "b1"]
    assert place.recorded() == [[[0, 4], [10, 2]], [[0, 2]]]
    assert place.delete() == Deleted(8, ())
    assert place.names() == set()


def test_progress_is_told_after_each_node(place: Place) -> None:
    """Both commands say how many are done of how many that have to be done."""
    told: list[tuple[int, int]] = []
    place.create(2)
    place.create(4, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    del told[:]
    place.delete(lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@every_way
def test_a_new_mode_is_given_to_nodes_that_are_there(place: Place, way: ProvisionMethod) -> None:
    """Create brings about what is asked for, and does not make the node anew for that."""
    place.create(2, way=way)
    before = (place.dev / "a0").stat().st_ino
    assert place.create(2, way=way, mode=0o600) == Created(2, 0)
    seen = (place.dev / "a0").stat()
    assert (seen.st_ino, stat.S_IMODE(seen.st_mode)) == (before, 0o600)


def _own_file(path: Path) -> None:
    path.write_text("mine")


def _like_ours(path: Path) -> None:
    path.touch(0o666)


def _link(path: Path) -> None:
    path.symlink_to("/dev/null")


def _directory(path: Path) -> None:
    path.mkdir()


@every_way
@pytest.mark.parametrize("foreign", [_own_file, _like_ours, _link, _directory])
def test_a_name_that_is_taken_stops_create_before_anything_is_made(
    place: Place, way: ProvisionMethod, foreign: Callable[[Path], None]
) -> None:
    """The error names the first such path and the number of others; nothing is left behind."""
    foreign(place.dev / "a2")
    foreign(place.dev / "a4")
    with pytest.raises(DeviceExistsError, match=f"{place.dev}/a2 \\(and 1 more\\) is taken .* by way of {way}"):
        place.create(5, way=way)
    assert place.names() == {"a2", "a4"}
    assert not place.run.exists()


def test_one_taken_name_has_no_others(place: Place) -> None:
    """The error counts right."""
    _own_file(place.dev / "a2")
    with pytest.raises(DeviceExistsError, match="/a2 is taken"):
        place.create(5)


def test_what_was_made_another_way_is_taken(place: Place) -> None:
    """Files of an earlier create are not nodes of a binderfs, and are not replaced."""
    place.create(2)
    with pytest.raises(DeviceExistsError, match="a0"):
        place.create(2, way=ProvisionMethod.BINDERFS)
    assert place.delete() == Deleted(2, ())


def test_a_node_of_that_name_in_the_binderfs_is_taken(place: Place) -> None:
    """A mount that is used with others has their nodes, which get no link of ours; the error names the node."""
    place.run.mkdir()
    place.kernel.mount(str(place.run))
    place.kernel.add_device(str(place.run), "a1")
    with pytest.raises(DeviceExistsError, match=f"{place.run}/a1 is taken"):
        place.create(2, way=ProvisionMethod.BINDERFS)
    assert place.names() == set()


@every_way
def test_a_name_taken_meanwhile_is_not_ours(place: Place, way: ProvisionMethod) -> None:
    """Somebody wins the race for a1: create fails, and delete leaves theirs, even if it looks like ours."""

    def race(done: int, total: int) -> None:
        if done == 1 and way is ProvisionMethod.MKNOD:
            os.mknod(place.dev / "a1", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        elif done == 1:
            (place.dev / "a1").touch()

    with pytest.raises(DeviceExistsError, match=f"can't make {place.dev}/a1: the name was taken meanwhile"):
        place.create(4, way=way, progress=race)
    assert place.recorded() == [[[0, 1]]]
    assert place.delete() == Deleted(1, ())
    assert place.names() == {"a1"}
    assert not place.mounted()


def test_a_binderfs_node_taken_meanwhile_is_not_ours(place: Place) -> None:
    """The kernel says EEXIST: create fails, delete leaves the node and therefore the mount, and says so."""
    place.create(1, way=ProvisionMethod.BINDERFS)

    def race(done: int, total: int) -> None:
        place.kernel.add_device(str(place.run), "a2")

    with pytest.raises(DeviceExistsError, match="a2"):
        place.create(4, way=ProvisionMethod.BINDERFS, progress=race)
    left = f"{place.run} stays mounted, with nodes that were not made here (a2)"
    assert place.delete() == Deleted(2, (left,))
    assert place.delete() == Deleted(0, (left,))
    place.kernel.remove_device(str(place.run), "a2")
    assert place.delete() == Deleted(0, ())
    assert not place.mounted()
    assert place.names() == set()


def test_nodes_that_the_kernel_puts_into_every_mount_do_not_hold_it(place: Place) -> None:
    """The driver's devices= come with the mount and go with it."""
    place.kernel.first_nodes = ("binder", "hwbinder")
    place.create(1, way=ProvisionMethod.BINDERFS)
    assert place.first_nodes() == ["binder", "hwbinder"]
    assert place.delete() == Deleted(1, ())
    assert not place.mounted()


def _interrupt(at: str) -> Callable[[str], None]:
    def hook(step: str) -> None:
        if step == at:
            raise KeyboardInterrupt

    return hook


@pytest.mark.parametrize("step", ["before mount", "after mount", "added a0"])
@pytest.mark.parametrize("then", ["create", "delete"])
def test_an_interruption_around_the_mount_leaves_nothing_unknown(place: Place, step: str, then: str) -> None:
    """Before the mount, between it and the first note of its nodes, between a node and its link: all is undone."""
    place.kernel.first_nodes = ("binder",)
    place.kernel.hook = _interrupt(step)
    with pytest.raises(KeyboardInterrupt):
        place.create(2, way=ProvisionMethod.BINDERFS)
    place.kernel.hook = lambda _step: None
    if then == "create":
        assert place.create(2, way=ProvisionMethod.BINDERFS) == Created(2, 0)
        assert place.first_nodes() == ["binder"]
    assert place.delete().left == ()
    assert not place.mounted()
    assert place.names() == set()


def test_the_ledger_knows_of_the_mount_before_it_is_there_and_of_its_nodes_before_ours(place: Place) -> None:
    """At each step the file holds what a delete after a power cut would need."""
    place.kernel.first_nodes = ("binder",)
    seen: dict[str, object] = {}

    def look(step: str) -> None:
        seen[step] = place.ledger()["mounts"]

    place.kernel.hook = look
    place.create(1, way=ProvisionMethod.BINDERFS)
    told = {"device": place.run.stat().st_dev, "since": 10**9, "first_nodes": ["binder"]}
    assert seen == {
        step: [{"directory": str(place.run), "mounted": mounted}]
        for step, mounted in [("before mount", None), ("after mount", None), ("added a0", told)]
    }


def test_a_lost_link_is_made_again(place: Place) -> None:
    """The node behind it is there and ours, and stays the same one."""
    place.create(2, way=ProvisionMethod.BINDERFS)
    before = (place.run / "a1").stat().st_ino
    (place.dev / "a1").unlink()
    assert place.create(2, way=ProvisionMethod.BINDERFS) == Created(1, 1)
    assert (place.dev / "a1").stat().st_ino == before


def test_a_mount_of_others_is_used_and_stays(place: Place) -> None:
    """A binderfs that was there before keeps its nodes, its place and its max=."""
    place.run.mkdir()
    place.kernel.mount(str(place.run), 9)
    place.kernel.add_device(str(place.run), "theirs")
    del place.kernel.calls[:]
    place.create(2, way=ProvisionMethod.BINDERFS)
    assert place.delete() == Deleted(2, ())
    assert place.kernel.calls == []
    assert sorted(os.listdir(place.run)) == ["binder-control", "theirs"]


def test_the_directory_of_the_mount_stays_the_same_one(place: Place) -> None:
    """A container that has it mounted would go on looking at it if another one took its place."""
    place.create(1, way=ProvisionMethod.BINDERFS)
    before = place.run.stat().st_ino
    place.delete()
    assert not place.mounted()
    place.create(1, way=ProvisionMethod.BINDERFS)
    assert place.run.stat().st_ino == before


def _other_device(place: Place) -> None:
    ledger = place.dev / LEDGER
    told = json.loads(ledger.read_text())
    told["mounts"][0]["mounted"]["device"] += 1
    ledger.write_text(json.dumps(told))


def _same_device_later(place: Place) -> None:
    place.kernel.unmount(str(place.run))
    place.kernel.mount(str(place.run))
    place.kernel.add_device(str(place.run), "a1")


other_mount = pytest.mark.parametrize("replace", [_other_device, _same_device_later])


@other_mount
def test_a_mount_that_took_the_place_of_ours_is_left_alone(place: Place, replace: Callable[[Place], None]) -> None:
    """Our links go; its nodes stay, whatever their names, and so does it."""
    place.create(2, way=ProvisionMethod.BINDERFS)
    replace(place)
    before, calls = os.listdir(place.run), len(place.kernel.calls)
    left = f"{place.run} stays mounted: it is not the binderfs that was mounted there for the nodes"
    assert place.delete() == Deleted(2, (left,))
    assert os.listdir(place.run) == before
    assert len(place.kernel.calls) == calls
    assert place.names() == set()
    assert place.delete() == Deleted(0, ())


@other_mount
def test_create_does_not_go_on_in_a_mount_that_took_the_place_of_ours(
    place: Place, replace: Callable[[Place], None]
) -> None:
    """Nothing is made, and after a delete it is a mount of others like any other one."""
    place.create(1, way=ProvisionMethod.BINDERFS)
    replace(place)
    ledger = place.ledger()
    with pytest.raises(BinderfsError, match=f"{place.run} is not the binderfs that was mounted .* in {place.dev}: "):
        place.create(3, way=ProvisionMethod.BINDERFS)
    assert place.ledger() == ledger
    assert place.create(1, prefix="b") == Created(1, 0)
    place.delete()
    assert place.create(1, prefix="c", way=ProvisionMethod.BINDERFS) == Created(1, 0)
    assert place.delete() == Deleted(1, ())
    assert place.mounted()


def test_a_mount_is_known_again_after_use(place: Place) -> None:
    """Nodes made and removed, and another max=, make no other mount of it."""
    place.create(2, way=ProvisionMethod.BINDERFS, max_devices=5)
    place.kernel.remove_device(str(place.run), "a1")
    assert place.create(2, way=ProvisionMethod.BINDERFS, max_devices=6) == Created(1, 1)
    assert place.delete() == Deleted(2, ())
    assert not place.mounted()


def test_a_directory_of_others_is_mounted_on_again_after_an_unmount(place: Place) -> None:
    """The mount that is there at last is the one that delete knows."""
    place.run.mkdir()
    place.create(1, way=ProvisionMethod.BINDERFS)
    place.kernel.unmount(str(place.run))
    place.create(1, way=ProvisionMethod.BINDERFS)
    assert place.delete() == Deleted(1, ())
    assert not place.mounted()


def test_a_mount_that_fails_leaves_a_directory_that_was_there(place: Place) -> None:
    """Only what this very create has made is taken back."""
    place.run.mkdir()
    place.kernel.hook = _refuse_mount
    with pytest.raises(BinderMissingError):
        place.create(1, way=ProvisionMethod.BINDERFS)
    assert place.run.is_dir()


def test_nothing_is_mounted_over_files(place: Place) -> None:
    """A directory with something in it, which a mount would hide, is refused."""
    place.run.mkdir()
    (place.run / "precious").touch()
    with pytest.raises(BinderfsError, match=f"{place.run} is neither empty nor a binderfs"):
        place.create(1, way=ProvisionMethod.BINDERFS)
    assert place.kernel.calls == []
    assert place.names() == set()


def _refuse_mount(_step: str) -> None:
    raise binderfs.refusal(binderfs.Step.MOUNT, errno.ENODEV, "there")


def test_a_mount_that_fails_leaves_nothing_behind(place: Place) -> None:
    """Directory and ledger are as they were before."""
    place.kernel.hook = _refuse_mount
    with pytest.raises(BinderMissingError):
        place.create(3, way=ProvisionMethod.BINDERFS)
    assert place.names() == set()
    assert not place.run.exists()


def test_a_directory_that_cannot_be_made_leaves_nothing_behind(place: Place) -> None:
    """The error names it, and there is no ledger afterwards."""
    with pytest.raises(HostError, match=f"can't make the directory {place.run}/in/it: No such file"):
        place.create(3, way=ProvisionMethod.BINDERFS, binderfs=f"{place.run}/in/it")
    assert place.names() == set()


def test_a_file_in_the_place_of_the_binderfs_is_told(place: Place) -> None:
    """The error names it, and nothing is left behind."""
    place.run.touch()
    with pytest.raises(HostError, match=f"can't look into {place.run}: Not a directory"):
        place.create(3, way=ProvisionMethod.BINDERFS)
    assert place.names() == set()


def test_a_full_mount_keeps_what_was_made_and_takes_a_larger_max(place: Place) -> None:
    """At max= create fails with what to do; doing it, by a remount, makes the rest."""
    with pytest.raises(DevicesExhaustedError, match="max=3 is reached"):
        place.create(5, way=ProvisionMethod.BINDERFS, max_devices=3)
    assert place.recorded() == [[[0, 3]]]
    assert place.create(5, way=ProvisionMethod.BINDERFS, max_devices=5) == Created(2, 3)
    assert place.kernel.calls[1:] == [("mount", str(place.run), 5, True)]
    assert place.delete() == Deleted(5, ())


def test_an_unmounted_binderfs_is_mounted_and_filled_again(place: Place) -> None:
    """After an unmount by hand the links are there and dangle; create makes the nodes behind them."""
    place.create(2, way=ProvisionMethod.BINDERFS)
    place.kernel.unmount(str(place.run))
    assert [one.kind for one in bulk.made_in(str(place.dev), place.kernel)] == [Kind.ABSENT] * 2
    assert place.create(3, way=ProvisionMethod.BINDERFS) == Created(3, 0)
    assert sorted(binderfs.devices_in(str(place.run))) == ["a0", "a1", "a2"]
    assert place.delete() == Deleted(3, ())
    assert not place.mounted()


def test_links_into_an_unmounted_binderfs_are_deleted_and_files_there_are_not(place: Place) -> None:
    """With the mount gone, what is in its directory belongs to somebody else."""
    place.create(2, way=ProvisionMethod.BINDERFS)
    place.kernel.unmount(str(place.run))
    (place.run / "a0").touch()
    assert place.delete() == Deleted(2, ())
    assert os.listdir(place.run) == ["a0"]
    assert place.names() == set()


def test_a_busy_mount_is_an_error_and_goes_with_the_next_delete(place: Place) -> None:
    """The nodes are gone, the mount is remembered until it can be unmounted."""
    place.create(2, way=ProvisionMethod.BINDERFS)

    def busy(step: str) -> None:
        raise binderfs.refusal(binderfs.Step.UNMOUNT, errno.EBUSY, str(place.run))

    place.kernel.hook = busy
    with pytest.raises(BinderfsError, match="a process has one of its devices open"):
        place.delete()
    assert place.names() == {LEDGER}
    place.kernel.hook = lambda _step: None
    assert place.delete() == Deleted(0, ())
    assert place.names() == set()
    assert not place.mounted()


@every_way
@pytest.mark.parametrize("foreign", [_own_file, _link, _directory])
def test_delete_leaves_what_is_no_longer_what_it_made(
    place: Place, way: ProvisionMethod, foreign: Callable[[Path], None]
) -> None:
    """Something else under one of our names stays, is told, and is forgotten."""
    place.create(3, way=way)
    (place.dev / "a1").unlink()
    foreign(place.dev / "a1")
    assert place.made() == ["a0", "a2"]
    assert place.delete() == Deleted(2, (f"{place.dev}/a1 is not what was made there any more",))
    assert place.names() == {"a1"}
    assert not place.mounted()
    assert place.delete() == Deleted(0, ())


@every_way
def test_delete_does_not_mind_what_is_gone_or_has_another_mode(place: Place, way: ProvisionMethod) -> None:
    """A missing name is no error, and a mode that a container changed makes no stranger of a node."""
    place.create(3, way=way)
    (place.dev / "a0").unlink()
    (place.dev / "a1").chmod(0o600)
    removed = 3 if way is ProvisionMethod.BINDERFS else 2  # the node behind the missing link goes
    assert place.delete() == Deleted(removed, ())
    assert place.names() == set()
    assert not place.mounted()


def test_the_list_says_what_each_node_is_and_where(place: Place) -> None:
    """Natural order, the kind in the plugin's words, and the target of a link."""
    place.create(11)
    place.create(1, prefix="b", way=ProvisionMethod.BINDERFS)
    found = bulk.made_in(str(place.dev), place.kernel)
    assert [one.name for one in found] == [*(f"a{number}" for number in range(11)), "b0"]
    assert found[0] == Made("a0", Kind.FILE, f"{place.dev}/a0", "")
    assert found[-1] == Made("b0", Kind.BINDERFS, f"{place.dev}/b0", f"{place.run}/b0")


@needs_root
def test_the_list_calls_a_null_device_a_stand_in(place: Place) -> None:
    """It does not pass for binder."""
    place.create(1, way=ProvisionMethod.MKNOD)
    assert bulk.made_in(str(place.dev)) == [Made("a0", Kind.STAND_IN, f"{place.dev}/a0", "")]


def test_two_at_once_are_kept_apart(place: Place) -> None:
    """While another holds the directory's lock, both commands refuse; a list does not."""
    place.create(1)
    with locked(str(place.dev)):
        for call in (lambda: place.create(2), place.delete):
            with pytest.raises(HostError, match=f"another create or delete is at work in {place.dev}"):
                call()
        assert place.made() == ["a0"]
    assert place.create(2) == Created(1, 1)


def test_a_ledger_that_is_not_believed_stops_every_command(place: Place) -> None:
    """None of them guesses, and nothing is touched."""
    (place.dev / LEDGER).write_text("{}")
    for call in (lambda: place.create(1), place.delete, place.made):
        with pytest.raises(HostError, match=f"{place.dev}/{LEDGER} is damaged"):
            call()
    assert place.names() == {LEDGER}


def test_the_lock_ends_with_the_call(place: Place) -> None:
    """No descriptor stays open, after success or failure."""
    before = len(os.listdir("/proc/self/fd"))
    place.create(1)
    _own_file(place.dev / "a1")
    with pytest.raises(DeviceExistsError):
        place.create(2)
    place.made()
    place.delete()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_ledger_is_written_before_the_first_node(place: Place) -> None:
    """At the first node it holds all that are to come, so that a power cut loses none of them."""
    seen: list[object] = []
    place.create(3, progress=lambda _done, _total: seen.append(place.recorded()))
    assert seen == [[[[0, 3]]]] * 3


def test_without_rights_in_the_directory_the_error_says_so(place: Place) -> None:
    """Nothing can be recorded, so nothing is made."""
    place.dev.chmod(0o555)
    with _as_nobody(place), pytest.raises(NotPermittedError, match=r"can't write .*: run as root, or choose"):
        place.create(1)


@needs_root
def test_devices_need_root_and_files_do_not(place: Place) -> None:
    """The error names the way out, and nothing is left behind; files then work."""
    place.dev.chmod(0o777)
    with _as_nobody(place):
        with pytest.raises(NotPermittedError, match="devices need root and CAP_MKNOD, plain files do not"):
            place.create(2, way=ProvisionMethod.MKNOD)
        assert place.names() == set()
        assert place.create(2) == Created(2, 0)
        assert place.delete() == Deleted(2, ())


def test_a_node_that_cannot_be_removed_stays_recorded(place: Place) -> None:
    """Delete fails, forgets nothing, and can be tried again."""
    place.create(2)
    place.dev.chmod(0o555)
    with _as_nobody(place), pytest.raises(NotPermittedError):
        place.delete()
    place.dev.chmod(0o755)
    assert place.delete() == Deleted(2, ())


def test_a_failure_that_is_no_matter_of_rights_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say, ends create with path and cause, and what was made until then is recorded."""
    real = os.mknod

    def full(path: str, mode: int, device: int) -> None:
        if path.endswith("a2"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, mode, device)

    monkeypatch.setattr(os, "mknod", full)
    with pytest.raises(HostError, match=f"can't make {place.dev}/a2: No space left on device"):
        place.create(5)
    assert place.recorded() == [[[0, 2]]]


def test_a_binderfs_node_without_link_stays_recorded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the link fails, the node behind it is known, and delete removes it."""

    def full(target: str, link: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "symlink", full)
        with pytest.raises(HostError, match=f"can't make {place.dev}/a0: No space left on device"):
            place.create(3, way=ProvisionMethod.BINDERFS)
    assert place.recorded() == [[[0, 1]]]
    assert place.delete() == Deleted(1, ())
    assert not place.mounted()


@contextlib.contextmanager
def _as_nobody(place: Place) -> Iterator[None]:
    """Go without root's rights inside, with the way to ``place`` open to all."""
    if not ROOT:
        yield
        return
    for directory in place.dev.parents[:4]:  # the test's, that of one of several processes, the run's, the user's
        if not directory.stat().st_mode & stat.S_IXOTH:
            directory.chmod(0o755)
    if place.dev.stat().st_mode & 0o222 == 0:
        os.chown(place.dev, 65534, 65534)
    if (place.dev / LEDGER).exists():
        os.chown(place.dev / LEDGER, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for path in (place.dev / LEDGER, place.dev):
            if path.exists():
                os.chown(path, 0, 0)
