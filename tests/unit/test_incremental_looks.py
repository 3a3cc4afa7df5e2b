"""A look at what changed finds what a look at everything would: nodes, reasons and devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.backend import BinderBackend, Settings
from aosp_plugin.binder.devices.numa import parse
from aosp_plugin.binder.devices.sets import Layout, Named, Numbered, Single
from aosp_plugin.binder.discovery import names
from aosp_plugin.binder.discovery.health import Reason, Verify
from aosp_plugin.binder.discovery.names import merge_sorted, natural_sort
from aosp_plugin.binder.discovery.store import DeviceStore
from aosp_plugin.binder.driver.host import Driver, Host

if TYPE_CHECKING:
    from pathlib import Path

    from aosp_plugin.framework.inventory import Device

PREFIX = "aosp_binder"
LAYOUTS: dict[str, Layout] = {
    "single": Single(),
    "in a row": Numbered(PREFIX, 3),
    "stride": Numbered(PREFIX, 2, 50),
    "named": Named(["binder", "hwbinder"], "aosp_binder{set}-{name}"),
    "nested": Named(["binder", "hwbinder"]),
}


class Time:
    """A clock that the test turns."""

    now = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


class World:
    """A device directory, a directory that its links lead into, and two backends: one is told what changed."""

    def __init__(self, root: Path, layout: str, replicas: int = 1) -> None:
        self.root = root
        self.clock = Time()
        self.devices, self.elsewhere = root / "dev", root / "run"
        self.devices.mkdir(parents=True)
        self.elsewhere.mkdir()
        self.changed: set[str] = set()
        self.told, self.looking = (self._backend(layout, replicas) for _ in range(2))
        self.settled = False

    def _backend(self, layout: str, replicas: int) -> BinderBackend:
        made = Settings(
            resource_name="aosp.io/binder",
            directory="/dev",
            prefix=PREFIX,
            verify=Verify.FILE,
            missing_device_ttl=10,
            layout=LAYOUTS[layout],
            replicas=replicas,
            numa=parse({"0-30": 0, "31-90": 1}),
        )
        return BinderBackend(Host(str(self.root)), made, self.clock)

    def do(self, action: str, place: str, name: str) -> None:
        """Have a file come or go, in one of the directories."""
        path = (self.devices if place == "dev" else self.elsewhere) / name
        self.changed.add(str(path))
        if path.is_symlink() or path.exists():
            path.unlink()
        if action == "file":
            path.touch()
        elif action == "link":
            path.symlink_to(f"/run/{name}")
        elif action == "pipe":
            os.mkfifo(path)

    def look(self) -> None:
        """Have both look: the one at what changed, unless it has directories to learn of first."""
        known = self.told.directories()
        self.told.scan(frozenset(self.changed) if self.settled else None)
        self.settled = self.told.directories() == known
        if not self.settled:
            self.told.scan()
            self.settled = True
        self.changed.clear()
        self.looking.scan()

    def agree(self) -> None:
        """Fail where the two backends differ."""
        assert list(self.told.devices()) == list(self.looking.devices())
        assert self.told.nodes() == self.looking.nodes()
        assert list(self.told.nodes()) == list(self.looking.nodes())
        assert self.told.directories() >= self.looking.directories()
        ids = [device.id for device in self.told.devices() if device.healthy]
        assert self.told.prefer(ids, [], min(3, len(ids))) == self.looking.prefer(ids, [], min(3, len(ids)))


NAMES = st.one_of(
    st.integers(0, 12).map(lambda number: f"{PREFIX}{number}"),
    st.tuples(st.integers(0, 3), st.sampled_from(["binder", "hwbinder"])).map(lambda of: f"{PREFIX}{of[0]}-{of[1]}"),
    st.sampled_from(["other", "binder-control", f"{PREFIX}01", f"{PREFIX}a b"]),
)
ACTIONS = st.tuples(
    st.sampled_from(["file", "file", "link", "pipe", "gone"]), st.sampled_from(["dev", "dev", "run"]), NAMES
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("replicas", [1, 2])
@given(bursts=st.lists(st.tuples(st.lists(ACTIONS, max_size=6), st.sampled_from([0.0, 1.0, 20.0])), max_size=8))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_whatever_changes_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    layout: str,
    replicas: int,
    bursts: list[tuple[list[tuple[str, str, str]], float]],
) -> None:
    """Files, links, what they lead to, other kinds and time that passes: both backends tell the same."""
    world = World(tmp_path_factory.mktemp("world"), layout, replicas)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(names, "MERGE_FACTOR", 0.5)  # else all would be sorted, as these are so few
        for number in range(0, 60, 7):
            world.do("file", "dev", f"{PREFIX}{number}")
        world.look()
        for burst, passes in bursts:
            for action in burst:
                world.do(*action)
            world.clock.now += passes
            world.look()
            if passes:  # what is forgotten in time is, with a look at everything
                world.told.scan()
            world.agree()


def known_nodes(root: Path, host: Host | None = None) -> DeviceStore:
    """Return the nodes of a device directory that is there."""
    (root / "dev").mkdir(exist_ok=True)
    return DeviceStore(
        host or Host(str(root)), directory="/dev", prefix=PREFIX, named=None, verify=Verify.FILE, missing_device_ttl=300
    )


class Counting(Host):
    """A host that notes which files are looked at."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.listed = 0
        self.looked_at: list[str] = []

    def listdir(self, directory: str) -> list[str]:
        """List a directory."""
        self.listed += 1
        return super().listdir(directory)

    def lstat(self, path: str) -> os.stat_result:
        """Look at a file."""
        self.looked_at.append(path)
        return super().lstat(path)


