"""Phones with a binderfs each, through the plugin and a kubelet; a tmpfs, really mounted, stands in for binderfs."""

import contextlib
import os
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.catalog import UNLINKED
from aosp_plugin.backend.found_devices import Allocated
from aosp_plugin.backend.phones import SURPLUS_INTERVAL
from aosp_plugin.binder.devices.health import HealthProblem, Reason, Verify
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import device_links
from aosp_plugin.config.keys import Resource
from aosp_plugin.config.values import Api, Recreate
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.backend import DeviceList
from aosp_plugin.framework.errors import BackendError, UnhealthyDeviceError
from aosp_plugin.framework.runtime import Runtime
from kubelet_standin import Container, Kubelet, Pod
from tests.backends import Served, phones_backend, started_phones
from tests.support import IN_LIFE, Clock, causes, listed, run, until
from tests.tmpfs_binderfs import Mounts

RESOURCE = "aosp.io/phone"
TRIPLE = ("binder", "hwbinder", "vndbinder")


def running(directory: Mounts, count: int, kubelet: Kubelet) -> contextlib.AbstractAsyncContextManager[DevicePlugin]:
    """Run a plugin with phones."""
    backend = phones_backend(directory.path, count).backend
    return run(DevicePlugin(backend, kubelet_dir=kubelet.directory, runtime=Runtime(timings=IN_LIFE)))


def answer_later(backend: Served, clock: Clock, *allocated: str) -> None:
    """Tell the backend which phones pods have, when surplus ones may be removed, and update the host."""
    clock.now += SURPLUS_INTERVAL + 1
    backend.tell(allocated=Allocated(frozenset(allocated), clock.now))
    backend.update_host()


@pytest.mark.parametrize("api", Api)
def test_container_gets_its_phone_at_the_paths_of_android_and_nothing_of_others(directory: Mounts, api: Api) -> None:
    """A claim gets a binderfs of its own, and nothing else is mounted."""
    backend = started_phones(directory.path, 2, api=api)
    edits = backend.prepare(["phone1"])[0] if api is Api.DRA else backend.allocate(["phone1"])
    phone = f"{directory.path}/phone1"
    assert directory.mounted() == {"phone1": 1, **({} if api is Api.DRA else {"phone0": 1})}
    assert sorted(binderfs.device_names(phone)) == sorted(TRIPLE)
    assert edits.environment == {
        "BINDER_VISIBLE_DEVICES": "binder,hwbinder,vndbinder",
        "PATH": "/system/bin:/system/xbin",
    }
    nodes = [(node.host_path, node.container_path, node.permissions) for node in edits.devices]
    assert nodes == [(f"{phone}/{name}", f"{phone}/{name}", "rw") for name in TRIPLE]
    assert all(mount.read_only for mount in edits.mounts)
    assert {mount.container_path: mount.host_path for mount in edits.mounts} == {
        **{f"{phone}/{name}": f"{phone}/{name}" for name in TRIPLE},
        **{f"/dev/{name}": f"{phone}/{name}" for name in TRIPLE},
        "/dev/binderfs": phone,
        "/dev/binderfs/binder-control": "/dev/null",
    }
    assert set(backend.scan().values()) == {""}


def test_backend_reports_binder_devices_without_a_link(directory: Mounts) -> None:
    directory.number_devices()
    backend = started_phones(directory.path, 2)
    backend.update_host()
    assert directory.linked() == directory.expected_links("phone0", "phone1")
    assert not causes(backend.backend, UNLINKED)
    directory.hide_links()
    backend.update_host()
    assert causes(backend.backend, UNLINKED) == "6 binder devices have none"


def test_found_device_that_cannot_be_linked_is_logged_and_reported(
    directory: Mounts, caplog: pytest.LogCaptureFixture
) -> None:
    device_links._log.cache_clear()
    directory.number_devices()
    (directory.path / "binderfs").mkdir(parents=True)
    directory.mount_tmpfs_with("binderfs", "aosp_binder0")
    directory.links.mkdir()
    directory.hide_links()
    device_dir = str(directory.path / "binderfs")
    backend = BinderBackend(Host(), Resource.of(device_dir=device_dir, verify=Verify.BINDER), cdi_dir=device_dir)
    backend.update_host(backend.scan())
    assert causes(backend, UNLINKED) == "1 binder devices have none"
    assert "device links not written" in caplog.messages


def test_found_device_is_linked_to_its_file_in_the_binderfs(directory: Mounts) -> None:
    """Its name in the device directory may be another one. One that is bind-mounted alone is in nobody's binderfs."""
    directory.number_devices()
    (directory.path / "binderfs").mkdir(parents=True)
    directory.mount_tmpfs_with("binderfs", "in_binderfs", "alone")
    dev = directory.path.parent / "dev"
    dev.mkdir()
    (dev / "aosp_binder0").symlink_to(directory.path / "binderfs/in_binderfs")
    (dev / "aosp_binder1").touch()
    directory.bind("binderfs/alone", "../dev/aosp_binder1")
    directory.links.mkdir()
    backend = BinderBackend(Host(), Resource.of(device_dir=str(dev), verify=Verify.BINDER), cdi_dir=str(dev))
    backend.update_host(backend.scan())
    number = os.stat(dev / "aosp_binder0").st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    assert directory.linked() == {name: name}
    assert os.readlink(directory.links / name) == f"{directory.path}/binderfs/in_binderfs"
    assert causes(backend, UNLINKED) == "1 binder devices have none"
    (directory.path / "binderfs/in_binderfs").unlink()
    backend.update_host(backend.scan())
    assert directory.linked() == {}


