"""Keeping nodes there: real files, with a stand-in for the kernel's binderfs alone."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import bulk
from aosp_plugin.binder.provision import provisioner as ensure_module
from aosp_plugin.binder.provision.ledger import LEDGER, locked
from aosp_plugin.binder.provision.makers import ProvisionMethod
from aosp_plugin.binder.provision.provisioner import RETRY_AFTER, DeviceProvisioner, ProvisionSpec, ensure
from aosp_plugin.errors import (
    BinderfsError,
    BinderMissingError,
    DeviceDirectoryError,
    DeviceExistsError,
    DevicesExhaustedError,
    HostError,
    NotPermittedError,
)
from tests.unit.binder.test_provision import FakeBinderfs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX = 100
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes devices, which needs root")


class Place:
    """A host, seen under a root or not, and the calls on it."""

    def __init__(self, directory: Path, *, under_root: bool) -> None:
        self.tree = directory / "host"
        self.dev, self.run = self.tree / "dev", self.tree / "run" / "binderfs"
        self.dev.mkdir(parents=True)
        self.run.parent.mkdir()
        self.prefix = "" if under_root else str(self.tree)
        self.host = Host(str(self.tree) if under_root else "/")
        self.kernel = FakeBinderfs()
        self.now = 1000.0

    def wanted(self, count: int = 3, **more: Any) -> ProvisionSpec:
        """Want a0, a1, ..."""
        values = {
            "directory": f"{self.prefix}/dev", "prefix": "a", "first": 0, "count": count,
            "binderfs": f"{self.prefix}/run/binderfs", "max_devices": MAX, **more,
        }  # fmt: skip
        return ProvisionSpec(**values)

    def ensure(self, count: int = 3, **more: Any) -> int:
        """Ensure that they are there."""
        return ensure(self.wanted(count, **more), self.host, self.kernel)

    def keeper(self, count: int = 3) -> DeviceProvisioner:
        """Return a keeper with a clock that stands still."""
        return DeviceProvisioner(self.wanted(count), self.host, self.kernel, lambda: self.now)

    def nodes(self) -> dict[str, int]:
        """Return the mode of each node that its link leads to."""
        return {
            name: stat.S_IMODE((self.run / name).stat().st_mode)
            for name in os.listdir(self.dev)
            if name != LEDGER and os.readlink(self.dev / name) == f"{self.prefix}/run/binderfs/{name}"
        }

    def mounts(self) -> list[tuple[object, ...]]:
        """Return the calls of mount, but for where: the max=, and whether it was the one that is there."""
        assert {call[1] for call in self.kernel.calls} <= {str(self.run)}
        return [call[2:] for call in self.kernel.calls]

    def state(self) -> dict[str, int]:
        """Return every file with what changes when it is touched, the directories themselves among them."""
        found = {}
        for directory in (self.dev, self.run):
            for path in (directory, *directory.iterdir()):
                found[str(path)] = path.lstat().st_ctime_ns
        return found


@pytest.fixture(params=[False, True], ids=["here", "under-root"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a host whose files are seen as they are, and one that is seen under a root."""
    return Place(tmp_path, under_root=request.param)


def test_everything_is_made_where_nothing_is(place: Place) -> None:
    """A binderfs of its own, mounted with max=; nodes that all users can open; links with the host's paths."""
    assert place.ensure(3) == 3
    assert place.nodes() == {"a0": 0o666, "a1": 0o666, "a2": 0o666}
    assert place.mounts() == [(MAX, False)]


def test_a_second_call_does_nothing(place: Place) -> None:
    """Nothing is written, which would call for another look."""
    place.ensure(3)
    before = place.state()
    assert place.ensure(3) == 0
    assert place.state() == before
    assert place.mounts() == [(MAX, False)]


def test_the_numbers_begin_where_they_are_to(place: Place) -> None:
    """Prefix, first number, count and mode are as wanted."""
    assert place.ensure(2, prefix="binder_", first=9, mode=0o640) == 2
    assert place.nodes() == {"binder_9": 0o640, "binder_10": 0o640}


