"""Phones for ResourceClaims, mounted on demand; a tmpfs, really mounted, stands in for binderfs."""

import math
import os
from collections.abc import Sequence
from typing import Any

import pytest

from aosp_plugin.backend.found_devices import Allocated
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.host_errors import BinderfsError
from aosp_plugin.config.values import Api, Isolation
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.devices import ContainerEdits
from aosp_plugin.framework.errors import BackendError, InvalidRequestError, UnhealthyDeviceError
from tests.backends import Served, phones_backend
from tests.support import Clock
from tests.tmpfs_binderfs import Mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")

TRIPLE = ("binder", "hwbinder", "vndbinder")


def started(directory: Mounts, count: int = 3, clock: Clock | None = None, **keys: Any) -> Served:
    """Return a backend after its first host update and the scan that follows."""
    backend = phones_backend(directory.path, count, clock=clock or Clock(), **{"api": Api.DRA, **keys})
    backend.settle()
    return backend


def parameters(source: Any = "claim", **content: Any) -> list[ClaimParameters]:
    return [ClaimParameters(source, {"apiVersion": "phone.aosp.io/v1alpha1", "kind": "PhoneParameters", **content})]


def mounts_of(edits: ContainerEdits) -> dict[str, str]:
    assert all(mount.read_only for mount in edits.mounts)
    return {mount.container_path: mount.host_path for mount in edits.mounts}


def nodes_of(edits: Sequence[ContainerEdits]) -> list[list[str]]:
    return [[node.container_path for node in part.devices] for part in edits]


def test_a_phone_of_no_claim_is_removed_when_no_pod_has_it(directory: Mounts) -> None:
    """Its claim record is lost, or damaged when its claim has ended, so that nothing else tells."""
    started(directory).prepare(["phone1"], [])
    clock = Clock()
    backend = started(directory, clock=clock)
    backend.prepare(["phone2"], [])

    def mounted(allocated: Allocated | None) -> set[str]:
        backend.tell(allocated=allocated)
        backend.scan()
        backend.update_host()
        return set(directory.mounted())

    before = clock()
    clock.now += 1.0
    assert mounted(Allocated(frozenset(), before)) == {"phone1", "phone2"}, "the kubelet was asked before"
    assert backend.found.has_surplus
    clock.now += 1.0
    assert mounted(Allocated(frozenset({"phone1"}), clock())) == {"phone1", "phone2"}
    assert mounted(None) == {"phone1", "phone2"}
    assert mounted(Allocated(frozenset(), clock())) == {"phone2"}
    backend.scan()
    assert not backend.found.has_surplus


def test_a_phone_that_the_device_plugin_has_replaced_is_not_released(directory: Mounts) -> None:
    """Its claim had ended when the kubelet unprepared it."""
    backend = started(directory)
    backend.prepare(["phone1"], [])
    plugin = phones_backend(directory.path)
    plugin.tell(held={}, asked=math.inf)
    plugin.scan()
    plugin.update_host()
    backend.unprepare(["phone1"])
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}


def test_claim_gets_a_binderfs_of_its_own_and_nothing_else_is_mounted(directory: Mounts) -> None:
    backend = started(directory)
    (edits,) = backend.prepare(["phone1"], [])
    phone = f"{directory.path}/phone1"
    assert directory.mounted() == {"phone1": 1}
    assert sorted(binderfs.device_names(phone)) == sorted(TRIPLE)
    assert [node.host_path for node in edits.devices] == [f"{phone}/{name}" for name in TRIPLE]
    assert mounts_of(edits) == {
        **{f"{phone}/{name}": f"{phone}/{name}" for name in TRIPLE},
        **{f"/dev/{name}": f"{phone}/{name}" for name in TRIPLE},
        "/dev/binderfs": phone,
        "/dev/binderfs/binder-control": "/dev/null",
    }
    assert edits.environment == {
        "BINDER_VISIBLE_DEVICES": "binder,hwbinder,vndbinder",
        "PATH": "/system/bin:/system/xbin",
    }
    assert backend.scan() == dict.fromkeys(["phone0", "phone1", "phone2"], "")


