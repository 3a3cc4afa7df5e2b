"""A node that moves between the device plugin API and DRA: pods keep their devices, and no other pod gets them."""

import contextlib
import math
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from aosp_plugin.backend.found_devices import Allocated, FoundDevices
from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.config.values import Api, Recreate
from aosp_plugin.daemon.allocations import AllocationWatch
from aosp_plugin.daemon.device_records import DeviceRecord, DeviceRecords
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra.record_store import Others
from aosp_plugin.framework.errors import UnhealthyDeviceError
from aosp_plugin.framework.podresources_client import PodResources
from kubelet_standin import Kubelet
from tests.backends import Served, phones_backend
from tests.pod_resources import answering
from tests.support import listed, ready, run
from tests.tmpfs_binderfs import Mounts

HELD = {"phone1": HealthProblem(Reason.IN_USE_BY_OTHER_API, "in-use-by-other-api")}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")


def started(directory: Mounts, api: Api, **keys: Any) -> Served:
    """Return the backend of a process that was started with this API, after its first host updates."""
    backend = phones_backend(directory.path, api=api, **keys)
    for _ in range(2):
        backend.settle()
    return backend


def of_claims(directory: Mounts) -> Served:
    return started(directory, Api.DRA)


def file_systems(directory: Mounts) -> dict[str, int]:
    """Return when a device of each phone was created, which tells its mount from a later one."""
    phones = sorted(os.listdir(directory.path))
    return {phone: os.stat(directory.path / phone / "binder").st_ctime_ns for phone in phones}


@needs_root
def test_claims_get_no_phone_that_a_pod_has_through_the_device_plugin(directory: Mounts) -> None:
    started(directory, Api.DEVICE_PLUGIN)
    before = file_systems(directory)
    backend = of_claims(directory)
    held = {f"phone{number}": "in-use-by-other-api" for number in range(3)}
    assert backend.scan() == held, "the kubelet has not said which are free"
    backend.unprepare(["phone0"])
    backend.update_host()
    with pytest.raises(UnhealthyDeviceError, match="in-use-by-other-api: the kubelet has not answered yet"):
        backend.prepare(["phone0"], [])
    assert file_systems(directory) == before
    backend.tell(held=HELD, asked=math.inf)
    assert backend.scan() == {"phone0": "", "phone1": "in-use-by-other-api", "phone2": ""}
    backend.tell(held=HELD, asked=math.inf, allocated=Allocated(frozenset({"phone2"}), time.monotonic()))
    backend.update_host()
    assert file_systems(directory) == {phone: before[phone] for phone in ("phone1", "phone2")}
    with pytest.raises(UnhealthyDeviceError, match="'phone1' is unhealthy: in-use-by-other-api"):
        backend.prepare(["phone1"], [])
    backend.tell(held={}, asked=math.inf)
    assert set(backend.scan().values()) == {""}
    backend.unprepare(["phone1", "phone2"])
    assert directory.mounted() == {}


@needs_root
def test_a_phone_of_the_device_plugin_stays_when_a_claim_that_has_it_is_restored(directory: Mounts) -> None:
    """The device plugin has mounted what the claim had lost, and the claim's container may have started with that."""
    started(directory, Api.DEVICE_PLUGIN)
    before = file_systems(directory)
    backend = of_claims(directory)
    backend.tell(held={}, asked=math.inf)
    backend.prepare(["phone0"], [])
    assert file_systems(directory) == before


@needs_root
def test_a_free_phone_of_the_device_plugin_is_replaced_for_a_claim(directory: Mounts) -> None:
    started(directory, Api.DEVICE_PLUGIN)
    before = file_systems(directory)
    backend = of_claims(directory)
    backend.tell(held={}, asked=math.inf)
    backend.unprepare(["phone0"])  # as for each claim that is new
    backend.prepare(["phone0"], [])
    assert file_systems(directory)["phone0"] != before["phone0"]
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}


