"""A node that moves between the device plugin API and DRA: pods keep their devices, and no other pod gets them."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import PHONE_DEFAULTS, Phones, Resource
from aosp_plugin.config.values import Api, Recreate
from aosp_plugin.daemon.allocations import report_allocations
from aosp_plugin.daemon.assembly import create_backend
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.errors import BackendError, UnhealthyDeviceError
from aosp_plugin.framework.podresources_client import PodResources
from kubelet_standin import Kubelet
from tests.pod_resources import answering
from tests.support import listed, ready, run
from tests.tmpfs_binderfs import Mounts

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    """Yield the directory of the phones, which does not exist yet."""
    with contextlib.closing(Mounts(tmp_path / "phones", monkeypatch)) as mounts:
        yield mounts


def started(directory: Mounts, api: Api, count: int = 3, **keys: Any) -> BinderBackend:
    """Return the backend of a process that was started with this API, after its first host update."""
    phones = Phones(count=count, directory=str(directory.path))
    resource = Resource(phones=phones, api=api, **{**PHONE_DEFAULTS, "shared_devices": (), **keys})
    backend = create_backend(Host(), resource, cdi_dir=str(directory.path.parent / "cdi"))
    for _ in range(2):
        backend.scan()
        with contextlib.suppress(BackendError):
            backend.update_host()
    return backend


def of_claims(directory: Mounts) -> ClaimsBackend:
    backend = started(directory, Api.DRA)
    assert isinstance(backend, ClaimsBackend)
    return backend


def reasons(backend: BinderBackend) -> dict[str, str]:
    backend.scan()
    return {device.id: device.reason for device in backend.devices()}


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
    assert reasons(backend) == held, "the kubelet has not said which are free"
    assert backend.holds_undecided
    backend.retain([])
    backend.unprepare(["phone0"])
    with pytest.raises(UnhealthyDeviceError, match="in-use-by-other-api: the kubelet has not answered yet"):
        backend.prepare(["phone0"], [])
    assert file_systems(directory) == before
    assert backend.set_held({"phone1"})
    assert reasons(backend) == {"phone0": "", "phone1": "in-use-by-other-api", "phone2": ""}
    backend.retain([])
    assert file_systems(directory) == {"phone1": before["phone1"]}
    with pytest.raises(UnhealthyDeviceError, match="'phone1' is unhealthy: in-use-by-other-api"):
        backend.prepare(["phone1"], [])
    assert backend.set_held(())
    assert set(reasons(backend).values()) == {""}
    backend.unprepare(["phone1"])
    assert directory.mounted() == {}


@needs_root
def test_a_free_phone_of_the_device_plugin_is_replaced_for_a_claim(directory: Mounts) -> None:
    started(directory, Api.DEVICE_PLUGIN)
    before = file_systems(directory)
    backend = of_claims(directory)
    backend.set_held(())
    backend.prepare(["phone0"], [])
    assert file_systems(directory)["phone0"] != before["phone0"]
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}


@needs_root
def test_replicas_of_the_device_plugin_are_one_phone(directory: Mounts) -> None:
    backend = of_claims(directory)
    backend.set_held({"phone1::0", "phone1::1"})
    assert reasons(backend)["phone1"] == "in-use-by-other-api"


@needs_root
@pytest.mark.parametrize("recreate", list(Recreate))
def test_pods_get_no_phone_that_a_claim_has(recreate: Recreate, directory: Mounts) -> None:
    claims = of_claims(directory)
    for phone in ("phone0", "phone1"):
        claims.prepare([phone], [])
    before = file_systems(directory)
    backend = started(directory, Api.DEVICE_PLUGIN, recreate=recreate)
    assert reasons(backend) == {"phone0": "in-use-by-other-api", "phone1": "in-use-by-other-api", "phone2": ""}
    assert backend.set_held({"phone1"})
    backend.scan()
    backend.update_host()
    after = file_systems(directory)
    assert (after["phone1"], after["phone0"] == before["phone0"]) == (before["phone1"], False)
    assert reasons(backend) == {"phone0": "", "phone1": "in-use-by-other-api", "phone2": ""}
    with pytest.raises(UnhealthyDeviceError, match="in-use-by-other-api"):
        backend.allocate(["phone1"])
    backend.set_held(())
    backend.scan()
    backend.update_host()
    assert set(reasons(backend).values()) == {""}
    assert file_systems(directory)["phone1"] != before["phone1"]


async def refuse(context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pods")


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


@needs_root
async def test_phones_stay_held_with_a_reason_while_the_kubelet_does_not_answer(
    directory: Mounts, short_directory: Path
) -> None:
    of_claims(directory).prepare(["phone0"], [])
    before = file_systems(directory)
    backend = started(directory, Api.DEVICE_PLUGIN, resource_name="aosp.io/phone")
    path = str(short_directory / "pods.sock")
    async with answering(path, refuse), Kubelet(short_directory / "k") as kubelet:
        plugin = DevicePlugin(backend, kubelet_dir=kubelet.directory)
        with contextlib.closing(PodResources(path, ["aosp.io/phone"])) as pod_resources:
            async with run(plugin):
                await listed(kubelet, 2, "aosp.io/phone")
                asking = report_allocations(
                    {"aosp.io/phone": backend}, pod_resources, lambda _: plugin.rescan(), sleep=at_once
                )
                async with background_task(asking):
                    await ready(plugin)
                    device = plugin.inventory.snapshot.devices.get("phone0")
                assert device is not None
                assert device.why == "in-use-by-other-api: the kubelet has not answered yet which pods have it"
                assert file_systems(directory)["phone0"] == before["phone0"]
                backend.set_held(())
                plugin.rescan()
                await listed(kubelet, 3, "aosp.io/phone")
                await ready(plugin)
