"""What was not read, or not asked after it was read, counts as in use: device records and answers of the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aosp_plugin.backend.found_devices import ScanInput
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import NumberedSets, Phones, Resource
from aosp_plugin.config.values import Api
from aosp_plugin.daemon import allocations
from aosp_plugin.daemon.allocations import AllocationWatch, yield_to_device_plugins
from aosp_plugin.daemon.assembly import create_backend
from aosp_plugin.daemon.device_records import DIRECTORY, DeviceRecord, DeviceRecords
from aosp_plugin.framework import DevicePlugin, ListedDevices, atomic_file
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra import claim_records
from aosp_plugin.framework.dra.claim_records import ClaimRecord, Content, Others, RequestRecord
from aosp_plugin.framework.dra.slices import driver_name
from aosp_plugin.framework.podresources_client import Allocatable, Allocations, Owner, PodResources
from aosp_plugin.framework.timing import background_task
from kubelet_standin import Kubelet
from kubelet_standin import PodResources as PodResourcesServer
from kubelet_standin.apiserver import ApiServer
from tests.backends import Served
from tests.claims import DirectoryBackend
from tests.dra_node import DraNode
from tests.support import PATIENCE, listed, names, run, unready, until

OLD, NEW = "aosp.io/binder", "example.com/binder"
TENANT = {OLD: {"aosp_binder0"}}


class Pods:
    """A podresources API with the pods of a test."""

    def __init__(self) -> None:
        self.enabled = True
        self.problem = ""
        self.are_known = True
        """False as long as the kubelet may not know its pods."""
        self.devices: Mapping[str, Collection[str]] = {}
        """The devices of pods by resource, by the device plugin API."""
        self.claimed: Mapping[str, Collection[str]] = {}
        """The devices of pods by resource, by claims."""

    async def query(self, others: Mapping[str, Collection[str]]) -> Allocations:
        """Return which pods have which devices."""
        if self.problem:
            return Allocations(self.problem)
        names, pod = (OLD, NEW, *others), (Owner("games", "tenant", "android"),)
        by_plugin = {name: frozenset(self.devices.get(name, ())) for name in names}
        by_claim = {name: frozenset(self.claimed.get(name, ())) for name in names}
        owners = {name: dict.fromkeys(by_plugin[name] | by_claim[name], pod) for name in names}
        return Allocations(owners=owners, pods_known=self.are_known, by_plugin=by_plugin, by_claim=by_claim)


class Release:
    """A plugin of a resource whose devices are all files of the node."""

    def __init__(self, node: Node, name: str, main: str = "", **keys: Any) -> None:
        resource = Resource(**{"resource_name": name, "device_dir": str(node.devices), "verify": Verify.FILE, **keys})
        self.backend = Served(create_backend(Host(), resource, cdi_dir=str(node.directory / "cdi")))
        pods, records = cast("PodResources", node.pods), DeviceRecords(str(node.directory), "/run/cdi", main)
        self.rescans: list[str] = []
        """The resources of which a scan was requested."""
        self.stands_in_for: Collection[str] = ()
        """The former resources that it serves."""
        self.specs_removed: list[set[str]] = []
        """The resources whose stale CDI specs it has removed at each question."""
        self.can_remove_specs = True
        self.watch = AllocationWatch(
            {name: self.backend.backend},
            lambda _: self.backend.found,
            pods,
            records,
            self.rescans.append,
            lambda: node.claims,
            self._serve_former,
            self._remove_specs,
            Conditions(),
        )

    @property
    def told(self) -> ScanInput:
        """What the backend was told."""
        return self.backend.backend.input

    def offered(self) -> set[str]:
        """Return the devices that new pods get."""
        return {device_id for device_id, reason in self.backend.scan().items() if not reason}

    async def _serve_former(self, resources: Collection[str], _claims: Others) -> None:
        self.stands_in_for = resources

    async def _remove_specs(self, records: Sequence[DeviceRecord]) -> bool:
        self.specs_removed.append({record.resource for record in records})
        return self.can_remove_specs


class Node:
    """A node with devices, pods and releases."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.devices = directory / "dev"
        self.devices.mkdir()
        self.pods = Pods()
        self.claims = Others((), ())
        """The records of claims."""
        self._watches: list[AllocationWatch] = []

    def add(self, *numbers: int) -> None:
        """Create devices."""
        for number in numbers:
            (self.devices / f"aosp_binder{number}").touch()

    async def begin(self, name: str, main: str = "", **keys: Any) -> Release:
        """Start a release; ``main`` is the first resource of its configuration, if that is another one."""
        release = Release(self, name, main or name, **keys)
        self._watches.append(release.watch)
        await release.watch.begin()
        release.backend.scan()
        await release.watch.begin()
        return release

    async def end(self, release: Release, name: str) -> None:
        """End a release, and wait until others can see that."""
        release.watch.close()
        self._watches.remove(release.watch)
        others = DeviceRecords(str(self.directory), "", "")
        await until(lambda: not any(served for record, served in others.others() if record.resource == name))

    def close(self) -> None:
        """End all releases."""
        for watch in self._watches:
            watch.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with contextlib.closing(Node(tmp_path)) as node:
        node.add(0, 1)
        yield node


