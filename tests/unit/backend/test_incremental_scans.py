"""Incremental scans: a scan of the changed files has the same result as a full scan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.sets import Single
from aosp_plugin.binder.discovery import names
from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.health import Reason, Verify
from aosp_plugin.binder.discovery.store import SHORTEST_PAUSE, DeviceStore
from aosp_plugin.binder.driver.host import Driver, Host
from aosp_plugin.config import NamedSets, NumberedSets
from tests.backends import binder_backend
from tests.support import Clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from aosp_plugin.backend import BinderBackend

PREFIX = "aosp_binder"
TTL = 10.0
PAIR = ("binder", "hwbinder")
SETS: dict[str, NumberedSets | NamedSets | None] = {
    "single": None,
    "consecutive": NumberedSets(size=3),
    "stride": NumberedSets(size=2, stride=50),
    "named": NamedSets(names=PAIR, pattern="aosp_binder{set}-{name}"),
    "nested": NamedSets(names=PAIR),
}


class World:
    """A device directory, a directory that its links lead to, and two backends: one scans incrementally."""

    def __init__(self, root: Path, sets: NumberedSets | NamedSets | None = None, replicas: int = 1) -> None:
        self.dev, self.run = root / "dev", root / "run"
        self.dev.mkdir(parents=True)
        self.run.mkdir()
        self.clock = Clock()
        self._changed: set[str] = set()
        self._watching = False

        def backend() -> BinderBackend:
            return binder_backend(
                "/dev",
                host=Host(str(root)),
                clock=self.clock,
                sets=sets,
                replicas=replicas,
                numa={"0-30": 0, "31-90": 1},
                missing_device_ttl=TTL,
            )

        self.incremental, self.full = backend(), backend()

    def change(self, action: str, directory: str, name: str) -> None:
        """Create, replace or remove a file in one of the directories."""
        path = (self.dev if directory == "dev" else self.run) / name
        self._changed.add(str(path))
        if path.is_symlink() or path.exists():
            path.unlink()
        if action == "file":
            path.touch()
        elif action == "link":
            path.symlink_to(f"/run/{name}")
        elif action == "pipe":
            os.mkfifo(path)

    def scan(self) -> None:
        """Scan with both backends. As in the framework, new directories to watch require a full scan."""
        before = self.incremental.directories()
        self.incremental.scan(frozenset(self._changed) if self._watching else None)
        if not self._watching or self.incremental.directories() != before:
            self.incremental.scan()
            self._watching = True
        self._changed.clear()
        self.full.scan()

    def check(self) -> None:
        """Fail if the backends differ."""
        assert list(self.incremental.devices()) == list(self.full.devices())
        assert list(self.incremental.binder_devices().items()) == list(self.full.binder_devices().items())
        assert self.incremental.directories() >= self.full.directories()
        healthy = [device.id for device in self.full.devices() if device.healthy]
        size = min(3, len(healthy))
        assert self.incremental.prefer(healthy, [], size) == self.full.prefer(healthy, [], size)


NAMES = st.one_of(
    st.integers(0, 12).map(lambda number: f"{PREFIX}{number}"),
    st.tuples(st.integers(0, 3), st.sampled_from(PAIR)).map(lambda pair: f"{PREFIX}{pair[0]}-{pair[1]}"),
    st.sampled_from(["other", "binder-control", f"{PREFIX}01", f"{PREFIX}a b"]),
)
CHANGES = st.tuples(
    st.sampled_from(["file", "file", "link", "pipe", "remove"]), st.sampled_from(["dev", "dev", "run"]), NAMES
)


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("replicas", [1, 2])
@given(bursts=st.lists(st.tuples(st.lists(CHANGES, max_size=6), st.sampled_from([0.0, 1.0, 2 * TTL])), max_size=8))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_incremental_scan_has_the_result_of_a_full_scan(
    tmp_path_factory: pytest.TempPathFactory,
    sets: str,
    replicas: int,
    bursts: list[tuple[list[tuple[str, str, str]], float]],
) -> None:
    """Bursts of changes alternate with pauses, in which devices expire."""
    world = World(tmp_path_factory.mktemp("world"), SETS[sets], replicas)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "MERGE_FACTOR", 0.5)
        for number in range(0, 60, 7):
            world.change("file", "dev", f"{PREFIX}{number}")
        world.scan()
        for changes, pause in bursts:
            for change in changes:
                world.change(*change)
            world.clock.now += pause
            world.scan()
            world.check()


def test_expired_device_that_changes_again_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MERGE_FACTOR", 0.5)
    world = World(tmp_path)
    for action, pause in (("file", 0.0), ("remove", 2 * TTL), ("remove", 0.0)):
        world.change(action, "dev", f"{PREFIX}1")
        world.scan()
        world.clock.now += pause
    world.check()
    assert list(world.incremental.devices()) == []


def test_unchanged_ids_remain_the_same_objects(tmp_path: Path) -> None:
    """The framework compares and encodes a list of 10,000 devices by the identity of their IDs."""
    world = World(tmp_path)
    for number in range(100):
        world.change("file", "dev", f"{PREFIX}{number}")
    world.scan()
    before = list(world.incremental.devices().ids)
    world.incremental.scan()
    assert all(old is new for old, new in zip(before, world.incremental.devices().ids, strict=True))
    world.change("remove", "dev", f"{PREFIX}50")
    world.change("file", "dev", f"{PREFIX}200")
    world.scan()
    after = world.incremental.devices().ids
    assert {id(device_id) for device_id in after} - {id(device_id) for device_id in before} == {id(after[-1])}


class CountingHost(Host):
    """A host that records its calls."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.calls: list[str] = []

    def listdir(self, directory: str) -> list[str]:
        """List a directory."""
        self.calls.append(directory)
        return super().listdir(directory)

    def lstat_all(self, directory: str, names: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the status of files."""
        self.calls.append(f"{directory}/*")
        return super().lstat_all(directory, names)

    def lstat(self, path: str) -> os.stat_result:
        """Return the status of a file."""
        self.calls.append(path)
        return super().lstat(path)


@pytest.fixture
def host(tmp_path: Path) -> CountingHost:
    """Return a host with the empty directories /dev and /run."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "run").mkdir()
    return CountingHost(str(tmp_path))


@pytest.fixture
def store(host: CountingHost) -> DeviceStore:
    return DeviceStore(host, directory="/dev", layout=Single(PREFIX), verify=Verify.FILE, missing_device_ttl=300)


def test_incremental_scan_reads_the_changed_device_only(tmp_path: Path, host: CountingHost, store: DeviceStore) -> None:
    """Changes of other files read nothing."""
    for number in range(1000):
        (tmp_path / f"dev/{PREFIX}{number}").touch()
    assert store.scan() is None
    host.calls.clear()
    (tmp_path / f"dev/{PREFIX}7").unlink()
    changed = {f"dev/{PREFIX}7", "dev/null", f"run/{PREFIX}1"}
    assert store.scan({str(tmp_path / path) for path in changed}) == {f"{PREFIX}7"}
    assert host.calls == [f"/dev/{PREFIX}7"]
    assert (store.tracked[f"{PREFIX}7"].reason, store.tracked[f"{PREFIX}8"].reason) == (Reason.MISSING, None)


def test_expiry_reads_the_due_device_only(tmp_path: Path, host: CountingHost, clock: Clock) -> None:
    """It is due at its time, and does not wait for a full scan."""
    store = DeviceStore(
        host, directory="/dev", layout=Single(PREFIX), verify=Verify.FILE, missing_device_ttl=300, clock=clock
    )
    for number in range(1000):
        (tmp_path / f"dev/{PREFIX}{number}").touch()
    store.scan()
    assert store.seconds_until_scan() is None
    for number in (7, 8):
        (tmp_path / f"dev/{PREFIX}{number}").unlink()
        store.scan({str(tmp_path / f"dev/{PREFIX}{number}")})
        clock.now += 100
    assert store.seconds_until_scan() == 100
    clock.now += 100
    host.calls.clear()
    assert store.scan(frozenset()) == {f"{PREFIX}7"}
    assert (host.calls, len(store.names)) == ([f"/dev/{PREFIX}7"], 999)
    assert store.seconds_until_scan() == 100
    clock.now += 100
    store.scan(frozenset())
    assert (store.seconds_until_scan(), len(store.names)) == (None, 998)


def test_dangling_link_is_due_again_and_again_at_a_limited_rate(tmp_path: Path, host: CountingHost) -> None:
    """Its time starts again each time."""
    store = DeviceStore(host, directory="/dev", layout=Single(PREFIX), verify=Verify.FILE, missing_device_ttl=0)
    (tmp_path / f"dev/{PREFIX}1").symlink_to("/none")
    for _ in range(3):
        store.scan(frozenset())
        assert 0 < (store.seconds_until_scan() or 0) <= SHORTEST_PAUSE
    assert store.tracked[f"{PREFIX}1"].reason is Reason.MISSING


def test_reset_during_a_scan_applies_to_the_next_one(tmp_path: Path) -> None:
    """What the scan has read may be older than the request."""

    class ResettingHost(Host):
        def listdir(self, directory: str) -> list[str]:
            names = super().listdir(directory)
            if reset:
                reset.pop()
                store.reset()
            return names

    reset: list[bool] = []
    (tmp_path / "dev").mkdir()
    (tmp_path / f"dev/{PREFIX}1").touch()
    store = DeviceStore(
        ResettingHost(str(tmp_path)), directory="/dev", layout=Single(PREFIX), verify=Verify.FILE, missing_device_ttl=9
    )
    store.scan()
    (tmp_path / f"dev/{PREFIX}1").unlink()
    reset.append(True)
    store.scan()
    assert store.tracked[f"{PREFIX}1"].reason is Reason.MISSING
    assert store.names == [f"{PREFIX}1"]
    store.scan(frozenset())
    assert store.names == []


@pytest.mark.parametrize("cause", ["first scan", "reset", "another directory", "driver"])
def test_other_causes_require_a_full_scan(
    tmp_path: Path, store: DeviceStore, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Another driver changes the kind of any file."""
    if cause != "first scan":
        store.scan()
        assert store.scan(frozenset()) == set()
    if cause == "reset":
        store.reset()
    if cause == "another directory":
        (tmp_path / "dev").rename(tmp_path / "other")
        (tmp_path / "dev").symlink_to("other")
    if cause == "driver":
        monkeypatch.setattr(Host, "driver", lambda _self: Driver(majors=frozenset({511})))
    (tmp_path / f"dev/{PREFIX}1").touch()
    assert store.scan(frozenset()) is None
    assert store.names == [f"{PREFIX}1"]


def test_mounted_binderfs_requires_no_full_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A phone's binderfs is mounted at each start of its container, and its mount point is a changed path."""
    store = DeviceStore(
        Host(), directory=str(tmp_path), layout=Single(PREFIX), verify=Verify.CHAR, missing_device_ttl=300
    )
    for number in (1, 2):
        (tmp_path / f"{PREFIX}{number}").symlink_to("/dev/null")
    store.scan()
    driver = Driver(frozenset({os.stat("/dev/null").st_dev}))
    monkeypatch.setattr(Host, "driver", lambda _self: driver)
    assert store.scan(frozenset()) == set()
    assert store.scan({str(tmp_path / f"{PREFIX}1")}) == {f"{PREFIX}1"}
    kinds = [store.tracked[f"{PREFIX}{number}"].device.kind for number in (1, 2)]
    assert kinds == [Kind.BINDERFS, Kind.STAND_IN]


@pytest.mark.parametrize("found_by", ["full scan", "incremental scan"])
def test_change_of_a_link_on_the_path_to_a_device_reads_the_device(
    tmp_path: Path, store: DeviceStore, found_by: str
) -> None:
    """So does a change of its target. The link may also be a directory on the path."""
    for directory in ("between", "old", "new"):
        (tmp_path / directory).mkdir()
    (tmp_path / "new/a").touch()
    links = {f"dev/{PREFIX}1": "/between/a", f"dev/{PREFIX}2": "/current/a", "between/a": "/old/a", "current": "old"}
    store.scan()
    for link, target in links.items():
        (tmp_path / link).symlink_to(target)
    store.scan({str(tmp_path / link) for link in links} if found_by == "incremental scan" else None)
    assert {str(tmp_path / "between"), str(tmp_path / "old"), str(tmp_path)} <= store.directories()
    for name, link, target in ((f"{PREFIX}1", "between/a", "/new/a"), (f"{PREFIX}2", "current", "new")):
        assert store.tracked[name].reason is Reason.MISSING
        (tmp_path / link).unlink()
        (tmp_path / link).symlink_to(target)
        assert store.scan({str(tmp_path / link)}) == {name}
        assert store.tracked[name].reason is None
    (tmp_path / "new/a").unlink()
    assert store.scan({str(tmp_path / "new/a")}) == {f"{PREFIX}1", f"{PREFIX}2"}
    assert store.tracked[f"{PREFIX}1"].reason is Reason.MISSING