async def test_start_of_a_container_mounts_a_fresh_binderfs_unnoticed_by_the_kubelet(
    directory: Mounts, kubelet: Kubelet
) -> None:
    async with running(directory, 2, kubelet) as plugin:
        await listed(kubelet, 2, RESOURCE)
        pod = Pod("phone", [Container("android", {RESOURCE: 1})])
        await kubelet.admit(pod)
        (phone,) = kubelet.allocated(RESOURCE)
        devices = set()
        for _ in range(20):
            await kubelet.start_container(pod, "android")
            devices.add(os.stat(directory.path / phone).st_dev)
        assert len(devices) > 1
        assert directory.mounted() == {"phone0": 1, "phone1": 1}
        # The lists of a later change follow at most: the other phone is missing, and it is mounted again.
        directory.unmount("phone0" if phone == "phone1" else "phone1")
        await until(lambda: directory.mounted() == {"phone0": 1, "phone1": 1})
        await listed(kubelet, 2, RESOURCE)
        assert plugin.inventory.snapshot.revision <= 4


async def test_no_container_gets_the_binderfs_of_another_pod_although_the_kubelet_skips_pre_start(
    directory: Mounts, kubelet: Kubelet
) -> None:
    """A kubelet that was restarted has no options of a plugin that has not registered: Allocate is all there is."""
    async with running(directory, 1, kubelet):
        await listed(kubelet, 1, RESOURCE)
        before, after = (Pod(name, [Container("android", {RESOURCE: 1})]) for name in ("before", "after"))
        await kubelet.admit(before)
        await kubelet.start_container(before, "android")
        held = os.open(directory.path / "phone0", os.O_RDONLY)  # its number is not used again
        await kubelet.finish(before)
        await kubelet.admit(after)
    device = os.stat(directory.path / "phone0").st_dev
    try:
        assert device not in {os.fstat(held).st_dev, os.stat(directory.path).st_dev}
    finally:
        os.close(held)


def test_lowered_count_removes_free_phones_only(directory: Mounts, clock: Clock) -> None:
    """First no pod may get them. Then the kubelet is asked which are allocated."""
    started_phones(directory.path, 4)
    backend = started_phones(directory.path, 1, clock)
    surplus = {"phone0": "", "phone1": "surplus", "phone2": "surplus", "phone3": "surplus"}
    assert backend.scan() == surplus
    assert backend.due() == SURPLUS_INTERVAL
    backend.update_host()
    with pytest.raises(UnhealthyDeviceError, match="surplus"):
        backend.allocate(["phone1"])
    backend.tell(allocated=Allocated(frozenset({"phone2"}), clock.now + SURPLUS_INTERVAL))
    backend.update_host()
    assert backend.scan() == surplus
    clock.now += SURPLUS_INTERVAL + 1
    backend.tell(allocated=None)
    backend.update_host()
    assert backend.scan() == surplus, "the kubelet does not say which are free"
    backend.tell(held={"phone3": HealthProblem(Reason.IN_USE_BY_OTHER_RESOURCE, "a pod has it by another name")})
    answer_later(backend, clock, "phone2")
    assert backend.scan() == {"phone0": "", "phone2": "surplus", "phone3": "in-use-by-other-resource"}
    backend.tell(held={})
    answer_later(backend, clock, "phone2")
    assert backend.scan() == {"phone0": "", "phone2": "surplus"}
    assert directory.mounted() == {"phone0": 1, "phone2": 1}
    answer_later(backend, clock)
    assert backend.scan() == {"phone0": ""}
    assert not backend.found.has_surplus
    assert backend.due() is None
    assert os.listdir(directory.path) == ["phone0"]


def test_surplus_phone_stays_in_the_cdi_spec_until_no_pod_has_a_replica(directory: Mounts, clock: Clock) -> None:
    """The container of the pod that has it may be restarted, and refers to it by its CDI name."""
    keys: dict[str, Any] = {"recreate": Recreate.NEVER, "replicas": 2, "device_list": (DeviceList.CDI_CRI,)}
    started_phones(directory.path, 2, **keys)
    backend = started_phones(directory.path, 1, clock, **keys)
    for allocated, expected in ((("phone1::1",), True), ((), False)):
        answer_later(backend, clock, *allocated)
        backend.scan_and_update()
        (spec,) = (directory.path.parent / "cdi").iterdir()
        assert (f"{directory.path}/phone1/binder" in spec.read_text(encoding="utf-8")) is expected
        assert directory.mounted() == dict.fromkeys(["phone0", *(["phone1"] if expected else [])], 1)


def test_removed_phone_whose_recreation_has_failed_is_not_mounted_again(
    directory: Mounts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_phones(directory.path, 2)
    backend = started_phones(directory.path, 1, clock)
    with monkeypatch.context() as patch:
        directory.refuse_all(patch)
        with pytest.raises(BackendError, match="could not be recreated"):
            backend.pre_start(["phone1"])
    answer_later(backend, clock)
    backend.update_host()
    assert directory.mounted() == {"phone0": 1}


def test_surplus_phone_that_was_covered_for_a_while_is_as_before(directory: Mounts, clock: Clock) -> None:
    """Meanwhile it is foreign: a binderfs with the devices of a phone may have the logs of all tenants."""
    started_phones(directory.path, 2)
    directory.mount_tmpfs_with("phone1", *TRIPLE)
    backend = phones_backend(directory.path, 1, clock=clock)
    for _ in range(3):
        backend.scan()
        with pytest.raises(BackendError, match="phone1: another file system is mounted in place of"):
            backend.update_host()
        assert backend.scan() == {"phone0": "", "phone1": "foreign-mount"}
        clock.now += 1000.0
    directory.unmount("phone1")
    backend.scan_and_update()
    backend.scan()
    assert backend.scan() == {"phone0": "", "phone1": "surplus"}