def claimed(node: Node, driver: str, device_id: str, *files: str) -> Content:
    """Return the record of a claim that has these files of the node, as one device."""
    request = RequestRecord("phone", (claim_records.DeviceRecord(device_id, "pool", device_id),))
    claim = ClaimRecord(driver, "uid-1", "games", "tenant", (request,))
    return Content("boot", "/var/run/cdi", tuple(str(node.devices / file) for file in files), claim)


@pytest.mark.parametrize(
    ("former", "name", "present", "unknown", "known"),
    [
        pytest.param({}, NEW, {}, set(), {1, 2, 3}, id="renamed"),
        pytest.param({}, OLD, {"api": Api.DRA}, set(), {1, 2, 3}, id="the other API"),
        pytest.param({"sets": NumberedSets(size=2)}, OLD, {}, {0, 2}, {0, 2, 3}, id="an ID that meant two files"),
    ],
)
async def test_what_a_former_release_may_have_given_is_held_until_the_kubelet_answers(
    node: Node, former: dict[str, Any], name: str, present: dict[str, Any], unknown: set[int], known: set[int]
) -> None:
    """Also after another restart, and a device whose file was missing at the start. Free ones are offered at once."""
    node.add(2, 3)
    old = await node.begin(OLD, **former)
    node.pods.devices = TENANT
    await old.watch.ask()
    await node.end(old, OLD)
    node.pods.problem = "the kubelet does not answer"
    for _ in range(2):
        (node.devices / "aosp_binder3").unlink()
        release = await node.begin(name, **present)
        assert not await release.watch.ask()
        node.add(3)
        assert release.offered() == {*names(unknown)}
        await node.end(release, name)
    release = await node.begin(name, **present)
    for node.pods.problem, node.pods.devices, expected in (("", TENANT, known), ("", {}, range(4))):
        assert await release.watch.ask()
        assert release.offered() == {*names(expected)}
    await node.end(release, name)
    # A kubelet that lists no pod is not believed: on a node without other pods, no answer would free them.
    for node.pods.problem, node.pods.are_known in (("no answer", True), ("", False)) if name == OLD else ():
        release = await node.begin(name, **present)
        await release.watch.ask()
        assert release.offered() == {*names(range(4))}
        await node.end(release, name)


@pytest.mark.parametrize("problem", ["", "no answer"])
async def test_release_that_ends_leaves_what_it_gave_since_the_last_answer(node: Node, problem: str) -> None:
    old = await node.begin(OLD)
    new = await node.begin(NEW)
    assert await new.watch.ask()
    node.pods.devices = TENANT
    await node.end(old, OLD)
    node.pods.problem = problem
    for _ in range(2):
        assert await new.watch.ask() is not bool(problem)
        assert "aosp_binder0" not in new.offered()
    node.pods.problem = ""
    assert await new.watch.ask()
    assert new.offered() == {"aosp_binder1"}


