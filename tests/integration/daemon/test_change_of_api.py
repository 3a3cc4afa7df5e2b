"""A node that moves between the device plugin API and DRA: pods keep their devices, and no other pod gets them."""

import math
import os
import time
from typing import Any

import pytest

from aosp_plugin.backend.found_devices import Allocated
from aosp_plugin.binder.devices.health import HealthProblem, Reason
from aosp_plugin.config.values import Api, Recreate
from aosp_plugin.framework.errors import UnhealthyDeviceError
from tests.backends import Served, phones_backend
from tests.tmpfs_binderfs import Mounts

UNANSWERED = "the kubelet has not answered yet which pods have it"
HELD = {"phone1": HealthProblem(Reason.IN_USE_BY_OTHER_API, "in-use-by-other-api")}


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


def test_claims_get_no_phone_that_a_pod_has_through_the_device_plugin(directory: Mounts) -> None:
    started(directory, Api.DEVICE_PLUGIN)
    before = file_systems(directory)
    backend = of_claims(directory)
    held = {f"phone{number}": "in-use-by-other-api" for number in range(3)}
    assert backend.scan() == held, "the kubelet has not said which are free"
    backend.unprepare(["phone0"])
    backend.update_host()
    with pytest.raises(UnhealthyDeviceError, match=f"in-use-by-other-api: {UNANSWERED}"):
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


@pytest.mark.parametrize("is_new", [True, False])
def test_a_free_phone_of_the_device_plugin_is_replaced_for_a_claim_that_is_new(
    directory: Mounts, *, is_new: bool
) -> None:
    """Not for one that is restored: its container may have started with what the device plugin has mounted."""
    started(directory, Api.DEVICE_PLUGIN)
    before = file_systems(directory)
    backend = of_claims(directory)
    backend.tell(held={}, asked=math.inf)
    if is_new:
        backend.unprepare(["phone0"])
    backend.prepare(["phone0"], [])
    after = file_systems(directory)
    assert {phone for phone in before if after[phone] != before[phone]} == ({"phone0"} if is_new else set())
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}


@pytest.mark.parametrize("recreate", list(Recreate))
def test_pods_get_no_phone_that_a_claim_has(recreate: Recreate, directory: Mounts) -> None:
    claims = of_claims(directory)
    for phone in ("phone0", "phone1"):
        claims.prepare([phone], [])
    before = file_systems(directory)
    backend = started(directory, Api.DEVICE_PLUGIN, recreate=recreate)
    assert backend.scan() == {"phone0": "in-use-by-other-api", "phone1": "in-use-by-other-api", "phone2": ""}
    assert backend.found.devices[0].detail == f"in-use-by-other-api: {UNANSWERED}"
    backend.tell(held=HELD, asked=math.inf)
    backend.scan_and_update()
    after = file_systems(directory)
    assert (after["phone1"], after["phone0"] == before["phone0"]) == (before["phone1"], False)
    assert backend.scan() == {"phone0": "", "phone1": "in-use-by-other-api", "phone2": ""}
    with pytest.raises(UnhealthyDeviceError, match="in-use-by-other-api"):
        backend.allocate(["phone1"])
    backend.tell(held={}, asked=math.inf)
    backend.scan_and_update()
    assert set(backend.scan().values()) == {""}
    assert file_systems(directory)["phone1"] != before["phone1"]


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
    backend.scan_and_update()
    assert file_systems(directory)["phone0"] != before["phone0"]


def test_a_phone_that_another_claim_has_got_since_the_kubelet_was_asked_is_held(directory: Mounts) -> None:
    """The kernel gives its mount the st_dev of the one before, unless another process mounts something meanwhile."""
    claims = of_claims(directory)
    claims.tell(held={}, asked=math.inf)
    claims.prepare(["phone0"], [])
    while True:
        backend = started(directory, Api.DEVICE_PLUGIN)
        former = os.stat(directory.path / "phone0").st_dev
        claims.unprepare(["phone0"])
        asked = time.monotonic()
        claims.prepare(["phone0"], [])
        if os.stat(directory.path / "phone0").st_dev == former:
            break
    before = file_systems(directory)
    backend.tell(held={}, asked=asked)
    for _ in range(2):
        backend.scan_and_update()
    assert file_systems(directory)["phone0"] == before["phone0"]
    assert backend.scan()["phone0"] == "in-use-by-other-api"
