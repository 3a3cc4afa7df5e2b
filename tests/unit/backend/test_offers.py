"""A device that several resources of one process find is healthy in one of them, whatever its names and paths are."""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.backend.offers import DeviceFiles, Offers
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind
from aosp_plugin.binder.devices.sets import DeviceSet
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import NamedSets, NumberedSets, Resource, SliceDevices
from aosp_plugin.config.values import Api
from aosp_plugin.framework.errors import UnhealthyDeviceError
from tests.backends import CDI_DIRECTORY, Served
from tests.support import Clock

FIRST, SECOND = "aosp.io/first", "aosp.io/second"
REASON = "offered-by-other-resource"


class Process:
    """Two resources of one process, with the files of a directory each."""

    def __init__(self, directory: Path, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
        self.directories = {FIRST: directory / "first", SECOND: directory / "second"}
        self.offers = Offers()
        self.clock = Clock()
        for each in self.directories.values():
            each.mkdir()
        self.resources = {FIRST: self._served(FIRST, first), SECOND: self._served(SECOND, second)}

    def _served(self, name: str, keys: Mapping[str, Any]) -> Served:
        defaults = {"resource_name": name, "device_dir": str(self.directories[name]), "verify": Verify.FILE}
        resource = Resource(**{**defaults, "device_prefix": "b", "shared_devices": (), **keys})
        kind = ClaimsBackend if resource.api is Api.DRA else BinderBackend
        return Served(kind(Host(), resource, cdi_dir=CDI_DIRECTORY, offers=self.offers, clock=self.clock))

    def healthy(self, *order: str) -> list[str]:
        """Scan, and return the healthy devices with their resources. The order of scans is that of ``order``."""
        scans = {name: self.resources[name].scan() for name in order or (FIRST, SECOND)}
        return [f"{name} {device}" for name, found in scans.items() for device, reason in found.items() if not reason]

    def files(self) -> dict[str, list[DeviceFiles]]:
        """Return the files of the devices that the last scans have found, by resource."""
        return {name: [*each.found.files.values()] for name, each in self.resources.items()}


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)])
@pytest.mark.parametrize("way", ["link", "hard link", "link to the directory"])
def test_the_resource_that_finds_a_device_first_offers_it(tmp_path: Path, way: str, order: tuple[str, str]) -> None:
    process = Process(tmp_path, {}, {})
    first, second = process.directories.values()
    if way == "link to the directory":
        second.rmdir()
        second.symlink_to(first)
    assert process.healthy(*order) == []
    (first / "b1").touch()
    if way == "link":
        (second / "b1").symlink_to(first / "b1")
    elif way == "hard link":
        os.link(first / "b1", second / "b1")
    for _ in range(2):
        assert process.healthy(*order) == [f"{order[0]} b1"]
    (withheld,) = process.resources[order[1]].found.devices
    assert (withheld.reason, withheld.detail) == (REASON, f"{REASON}: this plugin offers it as b1 of {order[0]}")
    assert process.resources[order[1]].due() == 1.0


def test_sets_that_share_a_file_are_offered_by_one_resource(tmp_path: Path) -> None:
    """Also if each resource has found a part of it first: an incomplete set takes nothing."""
    names = {"sets": NamedSets(names=("x", "y"), pattern="b{set}-{name}"), "device_dir": str(tmp_path / "second")}
    process = Process(tmp_path, names, {**names, "sets": NamedSets(names=("y", "x"), pattern="b{set}-{name}")})
    for file, healthy in (("b1-x", []), ("b1-y", [f"{FIRST} 1"])):
        (tmp_path / "second" / file).touch()
        assert process.healthy() == healthy


def test_slice_of_two_resources_is_offered_by_one(tmp_path: Path) -> None:
    slices = {}
    for name in ("x", "y"):
        os.symlink("/dev/zero", tmp_path / f"{name}0")
        slices[name] = {"slice_devices": (SliceDevices(path=f"{tmp_path}/{name}*", count=1),)}
    size = {"sets": NumberedSets(size=1)}
    process = Process(tmp_path, {**size, **slices["x"]}, {**size, **slices["y"]})
    for directory in process.directories.values():
        (directory / "b0").touch()
    assert process.healthy() == [f"{FIRST} b0"]


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)], ids=["device plugin first", "driver first"])
def test_device_of_both_apis_is_given_by_the_one_that_offers_it(tmp_path: Path, order: tuple[str, str]) -> None:
    process = Process(tmp_path, {}, {"api": Api.DRA, "device_dir": str(tmp_path / "first")})
    (tmp_path / "first" / "b1").touch()
    assert process.healthy(*order) == [f"{order[0]} b1"]
    give: Mapping[str, Callable[[list[str]], object]] = {
        FIRST: process.resources[FIRST].allocate,
        SECOND: process.resources[SECOND].prepare,
    }
    with pytest.raises(UnhealthyDeviceError, match=f"device 'b1' is unhealthy: {REASON}"):
        give[order[1]](["b1"])
    assert give[order[0]](["b1"])