async def test_no_device_is_offered_while_the_records_cannot_be_read(node: Node) -> None:
    await node.end(await node.begin(OLD), OLD)
    node.pods.devices = TENANT
    directory = node.directory / DIRECTORY
    directory.rename(node.directory / "moved")
    directory.touch()  # no directory, which is read even by root
    new = await node.begin(NEW)
    assert new.offered() == set()
    await new.watch.ask()
    assert new.offered() == set()
    directory.unlink()
    (node.directory / "moved").rename(directory)
    await new.watch.ask()
    assert new.offered() == {"aosp_binder1"}


async def test_all_devices_are_held_while_a_pod_has_one_that_no_record_of_its_former_resource_has(node: Node) -> None:
    old = await node.begin(OLD)
    node.pods.devices = {OLD: {"aosp_binder7"}}
    new = await node.begin(NEW)
    assert await new.watch.ask()
    assert new.offered() == set()
    assert {device.reason for device in new.backend.found.devices} == {"offered-by-other-resource"}
    await node.end(old, OLD)
    assert await new.watch.ask()
    assert new.offered() == set()
    why = {device.detail for device in new.backend.found.devices}
    text = "pod games/tenant has aosp_binder7 of aosp.io/binder, and no record says which file that is"
    assert why == {f"in-use-by-other-resource: {text}"}
    node.pods.devices = {}
    assert await new.watch.ask()
    assert new.offered() == {"aosp_binder0", "aosp_binder1"}


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("before", ["unknown", "missing"])
async def test_a_device_that_a_pod_has_by_another_name_is_held_from_the_scan_that_finds_it(
    node: Node, api: Api, before: str
) -> None:
    """Its file was missing when the devices were compared with the records. The kubelet may allocate what is found."""
    await node.end(await node.begin(OLD), OLD)
    node.pods.devices = TENANT
    file = node.devices / "aosp_binder0"
    if before == "unknown":
        file.unlink()
    new = await node.begin(NEW, api=api)
    file.unlink(missing_ok=True)
    new.backend.scan()
    assert await new.watch.ask()
    node.add(0)
    assert new.offered() == {"aosp_binder1"}
    node.pods.devices = {}
    assert await new.watch.ask()
    assert new.offered() == {"aosp_binder0", "aosp_binder1"}


@pytest.mark.parametrize("problem", ["", "no answer"])
async def test_a_driver_prepares_a_device_that_its_former_claim_has_recreated(node: Node, problem: str) -> None:
    """The driver has read that the claim has ended. What the daemon read before says nothing of the new file."""
    node.claims = Others([claimed(node, "former.example.com", "aosp_binder0", "aosp_binder0")], ())
    release = await node.begin(OLD, api=Api.DRA)
    assert await release.watch.ask()
    (node.devices / "new").touch()
    (node.devices / "new").rename(node.devices / "aosp_binder0")
    node.claims, node.pods.problem = Others((), ()), problem
    release.backend.scan()
    release.backend.prepare(["aosp_binder0"])


@pytest.mark.parametrize("problem", ["", "no answer"])
async def test_a_pod_keeps_a_device_that_had_another_name_for_a_moment(
    node: Node, tmp_path: Path, problem: str
) -> None:
    (tmp_path / "file").touch()
    names = [node.devices / f"aosp_binder{number}" for number in (2, 3)]
    names[0].symlink_to(tmp_path / "file")
    release = await node.begin(OLD)
    node.pods.devices = {OLD: {"aosp_binder2"}}
    assert await release.watch.ask()
    names[0].rename(names[1])
    release.backend.scan()
    assert await release.watch.ask()
    assert release.offered() == {"aosp_binder0", "aosp_binder1"}
    names[1].rename(names[0])
    node.pods.problem = problem
    assert "aosp_binder2" in release.offered()


