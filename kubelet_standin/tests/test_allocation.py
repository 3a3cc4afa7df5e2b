"""Device lists, device selection, and the merge of several plugin responses."""

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from kubelet_standin import ContainerAllocation, DeviceSpec, Mount
from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.deviceplugin.allocation import (
    AllocationRequest,
    Selection,
    SelectionError,
    complete_selection,
    merge_responses,
    sample,
    start_selection,
)
from kubelet_standin.deviceplugin.checkpoint import CheckpointEntry
from kubelet_standin.deviceplugin.resources import ResourceState


def rng(seed: int = 1) -> random.Random:
    return random.Random(seed)  # noqa: S311 - repeatable, not secret


def request(
    count: int,
    healthy: set[str] | None,
    *,
    held: tuple[str, ...] | None = None,
    in_use: frozenset[str] = frozenset(),
    reusable: frozenset[str] = frozenset(),
) -> AllocationRequest:
    return AllocationRequest("U", "C", "r/r", count, held, healthy, in_use, reusable)


def test_duplicate_id_counts_once_for_each_health() -> None:
    """An ID with both healths can be allocated, and counts twice in the capacity until the plugin is lost."""
    resource = ResourceState()
    resource.replace(pb.ListAndWatchResponse(devices=[pb.Device(ID="a", health="Healthy")] * 2), 0)
    assert (resource.capacity, resource.healthy) == (1, {"a"})
    both = [pb.Device(ID="a", health="Healthy"), pb.Device(ID="a", health="Unhealthy")]
    resource.replace(pb.ListAndWatchResponse(devices=both), 0)
    assert (resource.capacity, resource.healthy, resource.unhealthy) == (2, {"a"}, {"a"})
    resource.lose()
    assert (resource.capacity, resource.healthy) == (1, frozenset())


def test_sample_depends_on_the_seed_only() -> None:
    ids = [f"d{n}" for n in range(20)]
    assert sample(ids, 20, rng(1)) == sample(reversed(ids), 20, rng(1))
    assert sample(ids, 20, rng(1)) != sample(ids, 20, rng(2))
    assert sample(ids, 20, rng(1)) != tuple(ids)


@pytest.mark.parametrize(
    "satisfied", [request(1, {"a", "b"}, held=("a",), in_use=frozenset("a")), request(0, {"a"})], ids=["held", "zero"]
)
def test_selection_is_empty_if_nothing_is_missing(satisfied: AllocationRequest) -> None:
    """A container that has its devices, or requests none, causes no call to the plugin."""
    assert start_selection(satisfied, rng()) is None


@pytest.mark.parametrize(
    ("impossible", "text"),
    [
        (
            request(3, set("abc"), in_use=frozenset("ab"), reusable=frozenset("a")),
            "requested number of devices unavailable for r/r. Requested: 2, Available: 1",
        ),
        (
            request(2, set("ab"), held=("a",)),
            'pod "U" container "C" changed request for resource "r/r" from 1 to 2',
        ),
        (request(1, None), "cannot allocate unregistered device r/r"),
        (request(1, set()), "no healthy devices present; cannot allocate unhealthy devices r/r"),
        (
            request(1, {"b"}, held=("a",)),
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices r/r",
        ),
    ],
)
def test_impossible_selection_has_the_kubelets_error_text(impossible: AllocationRequest, text: str) -> None:
    with pytest.raises(SelectionError) as error:
        start_selection(impossible, rng())
    assert str(error.value) == text


def test_preferred_devices_that_are_not_available_are_ignored() -> None:
    """The remaining devices are selected at random, without duplicates."""
    ids = complete_selection(Selection(("t",), 2, {"a", "b", "c"}), ["bogus", "a", "a", "t"], rng())
    assert len(ids) == len(set(ids)) == 3
    assert {"t", "a"} < set(ids) < {"t", "a", "b", "c"}


def test_too_many_preferred_devices_are_reduced() -> None:
    ids = complete_selection(Selection((), 1, {"a", "b", "c", "d"}), ["a", "b", "c"], rng())
    assert len(ids) == 1
    assert set(ids) < {"a", "b", "c"}


def test_selected_devices_are_in_random_order() -> None:
    """Neither reused nor preferred devices have a fixed position."""
    selection = Selection(("t",), 3, {"a", "b", "c"})
    orders = {complete_selection(selection, ["a"], rng(seed)) for seed in range(40)}
    assert len(orders) > 10
    assert all(set(order) == {"t", "a", "b", "c"} for order in orders)


def entry(resource: str, ids: tuple[str, ...] = (), **response: Any) -> CheckpointEntry:
    data = pb.ContainerAllocateResponse(**response).SerializeToString()
    return CheckpointEntry("U", "C", resource, {-1: ids}, data)


def test_merge_returns_all_fields_of_a_response() -> None:
    """Each CDI device is listed once."""
    full = entry(
        "r/r",
        ("a", "b"),
        envs={"E": "1"},
        mounts=[pb.Mount(container_path="/m", host_path="/hm", read_only=True)],
        devices=[pb.DeviceSpec(container_path="/d", host_path="/hd", permissions="rw")],
        annotations={"A": "2"},
        cdi_devices=[pb.CDIDevice(name="r/r=a")] * 2,
    )
    assert merge_responses("C", [full], rng()) == ContainerAllocation(
        name="C",
        device_ids={"r/r": ("a", "b")},
        envs={"E": "1"},
        mounts=(Mount("/m", "/hm", read_only=True),),
        devices=(DeviceSpec("/d", "/hd", "rw"),),
        annotations={"A": "2"},
        cdi_devices=("r/r=a",),
    )


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        (lambda value: {"envs": {"K": value}}, "environment variable K"),
        (lambda value: {"annotations": {"K": value}}, "annotation K"),
        (lambda value: {"mounts": [pb.Mount(container_path="/K", host_path=value)]}, "mount /K"),
        (lambda value: {"devices": [pb.DeviceSpec(container_path="/K", host_path=value)]}, "device /K"),
    ],
)
def test_merge_keeps_the_first_value_and_logs_a_conflict(
    fields: Callable[[str], dict[str, Any]], option: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Equal values are no conflict. Resources are merged in random order, so either value can be the first."""
    equal = merge_responses("C", [entry("r/1", **fields("1")), entry("r/2", **fields("1"))], rng())
    assert len(equal.envs) + len(equal.annotations) + len(equal.mounts) + len(equal.devices) == 1
    assert not caplog.records
    conflicting = [entry("r/1", **fields("1")), entry("r/2", **fields("2"))]
    results = {repr(merge_responses("C", conflicting, rng(seed))) for seed in range(20)}
    assert len(results) == 2
    assert caplog.records[0].levelno == logging.ERROR
    assert option in caplog.records[0].message