def test_one_node_that_changes_is_all_that_is_looked_at(tmp_path: Path) -> None:
    """Of a thousand, and no directory is listed."""
    host = Counting(str(tmp_path))
    known = known_nodes(tmp_path, host)
    for number in range(1000):
        (tmp_path / f"dev/{PREFIX}{number}").touch()
    assert known.look() is None
    host.looked_at, host.listed = [], 0
    (tmp_path / f"dev/{PREFIX}7").unlink()
    assert known.look({str(tmp_path / f"dev/{PREFIX}7")}) == {f"{PREFIX}7"}
    assert (host.looked_at, host.listed) == ([f"/dev/{PREFIX}7"], 0)
    assert known.reason(f"{PREFIX}7") is Reason.MISSING
    assert known.reason(f"{PREFIX}8") is None


def test_a_node_that_was_missing_for_long_is_forgotten_when_its_name_is_in_the_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is by a look at everything."""
    monkeypatch.setattr(names, "MERGE_FACTOR", 0.5)
    world = World(tmp_path, "single")
    for name in ("1", "2"):
        world.do("file", "dev", PREFIX + name)
    world.look()
    world.do("gone", "dev", f"{PREFIX}1")
    world.look()
    world.clock.now += 20
    world.do("gone", "dev", f"{PREFIX}1")
    world.look()
    world.agree()
    assert [device.id for device in world.told.devices()] == [f"{PREFIX}2"]
    assert list(world.told.nodes()) == [f"{PREFIX}2"]


def test_a_link_that_a_look_at_everything_found_is_looked_at_when_its_target_changes(tmp_path: Path) -> None:
    """By the file that it leads to, which is in another directory."""
    (tmp_path / "run").mkdir()
    known = known_nodes(tmp_path)
    (tmp_path / f"dev/{PREFIX}1").symlink_to("/run/one")
    known.look()
    (tmp_path / "run/one").touch()
    assert known.look({str(tmp_path / "run/one")}) == {f"{PREFIX}1"}
    assert known.reason(f"{PREFIX}1") is None


def test_a_change_of_something_else_is_no_look(tmp_path: Path) -> None:
    """Not of other files in the device directory, nor of the same name in another one."""
    host = Counting(str(tmp_path))
    known = known_nodes(tmp_path, host)
    known.look()
    host.looked_at = []
    assert known.look({str(tmp_path / "dev/null"), str(tmp_path / f"run/{PREFIX}1")}) == set()
    assert host.looked_at == []


@pytest.mark.parametrize("why", ["first look", "forget", "another directory"])
def test_where_more_may_have_changed_everything_is_looked_at(tmp_path: Path, why: str) -> None:
    """At first, after a reload, and where the path leads to another directory now."""
    known = known_nodes(tmp_path)
    if why != "first look":
        known.look()
    if why == "forget":
        known.forget()
    if why == "another directory":
        (tmp_path / "dev").rename(tmp_path / "other")
        (tmp_path / "dev").symlink_to("other")
    (tmp_path / f"dev/{PREFIX}1").touch()
    assert known.look(frozenset()) is None
    assert known.names == [f"{PREFIX}1"]


def test_another_driver_is_a_look_at_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binderfs that was mounted makes other kinds of the same files."""
    known = known_nodes(tmp_path)
    known.look()
    assert known.look(frozenset()) == set()
    monkeypatch.setattr(Host, "driver", lambda _: Driver(frozenset({1234})))
    assert known.look(frozenset()) is None