async def test_the_first_scan_of_a_phone_without_a_binderfs_finds_that_a_pod_has_it(node: Node, tmp_path: Path) -> None:
    phones = Phones(count=2, directory=str(tmp_path / "phones"))
    await node.end(await node.begin(OLD, api=Api.DRA, phones=phones), OLD)
    node.pods.devices = {OLD: {"phone0"}}
    release = Release(node, NEW, NEW, api=Api.DRA, phones=phones)
    with contextlib.closing(release.watch):
        await release.watch.begin()
        assert await release.watch.ask()
        release.backend.scan()
        assert {*release.backend.found.state.held} == {"phone0"}


@pytest.mark.parametrize(
    ("api", "driver", "device_id", "files", "held"),
    [
        pytest.param(Api.DEVICE_PLUGIN, driver_name(OLD), "phone0", (0, 2), {0, 2}, id="the other API"),
        pytest.param(Api.DRA, "former.example.com", "aosp_binder0", (0,), {0}, id="another driver"),
        pytest.param(Api.DRA, driver_name(OLD), "aosp_binder0", (0,), set(), id="its driver"),
        pytest.param(Api.DRA, driver_name(OLD), "aosp_binder0", (0, 1), {1}, id="its driver, as a set of two"),
    ],
)
async def test_device_of_a_claim_is_held_without_an_answer_of_the_kubelet_until_the_record_is_gone(
    node: Node, api: Api, driver: str, device_id: str, files: tuple[int, ...], held: set[int]
) -> None:
    """From the scan that finds it. A further pod of a claim of the same driver and device may start."""
    node.claims = Others([claimed(node, driver, device_id, *names(files))], ())
    node.pods.problem = "no answer"
    release = await node.begin(OLD, api=api)
    node.add(2)
    assert release.offered() == {*names({0, 1, 2} - held)}
    found = {device.detail for device in release.backend.found.devices if not device.healthy}
    reason = "in-use-by-other-resource" if api is Api.DRA else "in-use-by-other-api"
    assert found == ({f"{reason}: claim games/tenant (UID uid-1) of {driver} has it"} if held else set())
    if api is Api.DRA:
        release.backend.prepare(["aosp_binder0"])  # the caller has read the records: another claim has ended
    node.claims = Others((), ())
    node.pods.problem = ""
    assert await release.watch.ask()
    assert release.offered() == {*names(range(3))}


