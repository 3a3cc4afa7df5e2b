"""Phones and found devices for ResourceClaims. A tmpfs, really mounted, stands in for the binderfs of a phone."""

import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.backend.found_devices import Allocated
from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError, DevicesExhaustedError
from aosp_plugin.binder.driver.host import Host, MountPoint, read_mounts
from aosp_plugin.binder.provision import phone_provisioner
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.config.keys import NumberedSets, Resource
from aosp_plugin.config.values import Api, Isolation, Recreate
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.errors import BackendError, InvalidRequestError, UnhealthyDeviceError
from tests.backends import Served, binder_backend, file_systems, phones_backend, started_phones
from tests.recreations import Recreations
from tests.support import DeviceDirectory
from tests.tmpfs_binderfs import Mounts


def started(directory: Mounts, count: int = 3, **keys: Any) -> Served:
    return started_phones(directory.path, count, **{"api": Api.DRA, **keys})


def parameters(source: Any = "claim", **content: Any) -> list[ClaimParameters]:
    return [ClaimParameters(source, {"apiVersion": "phone.aosp.io/v1alpha1", "kind": "PhoneParameters", **content})]


def test_a_phone_of_no_claim_is_removed_when_no_pod_has_it(directory: Mounts) -> None:
    """Its claim record is lost, or damaged when its claim has ended, so that nothing else tells."""
    started(directory).prepare(["phone1"], [])
    backend = started(directory)
    backend.prepare(["phone2"], [])

    def mounted(allocated: Allocated | None) -> set[str]:
        backend.tell(allocated=allocated)
        backend.scan_and_update()
        return set(directory.mounted())

    assert mounted(Allocated(frozenset(), -math.inf)) == {"phone1", "phone2"}, "the kubelet was asked before"
    assert backend.found.has_surplus
    assert mounted(Allocated(frozenset({"phone1"}), time.monotonic())) == {"phone1", "phone2"}
    assert mounted(None) == {"phone1", "phone2"}
    assert mounted(Allocated(frozenset(), time.monotonic())) == {"phone2"}
    backend.scan()
    assert not backend.found.has_surplus


def test_a_phone_that_another_process_has_mounted_since_the_kubelet_was_asked_stays(directory: Mounts) -> None:
    """Of two processes of a driver, one prepares claims, and the other one knows their records late."""
    serving, other = started(directory), started(directory)
    serving.prepare(["phone1"], [])
    other.scan_and_update()
    serving.unprepare(["phone1"])
    asked = time.monotonic()
    serving.prepare(["phone1"], [])
    other.tell(allocated=Allocated(frozenset(), asked))
    other.scan_and_update()
    assert {*directory.mounted()} == {"phone1"}