def test_the_ledger_knows_the_nodes_by_the_host_s_paths(place: Place) -> None:
    """Commands on the host, which sees its files without a root, find what is theirs to list and delete."""
    place.ensure(2)
    told = json.loads((place.dev / LEDGER).read_text())
    mount = f"{place.prefix}/run/binderfs"
    assert told["made"] == [{"way": "binderfs", "prefix": "a", "binderfs": mount, "ranges": [[0, 2]]}]
    assert [one["directory"] for one in told["mounts"]] == [mount]


def _lose_node(place: Place) -> None:
    (place.run / "a1").unlink()


def _lose_link(place: Place) -> None:
    (place.dev / "a1").unlink()


def _lose_both(place: Place) -> None:
    _lose_node(place)
    _lose_link(place)


def _lose_mode(place: Place) -> None:
    (place.run / "a1").chmod(0o600)


@pytest.mark.parametrize("lose", [_lose_node, _lose_link, _lose_both, _lose_mode])
def test_what_is_lost_comes_back_and_the_rest_stays(place: Place, lose: Callable[[Place], None]) -> None:
    """A node, a link, both, or a mode; the neighbours are the same ones as before."""
    place.ensure(3)
    before = [(place.run / name).stat().st_ino for name in ("a0", "a2")]
    lose(place)
    assert place.ensure(3) == 1
    assert place.nodes() == {"a0": 0o666, "a1": 0o666, "a2": 0o666}
    assert [(place.run / name).stat().st_ino for name in ("a0", "a2")] == before
    assert place.ensure(3) == 0


def test_an_unmounted_binderfs_is_mounted_and_filled_again(place: Place) -> None:
    """The links were there all the time; all nodes behind them are new."""
    place.ensure(3)
    place.kernel.unmount(str(place.run))
    del place.kernel.calls[:]
    assert place.ensure(3) == 3
    assert place.nodes() == {"a0": 0o666, "a1": 0o666, "a2": 0o666}
    assert place.mounts() == [(MAX, False)]
    assert place.ensure(3) == 0


def test_a_binderfs_that_somebody_mounted_over_ours_is_left_as_it_is(place: Place) -> None:
    """No node is made in it, its max= is not touched, and it is not unmounted: an error tells of it."""
    place.ensure(3)
    place.kernel.unmount(str(place.run))
    place.kernel.mount(str(place.run), MAX - 1)
    del place.kernel.calls[:]
    before = place.state()
    for max_devices in (MAX, MAX - 1):
        with pytest.raises(BinderfsError, match="is not the binderfs that was mounted there"):
            place.ensure(3, max_devices=max_devices)
    assert place.state() == before
    assert place.mounts() == []


def test_a_larger_max_is_given_to_the_mount_that_is_there(place: Place) -> None:
    """It is remounted, and the nodes stay."""
    place.ensure(3)
    before = (place.run / "a0").stat().st_ino
    assert place.ensure(3, max_devices=MAX + 1) == 0
    assert place.mounts() == [(MAX, False), (MAX + 1, True)]
    assert place.ensure(3, max_devices=MAX + 1) == 0
    assert len(place.mounts()) == 2
    assert (place.run / "a0").stat().st_ino == before


def test_a_smaller_max_is_not_given_to_the_mount_that_is_there(place: Place) -> None:
    """Somebody may have raised it by hand; nodes that are made then go by it as well."""
    place.ensure(2)
    assert place.ensure(3, max_devices=2) == 1
    assert place.mounts() == [(MAX, False)]


def test_a_max_that_the_kernel_does_not_tell_is_left_alone(place: Place) -> None:
    """Some kernels don't show it."""
    place.ensure(2)
    place.kernel.mounts[str(place.run)] = binderfs.BinderfsMount(str(place.run), 1, None)
    assert place.ensure(3) == 1
    assert place.mounts() == [(MAX, False)]


def test_without_a_max_the_kernel_s_own_is_left(place: Place) -> None:
    """At the first mount, and at one that has another since."""
    assert place.ensure(2, max_devices=None) == 2
    assert place.ensure(3, max_devices=None) == 1
    assert place.mounts() == [(None, False)]
    place.kernel.mount(str(place.run), 5, again=True)
    assert place.ensure(4, max_devices=None) == 1
    assert place.mounts() == [(None, False), (5, True)]