@pytest.mark.parametrize("damaged", [(), ("/plugins/phone.example.com/claim_a_b_c.json",)])
async def test_claims_count_as_users_of_their_devices(node: Node, damaged: Sequence[str]) -> None:
    node.claims = Others([claimed(node, driver_name(OLD), "phone0", "aosp_binder0")], damaged)
    release = await node.begin(OLD, api=Api.DRA)
    assert await release.watch.ask()
    allocated = release.told.allocated
    assert (None if allocated is None else allocated.ids) == (None if damaged else {"aosp_binder0"})


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which no record can be written. The error names another file each time."""
    numbers = itertools.count()

    def fill() -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system", f".record.{next(numbers)}.tmp")

        monkeypatch.setattr(atomic_file, "replace", fail)

    return fill


async def test_devices_whose_record_cannot_be_written_are_withheld(node: Node, full_disk: Callable[[], None]) -> None:
    """Nobody could tell later which file a pod has: the resource may be renamed before its record is written."""
    release = await node.begin(OLD)
    full_disk()
    for number in (2, 3):
        node.add(number)
        release.backend.scan()
        rescans = [*release.rescans]
        for _ in range(3):
            await release.watch.ask()
        assert release.rescans == [*rescans, OLD]
        assert release.offered() == {"aosp_binder0", "aosp_binder1"}
    assert release.backend.found.devices[2].detail == "not-recorded: Read-only file system"
    await node.end(release, OLD)
    assert (await node.begin(OLD)).offered() == {"aosp_binder0", "aosp_binder1"}, "the file has them"


async def test_devices_of_a_former_resource_stay_held_when_a_record_cannot_be_written(
    node: Node, full_disk: Callable[[], None]
) -> None:
    """The failure applies no older answer of the kubelet to the records that were read since."""
    old, new = await node.begin(OLD), await node.begin(NEW)
    assert await new.watch.ask()
    node.pods.devices = TENANT
    await node.end(old, OLD)
    node.pods.problem = "no answer"
    await new.watch.ask()
    full_disk()
    node.add(2)
    new.backend.scan()
    await new.watch.ask()
    assert new.offered() == set()


@pytest.mark.parametrize(("api", "held"), [(Api.DRA, "aosp_binder0"), (Api.DEVICE_PLUGIN, "aosp_binder1")])
async def test_devices_that_pods_have_through_the_other_api_are_held(node: Node, api: Api, held: str) -> None:
    """A kubelet that does not answer, or may not know its pods yet, frees no device. Replicas are one device."""
    release, started = await node.begin(OLD, api=api), time.monotonic()
    release.rescans.clear()
    used = {"aosp_binder0::1", "aosp_binder1"}
    for are_used, node.pods.problem, node.pods.are_known, expected, is_asked, allocated in (
        (False, "no answer", True, set(), False, None),
        (True, "", True, {held}, True, used),
        (False, "no answer", True, {held}, True, None),
        (True, "", False, {held}, True, None),
        (False, "", True, set(), True, set()),
    ):
        node.pods.devices = {OLD: {"aosp_binder0::1"}} if are_used else {}
        node.pods.claimed = {OLD: {"aosp_binder1"}} if are_used else {}
        assert await release.watch.ask() is (allocated is not None)
        assert ({*release.told.held}, release.told.asked >= started) == (expected, is_asked)
        known = release.told.allocated
        assert (None if known is None else known.ids) == allocated
        assert known is None or started <= known.asked <= time.monotonic()
    assert release.rescans == [OLD, OLD]


async def test_only_former_devices_are_held_where_the_kubelet_cannot_be_asked(node: Node) -> None:
    """The reason says what to do."""
    node.pods.enabled = False
    node.pods.problem = "disabled"
    old, started = await node.begin(OLD), time.monotonic()
    assert await old.watch.ask()
    assert (old.told.held, old.told.asked >= started) == ({}, True)
    await node.end(old, OLD)
    new = await node.begin(NEW)
    assert await new.watch.ask()
    assert new.offered() == set()
    assert "pod_resources_socket is empty: end its pods, then remove its record" in new.backend.found.devices[0].detail


async def test_device_that_pods_have_is_former_when_it_is_not_listed_any_more(node: Node) -> None:
    old = await node.begin(OLD)
    node.pods.devices = TENANT
    assert await old.watch.ask()
    await node.end(old, OLD)
    (node.devices / "aosp_binder0").unlink()
    release = await node.begin(OLD)
    assert await release.watch.ask()
    assert release.backend.backend.is_former("aosp_binder0")
    assert not release.backend.backend.is_former("aosp_binder9")


async def test_release_stands_in_for_a_renamed_resource_until_no_pod_has_its_devices(node: Node) -> None:
    """Then its CDI specs go. Not for one with other devices, or that another plugin serves, as in a rolling update."""
    others = node.directory / "others"
    others.mkdir()
    (others / "aosp_binder0").touch()
    await node.end(await node.begin(OLD, device_dir=str(others)), OLD)
    node.pods.devices = TENANT
    new = await node.begin(NEW)

    async def followed(devices: Mapping[str, Collection[str]]) -> Collection[str]:
        node.pods.devices = devices
        assert await new.watch.ask()
        await new.watch.follow_up()
        return new.stands_in_for

    assert await followed(TENANT) == set()
    old = await node.begin(OLD)
    assert await followed({}) == set()
    await node.end(old, OLD)
    assert await followed(TENANT) == {OLD}
    for new.can_remove_specs in (False, True, True):
        assert await followed({}) == set()
    assert new.specs_removed == [{NEW}, {NEW}, {NEW}, {OLD, NEW}, {OLD, NEW}, {NEW}]


async def test_only_specs_of_the_predecessor_go_where_the_kubelet_cannot_be_asked(node: Node) -> None:
    """The plugin of another release may be away for a moment. The records say which devices its pods may have."""
    await node.end(await node.begin(OLD, NEW), OLD)
    await node.end(await node.begin("example.com/other"), "example.com/other")
    node.pods.problem = "disabled"
    new = await node.begin(NEW)
    for node.pods.enabled in (True, False, False):
        assert await new.watch.ask() is not node.pods.enabled
        await new.watch.follow_up()
    assert new.specs_removed == [{NEW}, {OLD, NEW}, {OLD, NEW}]


async def test_a_device_that_a_pod_may_have_got_is_recorded_and_the_kubelet_is_asked_soon(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process may serve the other API, and the kubelet may not answer then.

    A kubelet that is asked too soon does not list the pod yet.
    """
    monkeypatch.setattr(allocations, "ALLOCATIONS_INTERVAL", 10 * PATIENCE)
    inventory = SimpleNamespace(snapshot=SimpleNamespace(revision=1), superseded=lambda _: asyncio.Event())
    server: Any = SimpleNamespace(inventory=inventory, pods_changed=asyncio.Event(), driver=None, resource_name=OLD)
    release, others = await node.begin(OLD), DeviceRecords(str(node.directory), "", "")
    async with background_task(release.watch.run([server])):
        await until(lambda: len(release.specs_removed) == 1)
        assert not any(each.record.by_plugin for each in others.others())
        monkeypatch.setattr(allocations, "ALLOCATED_PAUSE", 0.0)
        node.pods.problem = "the kubelet does not answer"
        server.pods_changed.set()
        await until(lambda: any(each.record.by_plugin for each in others.others()))
        await until(lambda: len(release.specs_removed) == 2)
        assert not server.pods_changed.is_set()
    node.pods.problem = ""
    for pause, is_used in ((10 * PATIENCE, True), (0.0, False)):
        monkeypatch.setattr(allocations, "ALLOCATED_PAUSE", pause)
        assert await release.watch.ask()
        assert any(each.record.by_plugin for each in others.others()) is is_used