def test_prepared_phone_is_as_it_was_until_its_mount_is_lost(directory: Mounts) -> None:
    backend = started(directory)
    assert not backend.is_prepared(["phone0"])
    backend.prepare(["phone0"], [])
    backend.scan()
    backend.update_host()
    assert backend.is_prepared(["phone0"])
    directory.unmount("phone0")
    assert not backend.is_prepared(["phone0"])
    backend.scan()
    backend.update_host()  # mounts it again, and the claim's CDI spec has to be written again
    assert not backend.is_prepared(["phone0"])
    backend.prepare(["phone0"], [])
    assert backend.is_prepared(["phone0"])
    backend.unprepare(["phone0"])
    assert not backend.is_prepared(["phone0"])


def test_mounts_of_a_killed_process_are_known(directory: Mounts) -> None:
    killed = started(directory, 4)
    for phone in ("phone0", "phone1", "phone3"):
        killed.prepare([phone], [])
    backend = started(directory, 3)  # the count was lowered meanwhile
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone3": 1}
    backend.prepare(["phone1"], [])
    backend.unprepare(["phone0", "phone3"])
    assert os.listdir(directory.path) == ["phone1"]
    assert backend.scan() == dict.fromkeys(["phone0", "phone1", "phone2"], "")


def test_claim_keeps_a_phone_beyond_the_count_which_is_not_offered(directory: Mounts) -> None:
    edits = started(directory, 3).prepare(["phone2"], [])
    backend = started(directory, 1)
    assert backend.prepare(["phone2"], []) == edits
    assert backend.scan() == {"phone0": "", "phone2": "surplus"}
    backend.unprepare(["phone2"])
    assert backend.scan() == {"phone0": ""}


def test_phones_are_unhealthy_while_the_kernel_has_no_binderfs(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_directory: str) -> None:
        raise BinderfsError("this kernel has no binderfs")

    with monkeypatch.context() as patch:
        patch.setattr(binderfs, "check_mountable", refuse)
        backend = started(directory, 2)
        assert backend.scan() == {"phone0": "binderfs-unavailable", "phone1": "binderfs-unavailable"}
        assert backend.found.devices[0].detail == "binderfs-unavailable: this kernel has no binderfs"
        with pytest.raises(BackendError, match="this kernel has no binderfs"):
            backend.update_host()
        with pytest.raises(UnhealthyDeviceError, match="this kernel has no binderfs"):
            backend.prepare(["phone0"], [])
    backend.scan()
    assert all(device.healthy for device in backend.found.devices)
    backend.update_host()


def test_phone_whose_binderfs_cannot_be_mounted_is_not_prepared(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = started(directory)
    with monkeypatch.context() as patch:

        def fail(*_arguments: object) -> None:
            raise BinderfsError("no minor")

        patch.setattr(binderfs, "attach", fail)
        with pytest.raises(UnhealthyDeviceError, match="'phone0' could not be mounted: no minor"):
            backend.prepare(["phone0"], [])
    assert directory.mounted() == {}
    backend.prepare(["phone0"], [])


def test_shared_and_spread_devices_come_with_the_phone(directory: Mounts) -> None:
    backend = started(directory, shared_devices=("/dev/null:/dev/x",), spread_devices=("/dev/[fz]*[lo]",))
    (edits,) = backend.prepare(["phone1"], [])
    assert [node.container_path for node in edits.devices][3:] == ["/dev/zero", "/dev/x"]
    assert backend.attributes("phone1")["spreadDevice"] == "zero"
    assert backend.attributes("phone2")["spreadDevice"] == "full"


def test_a_request_has_one_phone(directory: Mounts) -> None:
    """Two would have the same paths in a container."""
    backend = started(directory)
    with pytest.raises(InvalidRequestError, match=r"^a container can have one phone, not 2 \(phone0, phone1\)"):
        backend.prepare(["phone0", "phone1"], [])
    assert os.listdir(directory.path) == []  # nothing is left of it


def test_parameters_change_what_the_container_gets(directory: Mounts) -> None:
    backend = started(directory, isolation=Isolation.STRICT)
    given = parameters("class", allowedDevices=["/dev/*"], environment={"A": "1", "B": "1"}, containerPaths=["/dev/x"])
    given += parameters(environment={"B": "2"}, devices=["/dev/fuse"] if os.path.exists("/dev/fuse") else [])
    (edits,) = backend.prepare(["phone0"], given)
    phone = f"{directory.path}/phone0"
    assert [path for path in mounts_of(edits) if not path.startswith(phone)] == ["/dev/x"]
    assert {**edits.environment, "A": "1", "B": "2"} == edits.environment
    assert os.path.exists("/dev/fuse") == ("/dev/fuse" in nodes_of([edits])[0])


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