@pytest.fixture
def linked(tmp_path: Path) -> Process:
    """Return a process whose first resource offers b1, which is a link to the file that the second one would find."""
    process = Process(tmp_path, {}, {})
    (tmp_path / "second" / "b1").touch()
    (tmp_path / "first" / "b1").symlink_to(tmp_path / "second" / "b1")
    assert process.healthy() == [f"{FIRST} b1"]
    return process


@pytest.mark.parametrize(
    ("used", "after"),
    [
        pytest.param({FIRST: set()}, [f"{SECOND} b1"], id="free"),
        pytest.param({FIRST: {"b1"}}, [], id="a pod has it"),
        pytest.param({FIRST: None}, [], id="unknown"),
    ],
)
def test_device_that_a_resource_has_lost_stays_its_own_until_no_pod_has_it(
    linked: Process, used: Mapping[str, Collection[str] | None], after: list[str]
) -> None:
    """A device that is still published is not lost: a pod may get it."""
    published = linked.files()
    (linked.directories[FIRST] / "b1").unlink()
    assert linked.healthy() == []
    assert not linked.offers.lost(published)
    linked.offers.release(linked.offers.lost(linked.files()), used)
    assert linked.healthy() == after


def test_answer_to_an_earlier_question_releases_no_device(linked: Process) -> None:
    link = linked.directories[FIRST] / "b1"
    link.unlink()
    linked.healthy()
    lost = linked.offers.lost(linked.files())
    assert lost
    link.symlink_to(linked.directories[SECOND] / "b1")
    linked.healthy()  # a pod may get it now
    link.unlink()
    linked.offers.release(lost, {FIRST: set()})
    assert linked.healthy() == []


def test_device_that_pods_had_before_the_process_started_is_kept_for_its_resource(tmp_path: Path) -> None:
    process = Process(tmp_path, {}, {})
    process.offers.keep(FIRST, {"b1": [str(tmp_path / "second" / "b1")]})
    (tmp_path / "second" / "b1").touch()
    assert process.healthy() == []
    process.offers.keep(SECOND, {"b1": [str(tmp_path / "second" / "b1")]})
    process.offers.release(process.offers.lost(process.files()), {FIRST: set(), SECOND: set()})
    assert process.healthy() == [f"{SECOND} b1"]


# -- what identifies a device on this host


def found_alone(kind: Kind, identity: FileIdentity, path: str, directory: str = "") -> FoundDevices:
    """Return a resource with one device."""
    device = BinderDevice("b1", "/dev/b1", kind, identity, directory, path)
    return FoundDevices(sets={"b1": DeviceSet("b1", ("b1",))}, binder_devices={"b1": device})


IN_BINDERFS = found_alone(Kind.BINDERFS, FileIdentity(70, 100, 5, 1), "/x/b1", "/x")
PLAIN = found_alone(Kind.CDEV, FileIdentity(5, 100, 7), "/dev/b1")


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        pytest.param(
            IN_BINDERFS,
            found_alone(Kind.BINDERFS, FileIdentity(70, 101, 6, 1), "/y/b1", "/y"),
            True,
            id="recreated device of a binderfs with two mounts",
        ),
        pytest.param(
            IN_BINDERFS,
            found_alone(Kind.BINDERFS, FileIdentity(70, 100, 5, 1), "/x/b2", "/x"),
            False,
            id="number of a device that was recreated since",
        ),
        pytest.param(
            IN_BINDERFS,
            found_alone(Kind.BINDERFS, FileIdentity(70, 100, 5, 2), "/y/b1", "/y"),
            False,
            id="later binderfs",
        ),
        pytest.param(PLAIN, found_alone(Kind.CDEV, FileIdentity(6, 100, 8), "/y/b1"), True, id="copy of a misc device"),
        pytest.param(PLAIN, found_alone(Kind.CDEV, FileIdentity(5, 101, 8), "/y/b1"), False, id="other misc device"),
        pytest.param(
            found_alone(Kind.STAND_IN, FileIdentity(5, 100, 7), "/dev/b1"),
            found_alone(Kind.STAND_IN, FileIdentity(5, 100, 8), "/y/b1"),
            False,
            id="other stand-in with the same number",
        ),
    ],
)
def test_offered_device_is_known_again(first: FoundDevices, second: FoundDevices, is_same: bool) -> None:  # noqa: FBT001
    offers = Offers()
    offers.take(FIRST, first.identified(), {"b1"})
    assert bool(offers.of_others(SECOND, second.identified())) is is_same