def test_a_link_is_looked_at_when_its_target_changes(tmp_path: Path) -> None:
    """Also where it leads nowhere yet, and where an earlier look at it alone has found that out."""
    known = known_nodes(tmp_path)
    (tmp_path / "run").mkdir()
    known.look()
    link = tmp_path / f"dev/{PREFIX}1"
    link.symlink_to("/run/one")
    known.look({str(link)})
    assert known.reason(f"{PREFIX}1") is Reason.MISSING
    assert str(tmp_path / "run") in known.directories()
    (tmp_path / "run/one").touch()
    assert known.look({str(tmp_path / "run/one")}) == {f"{PREFIX}1"}
    assert known.reason(f"{PREFIX}1") is None


def test_a_link_is_looked_at_when_one_on_its_way_changes(tmp_path: Path) -> None:
    """The link that leads to a link, or through a directory that is one, is a node again when that leads to one."""
    known = known_nodes(tmp_path)
    for directory in ("between", "old", "new"):
        (tmp_path / directory).mkdir()
    (tmp_path / "new/one").touch()
    (tmp_path / f"dev/{PREFIX}1").symlink_to("/between/one")
    (tmp_path / f"dev/{PREFIX}2").symlink_to("/current/one")
    (tmp_path / "between/one").symlink_to("/old/one")
    (tmp_path / "current").symlink_to("old")
    known.look()
    assert {str(tmp_path / "between"), f"{tmp_path}/"} <= {*known.directories()}
    for name, link, target in ((f"{PREFIX}1", "between/one", "/new/one"), (f"{PREFIX}2", "current", "new")):
        assert known.reason(name) is Reason.MISSING
        (tmp_path / link).unlink()
        (tmp_path / link).symlink_to(target)
        assert known.look({str(tmp_path / link)}) == {name}
        assert known.reason(name) is None


def test_devices_that_stay_are_told_as_the_same_objects(tmp_path: Path) -> None:
    """So that a list of ten thousand is compared and encoded in no time."""
    world = World(tmp_path, "single")
    for number in range(100):
        world.do("file", "dev", f"{PREFIX}{number}")
    world.look()
    before: list[Device] = list(world.told.devices())
    world.told.scan()
    assert all(one is other for one, other in zip(before, world.told.devices(), strict=True))
    world.do("gone", "dev", f"{PREFIX}50")
    world.look()
    after = world.told.devices()
    assert [one.id for one, other in zip(before, after, strict=True) if one is not other] == [f"{PREFIX}50"]


@given(st.sets(st.integers(0, 3000)), st.sets(st.integers(0, 3000), max_size=60))
@settings(derandomize=True, deadline=None)
def test_new_names_come_in_natural_order(numbers: set[int], new: set[int]) -> None:
    """Whether each is put in its place or all are sorted."""
    names = natural_sort([f"b{number}" for number in numbers])
    added = {f"b{number}" for number in new - numbers}
    assert merge_sorted(names, added) == natural_sort([*names, *added])