def test_two_at_once_wait_for_each_other(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two resources with nodes in one binderfs: neither takes the other for a command at work, or mounts as well."""
    tried = threading.Semaphore(0)

    class Lock:
        """Tells of each who tries to get in."""

        real = threading.Lock()

        def __enter__(self) -> None:
            tried.release()
            self.real.acquire()

        def __exit__(self, *_: object) -> None:
            self.real.release()

    made: list[int] = []
    other = threading.Thread(target=lambda: made.append(place.ensure(2, first=10)))

    def begin(step: str) -> None:
        if step == "before mount":
            assert tried.acquire(timeout=10)  # this one
            other.start()
            assert tried.acquire(timeout=10)  # the other one

    monkeypatch.setattr(ensure_module, "_ONE_AT_A_TIME", Lock())
    place.kernel.hook = begin
    made.append(place.ensure(3))
    other.join(10)
    assert made == [3, 2]
    assert place.mounts() == [(MAX, False)]


def test_a_larger_count_is_made_and_a_smaller_one_removes_nothing(place: Place) -> None:
    """Nodes that are no longer wanted may be in use."""
    place.ensure(3)
    assert place.ensure(5) == 2
    assert place.ensure(1) == 0
    assert len(place.nodes()) == 5


def test_a_taken_name_is_told_once_all_others_are_made(place: Place) -> None:
    """Somebody's file stays, and does not keep the nodes beside it from coming back; nothing is written for it."""
    (place.dev / "a1").write_text("mine")
    with pytest.raises(DeviceExistsError, match=f"^{place.dev}/a1 is taken .* or start$"):
        place.ensure(5)
    assert (place.dev / "a1").read_text() == "mine"
    assert {*os.listdir(place.dev)} == {"a0", "a1", "a2", "a3", "a4", LEDGER}
    before = place.state()
    with pytest.raises(DeviceExistsError, match=f"^{place.dev}/a1 is taken"):
        place.ensure(5)
    assert place.state() == before
    for name in ("a0", "a2", "a4"):
        (place.run / name).unlink()
    with pytest.raises(DeviceExistsError, match=f"^{place.dev}/a1 is taken"):
        place.ensure(5)
    assert {*binderfs.devices_in(str(place.run))} == {"a0", "a2", "a3", "a4"}


def test_several_taken_names_are_one_error(place: Place) -> None:
    """It names the first, and says how many there are."""
    for count, name in enumerate(("a1", "a6", "a9"), 1):
        (place.dev / name).write_text("mine")
        more = rf" \(one of {count} such names\)" if count > 1 else ""
        with pytest.raises(DeviceExistsError, match=f"^{place.dev}/a1 is taken .* or start{more}$"):
            place.ensure(4 * count)
    assert len(binderfs.devices_in(str(place.run))) == 12 - 3


def test_a_node_without_link_that_others_made_does_not_stop_the_rest(place: Place) -> None:
    """It is in our binderfs under a name that is wanted, and the ledger does not know it."""
    place.ensure(1)
    place.kernel.add_device(str(place.run), "a1")
    for _ in range(2):
        with pytest.raises(DeviceExistsError, match=f"{place.run}/a1 is taken"):
            place.ensure(3)
        assert {*os.listdir(place.dev)} == {"a0", "a2", LEDGER}
        assert {*binderfs.devices_in(str(place.run))} == {"a0", "a1", "a2"}
        (place.run / "a2").unlink()


def test_nodes_that_others_made_just_so_are_taken_as_they_are(place: Place) -> None:
    """A script that ran at boot has left nothing to do, and no error comes of it."""
    place.ensure(3)
    (place.dev / LEDGER).unlink()
    assert place.ensure(3) == 0
    assert not (place.dev / LEDGER).exists()


def test_what_create_has_made_is_kept(place: Place) -> None:
    """The command and the daemon are of one ledger: either goes on where the other stopped."""
    request = bulk.Request(
        directory=f"{place.prefix}/dev",
        prefix="a",
        first=0,
        count=2,
        way=ProvisionMethod.BINDERFS,
        binderfs=f"{place.prefix}/run/binderfs",
        root="" if place.prefix else str(place.tree),
    )
    assert bulk.create(request, place.kernel) == (2, 0)
    (place.run / "a0").unlink()
    assert place.ensure(3, max_devices=2) == 2
    assert bulk.create(request, place.kernel) == (0, 2)


def test_what_was_ensured_is_deleted_by_the_command(tmp_path: Path) -> None:
    """Nodes, links, ledger and mount go."""
    place = Place(tmp_path, under_root=False)
    place.ensure(3)
    assert bulk.delete(str(place.dev), place.kernel) == (3, ())
    assert os.listdir(place.dev) == []
    assert place.kernel.mounts == {}


def test_links_on_the_way_are_followed_under_the_root(place: Place) -> None:
    """What is recorded and written into links is free of them, as the mount table is."""
    (place.tree / "var").symlink_to(f"{place.prefix}/run")
    (place.tree / "devices").symlink_to("dev")
    wanted = {"directory": f"{place.prefix}/devices", "binderfs": f"{place.prefix}/var/binderfs"}
    assert place.ensure(2, **wanted) == 2
    assert place.nodes() == {"a0": 0o666, "a1": 0o666}
    assert place.ensure(2) == 0


@pytest.mark.parametrize("way", [pytest.param(ProvisionMethod.MKNOD, marks=needs_root), ProvisionMethod.FILE])
def test_the_other_ways_of_create_know_the_root_as_well(tmp_path: Path, way: ProvisionMethod) -> None:
    """Files and stand-ins stand in the device directory as it is seen."""
    place = Place(tmp_path, under_root=True)
    request = bulk.Request("/dev", "a", 0, 2, way, "", root=str(place.tree))
    assert bulk.create(request, place.kernel) == (2, 0)
    assert bulk.create(request, place.kernel) == (0, 2)
    assert {*os.listdir(place.dev)} == {"a0", "a1", LEDGER}


class Unlinked(Place):
    """A host whose device directory is the binderfs itself."""

    def wanted(self, count: int = 3, **more: Any) -> ProvisionSpec:
        """Want nodes without links."""
        return super().wanted(count, directory=f"{self.prefix}/run/binderfs", **more)

    def nodes(self) -> dict[str, int]:
        """Return the mode of each node."""
        names = binderfs.devices_in(str(self.run))
        return {name: stat.S_IMODE((self.run / name).stat().st_mode) for name in names}


@pytest.fixture(params=[False, True], ids=["here", "under-root"])
def unlinked(request: pytest.FixtureRequest, tmp_path: Path) -> Unlinked:
    return Unlinked(tmp_path, under_root=request.param)


def test_nodes_right_in_the_device_directory_need_no_links(unlinked: Unlinked) -> None:
    """All is made at first, nothing at second, and nothing but nodes is in there."""
    assert unlinked.ensure(3) == 3
    assert unlinked.nodes() == {"a0": 0o666, "a1": 0o666, "a2": 0o666}
    before = unlinked.state()
    assert unlinked.ensure(3) == 0
    assert unlinked.state() == before
    assert unlinked.mounts() == [(MAX, False)]
    assert os.listdir(unlinked.dev) == []


@pytest.mark.parametrize("lose", [_lose_node, _lose_mode])
def test_without_links_too_what_is_lost_comes_back(unlinked: Unlinked, lose: Callable[[Place], None]) -> None:
    """A node, or its mode; the mount with all of them, and a larger max=."""
    unlinked.ensure(3, first=0)
    lose(unlinked)
    assert unlinked.ensure(3) == 1
    assert unlinked.nodes() == {"a0": 0o666, "a1": 0o666, "a2": 0o666}
    assert unlinked.ensure(3, max_devices=MAX + 1) == 0
    unlinked.kernel.unmount(str(unlinked.run))
    assert unlinked.ensure(2, first=7, mode=0o600) == 2
    assert unlinked.nodes() == {"a7": 0o600, "a8": 0o600}
    assert unlinked.mounts() == [(MAX, False), (MAX + 1, True), (), (MAX, False)]


def test_a_device_directory_that_is_a_link_to_the_binderfs_needs_no_links(unlinked: Unlinked) -> None:
    """It is the same directory."""
    (unlinked.tree / "nodes").symlink_to(f"{unlinked.prefix}/run/binderfs")
    wanted = replace(unlinked.wanted(3), directory=f"{unlinked.prefix}/nodes")
    assert ensure(wanted, unlinked.host, unlinked.kernel) == 3
    assert unlinked.nodes() == {"a0": 0o666, "a1": 0o666, "a2": 0o666}


def test_nothing_is_mounted_over_files(unlinked: Unlinked) -> None:
    """A device directory with something in it is not hidden by a mount, and a file is none."""
    unlinked.run.mkdir()
    (unlinked.run / "precious").touch()
    with pytest.raises(BinderfsError, match=f"{unlinked.run} is neither empty nor a binderfs"):
        unlinked.ensure(3)
    (unlinked.run / "precious").unlink()
    unlinked.run.rmdir()
    unlinked.run.touch()
    with pytest.raises(HostError, match=r"can't keep nodes in .*/run/binderfs: Not a directory"):
        unlinked.ensure(3)
    assert unlinked.mounts() == []


def test_without_a_device_directory_the_error_says_so(place: Place) -> None:
    """It is nothing to be made here: its name is most likely wrong."""
    place.dev.rmdir()
    with pytest.raises(DeviceDirectoryError, match=f"can't use {place.dev} for nodes"):
        place.ensure(3)


def test_errors_of_the_system_are_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be done is named, as for all errors of the host."""

    def refuse(_path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    place.ensure(3)
    monkeypatch.setattr(os, "readlink", refuse)
    with pytest.raises(NotPermittedError, match=f"can't keep nodes in {place.prefix}/dev: Permission denied: run as"):
        place.ensure(3)


def test_a_failure_is_followed_by_a_pause(place: Place) -> None:
    """The attempt writes the ledger, which is an event in the device directory: without a pause it never ends."""

    def refuse(_step: str) -> None:
        raise binderfs.refusal(binderfs.Step.MOUNT, errno.ENODEV, str(place.run))

    keeper = place.keeper(3)
    place.kernel.hook = refuse
    with pytest.raises(BinderMissingError):
        keeper.look()
    place.kernel.hook = lambda _step: None
    place.now += RETRY_AFTER / 2
    assert keeper.look() == 0
    assert place.kernel.mounts == {}
    place.now += RETRY_AFTER / 2
    assert keeper.look() == 3
    (place.run / "a1").unlink()
    assert keeper.look() == 1
    assert keeper.look() == 0


def test_what_was_made_before_a_failure_stays(place: Place) -> None:
    """A full mount, say: the rest comes when there is room."""
    place.ensure(1, max_devices=3)
    for name in ("theirs", "others"):
        place.kernel.add_device(str(place.run), name)
    with pytest.raises(DevicesExhaustedError, match="max=3 is reached"):
        place.ensure(3, max_devices=3)
    place.kernel.remove_device(str(place.run), "theirs")
    with pytest.raises(DevicesExhaustedError, match="max=3 is reached"):
        place.ensure(3, max_devices=3)
    assert place.ensure(3, max_devices=4) == 1


def test_a_taken_name_is_no_cause_for_a_pause(place: Place) -> None:
    """It may stay taken for long, and nothing is written for it."""
    keeper = place.keeper(3)
    (place.dev / "a1").touch()
    (place.dev / "a1").write_text("mine")
    for _ in range(2):
        with pytest.raises(DeviceExistsError):
            keeper.look()
    (place.dev / "a1").unlink()
    assert keeper.look() == 1


def test_while_a_command_is_at_work_nothing_is_done(place: Place) -> None:
    """Its lock is respected, and an error tells of it."""
    with locked(str(place.dev)), pytest.raises(HostError, match="another create or delete is at work"):
        place.ensure(3)
    assert place.kernel.mounts == {}