def test_a_phone_that_another_process_mounts_during_its_removal_stays(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, other = started(directory), started(directory)
    serving.prepare(["phone1"], [])
    other.scan_and_update()
    other.tell(allocated=Allocated(frozenset(), time.monotonic()))
    look = PhoneProvisioner.is_mounted

    def look_and_lose(provisioner: PhoneProvisioner, phone: str) -> bool:
        monkeypatch.setattr(PhoneProvisioner, "is_mounted", look)
        found = look(provisioner, phone)
        serving.unprepare([phone])
        serving.prepare([phone], [])
        return found

    monkeypatch.setattr(PhoneProvisioner, "is_mounted", look_and_lose)
    other.scan_and_update()
    assert {*directory.mounted()} == {"phone1"}


def test_the_mount_table_is_read_once_however_many_phones_are_released(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that changes to claims has hundreds of them, and claims wait meanwhile."""
    before = started(directory, count=20)
    for number in range(20):
        before.prepare([f"phone{number}"], [])
    backend = started(directory, count=20)
    backend.scan()
    reads = 0

    def count_reads() -> tuple[MountPoint, ...]:
        nonlocal reads
        reads += 1
        return read_mounts()

    monkeypatch.setattr(phone_provisioner, "read_mounts", count_reads)
    backend.tell(allocated=Allocated(frozenset(), time.monotonic()))
    backend.update_host()
    assert (directory.mounted(), reads) == ({}, 1)


def test_a_phone_that_the_device_plugin_has_replaced_is_not_released(directory: Mounts) -> None:
    """Its claim had ended when the kubelet unprepared it."""
    backend = started(directory)
    backend.prepare(["phone1"], [])
    plugin = phones_backend(directory.path)
    plugin.tell(held={}, asked=math.inf)
    plugin.scan_and_update()
    backend.unprepare(["phone1"])
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}


def test_prepared_phone_is_as_it_was_until_its_mount_is_lost(directory: Mounts) -> None:
    backend = started(directory)
    assert not backend.is_prepared(["phone0"])
    backend.prepare(["phone0"], [])
    backend.scan_and_update()
    assert backend.is_prepared(["phone0"])
    directory.unmount("phone0")
    assert not backend.is_prepared(["phone0"])
    backend.scan_and_update()  # mounts it again, and the claim's CDI spec has to be written again
    assert not backend.is_prepared(["phone0"])
    backend.prepare(["phone0"], [])
    assert backend.is_prepared(["phone0"])
    backend.unprepare(["phone0"])
    assert not backend.is_prepared(["phone0"])


def test_mounts_of_a_killed_process_are_known(directory: Mounts) -> None:
    """The count was lowered meanwhile: claims keep the phones beyond it, which are not offered."""
    killed = started(directory, 5)
    edits = {phone: killed.prepare([phone], []) for phone in ("phone0", "phone1", "phone3", "phone4")}
    backend = started(directory, 3)
    assert directory.mounted() == dict.fromkeys(edits, 1)
    for phone in ("phone1", "phone4"):
        assert backend.prepare([phone], []) == edits[phone]
    assert backend.scan() == {**dict.fromkeys(["phone0", "phone1", "phone2"], ""), "phone4": "surplus"}
    backend.unprepare(["phone0", "phone3", "phone4"])
    assert os.listdir(directory.path) == ["phone1"]
    assert backend.scan() == dict.fromkeys(["phone0", "phone1", "phone2"], "")


def test_phone_that_cannot_be_mounted_is_not_prepared(directory: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are unhealthy while the kernel has no binderfs. A request has one phone, as two would have the same paths."""

    def refuse(*_arguments: object) -> None:
        raise BinderfsError("this kernel has no binderfs")

    with monkeypatch.context() as patch:
        patch.setattr(binderfs, "check_mountable", refuse)
        backend = started(directory, 2)
        assert backend.scan() == {"phone0": "binderfs-unavailable", "phone1": "binderfs-unavailable"}
        assert backend.found.devices[0].detail == "binderfs-unavailable: this kernel has no binderfs"
        with pytest.raises(BackendError, match="this kernel has no binderfs"):
            backend.update_host()
        with pytest.raises(UnhealthyDeviceError, match="this kernel has no binderfs"):
            backend.prepare(["phone0"])
    assert set(backend.scan().values()) == {""}
    backend.update_host()
    with monkeypatch.context() as patch:
        patch.setattr(binderfs, "attach", refuse)
        with pytest.raises(UnhealthyDeviceError, match="'phone0' could not be mounted: this kernel"):
            backend.prepare(["phone0"])
    with pytest.raises(InvalidRequestError, match=r"^a container can have one phone, not 2 \(phone0, phone1\)"):
        backend.prepare(["phone0", "phone1"])
    assert os.listdir(directory.path) == []  # nothing is left of them
    backend.prepare(["phone0"])
    monkeypatch.setattr(binderfs, "check_mountable", refuse)
    backend.settle()
    assert backend.scan() == {"phone0": "", "phone1": "binderfs-unavailable"}, "a claim keeps its phone"


def test_shared_and_spread_devices_come_with_the_phone(directory: Mounts) -> None:
    backend = started(directory, shared_devices=("/dev/null:/dev/x",), spread_devices=("/dev/[fz]*[lo]",))
    (edits,) = backend.prepare(["phone1"], [])
    assert [node.container_path for node in edits.devices][3:] == ["/dev/zero", "/dev/x"]
    assert backend.attributes("phone1")["spreadDevice"] == "zero"
    assert backend.attributes("phone2")["spreadDevice"] == "full"


def test_parameters_change_what_the_container_gets(directory: Mounts) -> None:
    backend = started(directory, isolation=Isolation.STRICT)
    given = parameters("class", allowedDevices=["/dev/*"], environment={"A": "1", "B": "1"}, containerPaths=["/dev/x"])
    given += parameters(environment={"B": "2"}, devices=["/dev/fuse"] if os.path.exists("/dev/fuse") else [])
    (edits,) = backend.prepare(["phone0"], given)
    phone = f"{directory.path}/phone0"
    assert [mount.container_path for mount in edits.mounts if not mount.container_path.startswith(phone)] == ["/dev/x"]
    assert {**edits.environment, "A": "1", "B": "2"} == edits.environment
    assert os.path.exists("/dev/fuse") == ("/dev/fuse" in [node.container_path for node in edits.devices])


def test_devices_of_parameters_must_be_devices_of_the_node(directory: Mounts) -> None:
    backend = started(directory)
    backend.prepare(["phone1"], [])
    binder = f"{directory.path}/phone1/binder"
    allowed = "is not allowed; allowed: character and block devices that are not binder devices"
    for path in (str(directory.path), binder):
        with pytest.raises(InvalidRequestError, match=f"^parameters of the DeviceClass: devices: {path} {allowed}"):
            backend.prepare(["phone0"], parameters("class", devices=[path]))
    with pytest.raises(
        UnhealthyDeviceError, match=r"^parameters of the DeviceClass: devices: /dev/none: .*No such file"
    ):
        backend.prepare(["phone0"], parameters("class", devices=["/dev/none"]))
    assert directory.mounted() == {"phone1": 1}


# -- a node that moves between the two APIs: pods keep their devices, and no other pod gets them


UNANSWERED = "the kubelet has not answered yet which pods have it"
HELD = {"phone1": HealthProblem(Reason.IN_USE_BY_OTHER_API, "in-use-by-other-api")}


def test_claims_get_no_phone_that_a_pod_has_through_the_device_plugin(directory: Mounts) -> None:
    started(directory, api=Api.DEVICE_PLUGIN)
    before = file_systems(directory.path)
    backend = started(directory)
    held = {f"phone{number}": "in-use-by-other-api" for number in range(3)}
    assert backend.scan() == held, "the kubelet has not said which are free"
    backend.unprepare(["phone0"])
    backend.update_host()
    with pytest.raises(UnhealthyDeviceError, match=f"in-use-by-other-api: {UNANSWERED}"):
        backend.prepare(["phone0"], [])
    assert file_systems(directory.path) == before
    backend.tell(held=HELD, asked=math.inf)
    assert backend.scan() == {"phone0": "", "phone1": "in-use-by-other-api", "phone2": ""}
    backend.tell(held=HELD, asked=math.inf, allocated=Allocated(frozenset({"phone2"}), time.monotonic()))
    backend.update_host()
    assert file_systems(directory.path) == {phone: before[phone] for phone in ("phone1", "phone2")}
    with pytest.raises(UnhealthyDeviceError, match="'phone1' is unhealthy: in-use-by-other-api"):
        backend.prepare(["phone1"], [])
    backend.tell(held={}, asked=math.inf)
    assert set(backend.scan().values()) == {""}
    backend.unprepare(["phone1", "phone2"])
    assert directory.mounted() == {}


@pytest.mark.parametrize("is_new", [True, False])
def test_a_free_phone_of_the_device_plugin_is_replaced_for_a_claim_that_is_new(
    directory: Mounts, *, is_new: bool
) -> None:
    """Not for one that is restored: its container may have started with what the device plugin has mounted."""
    started(directory, api=Api.DEVICE_PLUGIN)
    before = file_systems(directory.path)
    backend = started(directory)
    backend.tell(held={}, asked=math.inf)
    if is_new:
        backend.unprepare(["phone0"])
    backend.prepare(["phone0"], [])
    after = file_systems(directory.path)
    assert {phone for phone in before if after[phone] != before[phone]} == ({"phone0"} if is_new else set())
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}


@pytest.mark.parametrize("recreate", list(Recreate))
def test_pods_get_no_phone_that_a_claim_has(recreate: Recreate, directory: Mounts) -> None:
    claims = started(directory)
    for phone in ("phone0", "phone1"):
        claims.prepare([phone], [])
    before = file_systems(directory.path)
    backend = started(directory, api=Api.DEVICE_PLUGIN, recreate=recreate)
    assert backend.scan() == {"phone0": "in-use-by-other-api", "phone1": "in-use-by-other-api", "phone2": ""}
    assert backend.found.devices[0].detail == f"in-use-by-other-api: {UNANSWERED}"
    backend.tell(held=HELD, asked=math.inf)
    backend.scan_and_update()
    after = file_systems(directory.path)
    assert (after["phone1"], after["phone0"] == before["phone0"]) == (before["phone1"], False)
    assert backend.scan() == {"phone0": "", "phone1": "in-use-by-other-api", "phone2": ""}
    with pytest.raises(UnhealthyDeviceError, match="in-use-by-other-api"):
        backend.allocate(["phone1"])
    backend.tell(held={}, asked=math.inf)
    backend.scan_and_update()
    assert set(backend.scan().values()) == {""}
    assert file_systems(directory.path)["phone1"] != before["phone1"]


def test_a_phone_that_a_claim_has_got_since_the_kubelet_was_asked_is_held(directory: Mounts) -> None:
    """By the other process of an update. The next answer tells that the claim has it, or that it is free."""
    backend = started(directory, api=Api.DEVICE_PLUGIN)
    backend.tell(held={}, asked=time.monotonic())
    claims = started(directory)
    claims.tell(held={}, asked=math.inf)
    claims.unprepare(["phone0"])
    claims.prepare(["phone0"], [])
    before = file_systems(directory.path)
    for _ in range(2):
        backend.settle()
        assert file_systems(directory.path) == before
        assert backend.scan() == {"phone0": "in-use-by-other-api", "phone1": "", "phone2": ""}
    backend.tell(held={}, asked=time.monotonic())
    backend.scan_and_update()
    assert file_systems(directory.path)["phone0"] != before["phone0"]


def test_a_phone_that_another_claim_has_got_since_the_kubelet_was_asked_is_held(directory: Mounts) -> None:
    """The kernel gives its mount the st_dev of the one before, unless another process mounts something meanwhile."""
    claims = started(directory)
    claims.tell(held={}, asked=math.inf)
    claims.prepare(["phone0"], [])
    while True:
        backend = started(directory, api=Api.DEVICE_PLUGIN)
        former = os.stat(directory.path / "phone0").st_dev
        claims.unprepare(["phone0"])
        asked = time.monotonic()
        claims.prepare(["phone0"], [])
        if os.stat(directory.path / "phone0").st_dev == former:
            break
    before = file_systems(directory.path)
    backend.tell(held={}, asked=asked)
    for _ in range(2):
        backend.scan_and_update()
    assert file_systems(directory.path)["phone0"] == before["phone0"]
    assert backend.scan()["phone0"] == "in-use-by-other-api"


# -- found devices, which are plain files, so that their recreation is faked


def backend_of(devices: DeviceDirectory, **keys: Any) -> Served:
    """Return a backend after its first scan."""
    backend = binder_backend(devices.directory, cdi_dir="/none", api=Api.DRA, **keys)
    backend.scan()
    return backend


@pytest.fixture
def devices(device_directory: DeviceDirectory) -> DeviceDirectory:
    device_directory.add(*range(6))
    return device_directory


def test_each_device_of_a_request_brings_its_own_part(devices: DeviceDirectory) -> None:
    backend = backend_of(devices, container_paths=("/dev/x", "/dev/y"))
    second, first = backend.prepare(["aosp_binder3", "aosp_binder2"], [])
    assert [node.container_path for node in first.devices] == ["/dev/aosp_binder2"]
    assert [node.container_path for node in second.devices] == ["/dev/aosp_binder3"]
    assert [mount.container_path for mount in (*first.mounts, *second.mounts)] == ["/dev/x", "/dev/y"]
    assert first.environment["BINDER_VISIBLE_DEVICES"] == "aosp_binder2,aosp_binder3"
    assert not second.environment
    (edits,) = backend.prepare(["aosp_binder3"], parameters(containerPaths=["/dev/a"]))
    assert [mount.container_path for mount in edits.mounts] == ["/dev/a"]


def test_paths_of_the_host_have_no_links(devices: DeviceDirectory, tmp_path: Path) -> None:
    """A runtime does not follow the links in a CDI spec."""
    target = tmp_path / "elsewhere"
    target.touch()
    (devices.directory / "aosp_binder7").symlink_to(target)
    backend = backend_of(devices)
    (edits,) = backend.prepare(["aosp_binder7"], [])
    assert [(node.host_path, node.container_path) for node in edits.devices] == [(str(target), "/dev/aosp_binder7")]


def test_devices_are_recreated_when_the_claim_is_over(devices: DeviceDirectory, recreations: Recreations) -> None:
    """One that cannot be is not prepared until it is; its pod ends nevertheless."""
    backend = backend_of(devices, recreate=Recreate.ON_START)
    assert not backend.backend.pre_start_required
    backend.prepare(["aosp_binder1", "aosp_binder2"], [])
    backend.prepare(["aosp_binder1", "aosp_binder2"], [])
    assert recreations.recreated == []
    backend.unprepare(["aosp_binder1", "aosp_binder2", "unknown"])
    assert recreations.recreated == ["aosp_binder1", "aosp_binder2"]
    backend.prepare(["aosp_binder1"], [])
    backend.scan()
    assert backend.is_prepared(["aosp_binder1"]), "although its inode is not that of the scan before"
    backend.prepare(["aosp_binder3"], [])
    recreations.failure = DevicesExhaustedError("max= is reached")
    backend.unprepare(["aosp_binder3"])
    assert backend.scan()["aosp_binder3"] == "not-recreated"
    with pytest.raises(UnhealthyDeviceError, match="not-recreated"):
        backend.prepare(["aosp_binder3"], [])
    recreations.failure = None
    backend.update_host()
    assert recreations.recreated == ["aosp_binder1", "aosp_binder2", "aosp_binder3"]
    assert backend.scan()["aosp_binder3"] == ""
    backend.prepare(["aosp_binder3"], [])


@pytest.mark.parametrize("device_id", ["phone7", "binder", "aosp_binder1a"])
def test_id_of_a_former_layout_has_no_place(devices: DeviceDirectory, device_id: str) -> None:
    """A record of a claim may have it: the driver serves its other claims."""
    resource = Resource(device_dir=str(devices.directory), api=Api.DRA, sets=NumberedSets(size=2))
    backend = ClaimsBackend(Host(), resource, cdi_dir="/none")
    assert backend.places(device_id) == []


def test_attributes_of_a_found_device(devices: DeviceDirectory) -> None:
    attributes = backend_of(devices, sets=NumberedSets(size=2)).attributes("aosp_binder4")
    assert attributes == {"number": 4, "binderDevices": 2}