@needs_root
@pytest.mark.parametrize("recreate", list(Recreate))
def test_pods_get_no_phone_that_a_claim_has(recreate: Recreate, directory: Mounts) -> None:
    claims = of_claims(directory)
    for phone in ("phone0", "phone1"):
        claims.prepare([phone], [])
    before = file_systems(directory)
    backend = started(directory, Api.DEVICE_PLUGIN, recreate=recreate)
    assert backend.scan() == {"phone0": "in-use-by-other-api", "phone1": "in-use-by-other-api", "phone2": ""}
    backend.tell(held=HELD, asked=math.inf)
    backend.scan()
    backend.update_host()
    after = file_systems(directory)
    assert (after["phone1"], after["phone0"] == before["phone0"]) == (before["phone1"], False)
    assert backend.scan() == {"phone0": "", "phone1": "in-use-by-other-api", "phone2": ""}
    with pytest.raises(UnhealthyDeviceError, match="in-use-by-other-api"):
        backend.allocate(["phone1"])
    backend.tell(held={}, asked=math.inf)
    backend.scan()
    backend.update_host()
    assert set(backend.scan().values()) == {""}
    assert file_systems(directory)["phone1"] != before["phone1"]


@needs_root
def test_a_phone_that_a_claim_has_got_since_the_kubelet_was_asked_is_held(directory: Mounts) -> None:
    """By the other process of an update. The next answer tells that the claim has it, or that it is free."""
    backend = started(directory, Api.DEVICE_PLUGIN)
    backend.tell(held={}, asked=time.monotonic())
    claims = of_claims(directory)
    claims.tell(held={}, asked=math.inf)
    claims.unprepare(["phone0"])
    claims.prepare(["phone0"], [])
    before = file_systems(directory)
    for _ in range(2):
        backend.settle()
        assert file_systems(directory) == before
        assert backend.scan() == {"phone0": "in-use-by-other-api", "phone1": "", "phone2": ""}
    backend.tell(held={}, asked=time.monotonic())
    backend.scan()
    backend.update_host()
    assert file_systems(directory)["phone0"] != before["phone0"]


async def refuse(context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pods")


async def serve_none(resources: Collection[str], claims: Others) -> None:
    assert not resources
    assert not claims.prepared


async def remove_none(records: Sequence[DeviceRecord]) -> bool:
    assert [record.resource for record in records] == ["aosp.io/phone"]
    return True


@needs_root
async def test_phones_stay_held_with_a_reason_while_the_kubelet_does_not_answer(
    directory: Mounts, short_directory: Path
) -> None:
    of_claims(directory).prepare(["phone0"], [])
    before = file_systems(directory)
    backend = started(directory, Api.DEVICE_PLUGIN, resource_name="aosp.io/phone")
    path = str(short_directory / "pods.sock")
    async with answering(path, refuse), Kubelet(short_directory / "k") as kubelet:
        plugin = DevicePlugin(backend.backend, kubelet_dir=kubelet.directory)
        with contextlib.closing(PodResources(path, ["aosp.io/phone"])) as pod_resources:
            async with run(plugin):
                await listed(kubelet, 2, "aosp.io/phone")
                watch = AllocationWatch(
                    {"aosp.io/phone": backend.backend},
                    lambda _: plugin.inventory.found or FoundDevices(),
                    pod_resources,
                    DeviceRecords(kubelet.directory, "/run/cdi", "aosp.io/phone"),
                    lambda _: plugin.rescan(),
                    lambda: Others((), ()),
                    serve_none,
                    remove_none,
                    Conditions(),
                )
                with contextlib.closing(watch):
                    for _ in range(3):
                        assert not await watch.ask()
                    await ready(plugin)
                    device = plugin.inventory.snapshot.devices.get("phone0")
                assert device is not None
                assert device.detail == "in-use-by-other-api: the kubelet has not answered yet which pods have it"
                assert file_systems(directory)["phone0"] == before["phone0"]
                backend.tell(held={}, asked=math.inf)
                plugin.rescan()
                await listed(kubelet, 3, "aosp.io/phone")
                await ready(plugin)