# -- a driver, and a device plugin with the same resource on its node


PHONE = "aosp.io/phone"


async def test_a_driver_yields_to_a_device_plugin_until_that_has_ended(
    short_directory: Path, kubelet: Kubelet, pod_resources: PodResourcesServer, api_server: ApiServer
) -> None:
    devices = ListedDevices(PHONE, lambda: ["/dev/null"], directories=())
    node = DraNode(short_directory, api_server)
    client = PodResources(pod_resources.path, [PHONE])
    async with node.kubelet, node.running(DirectoryBackend(short_directory / "phones", count=3)) as driver:
        with contextlib.closing(client):
            async with background_task(yield_to_device_plugins([driver], client, interval=0.01)):
                async with run(DevicePlugin(devices, kubelet_dir=kubelet.directory)):
                    await listed(kubelet, 1, PHONE)
                    await api_server.wait_for(lambda _: node.slices and not node.devices)
                    assert "a device plugin offers 1 devices of aosp.io/phone on this node" in unready(driver)
                await api_server.wait_for(lambda _: len(node.devices) == 3)


async def test_devices_stay_published_while_the_kubelet_does_not_answer() -> None:
    class Unanswered:
        requests = 0

        async def allocatable(self) -> Allocatable:
            self.requests += 1
            return Allocatable("no answer")

    unanswered: Any = Unanswered()
    driver: Any = SimpleNamespace(resource_name=OLD, withhold=pytest.fail)
    async with background_task(yield_to_device_plugins([driver], unanswered, interval=0.0)):
        await until(lambda: unanswered.requests >= 2)
