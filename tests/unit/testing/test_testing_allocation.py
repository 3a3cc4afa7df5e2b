"""Which devices a container gets, and how several answers become one."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.testing.allocation import Choice, SelectionError, Want, by_numa, choose, complete, merge, pick
from aosp_plugin.testing.behaviour import Behaviour
from aosp_plugin.testing.checkpoint import Entry
from aosp_plugin.testing.pods import DeviceSpec, Mount

if TYPE_CHECKING:
    from collections.abc import Callable

NEWER = [Behaviour.BUGGY, Behaviour.NEW]


def rng(seed: int = 1) -> random.Random:
    return random.Random(seed)  # noqa: S311 - repeatable, not secret


def want(
    count: int,
    healthy: set[str] | None,
    *,
    held: tuple[str, ...] | None = None,
    in_use: frozenset[str] = frozenset(),
    reusable: frozenset[str] = frozenset(),
) -> Want:
    return Want("U", "C", "r/r", count, held, healthy, in_use, reusable)


def test_pick_is_random_but_repeatable() -> None:
    """The same seed gives the same order, whatever the order of the candidates; another seed another one."""
    ids = [f"d{n}" for n in range(20)]
    assert pick(ids, 20, rng(1)) == pick(reversed(ids), 20, rng(1))
    assert pick(ids, 20, rng(1)) != pick(ids, 20, rng(2))
    assert pick(ids, 20, rng(1)) != tuple(ids)


def test_pick_takes_no_more_than_there_are() -> None:
    """Two candidates give two, and zero of them none."""
    assert set(pick({"a", "b"}, 5, rng())) == {"a", "b"}
    assert pick({"a", "b"}, 0, rng()) == ()


@pytest.mark.parametrize("behaviour", Behaviour)
def test_healthy_devices_that_nobody_uses_are_available(behaviour: Behaviour) -> None:
    """Neither unhealthy devices nor those in use are given out."""
    found = choose(want(2, {"a", "b", "c", "d"}, in_use=frozenset("ax")), behaviour, rng())
    assert found == Choice((), 2, {"b", "c", "d"})


@pytest.mark.parametrize("behaviour", Behaviour)
def test_too_few_devices_are_an_error_with_both_counts(behaviour: Behaviour) -> None:
    """The text says how many more are asked for, and how many are there."""
    with pytest.raises(SelectionError) as error:
        choose(want(3, {"a", "b", "c"}, in_use=frozenset("ab"), reusable=frozenset("a")), behaviour, rng())
    assert str(error.value) == "requested number of devices unavailable for r/r. Requested: 2, Available: 1"


def test_devices_of_init_containers_come_first() -> None:
    """Reused devices are certain, and are not offered a second time."""
    found = choose(want(2, {"a", "b"}, reusable=frozenset("a")), Behaviour.NEW, rng())
    assert found == Choice(("a",), 1, {"b"})


def test_reuse_that_suffices_leaves_nothing_open() -> None:
    """Only as many as asked for are reused, and the free devices don't matter."""
    found = choose(want(1, {"x"}, in_use=frozenset("ab"), reusable=frozenset("ab")), Behaviour.NEW, rng())
    assert found is not None
    assert len(found.taken) == 1
    assert set(found.taken) < {"a", "b"}
    assert (found.missing, found.available) == (0, frozenset())


@pytest.mark.parametrize("behaviour", Behaviour)
def test_a_container_keeps_what_it_has(behaviour: Behaviour) -> None:
    """A container that was given its devices before needs no new ones, even if others are free."""
    assert choose(want(1, {"a", "b"}, held=("a",), in_use=frozenset("a")), behaviour, rng()) is None


@pytest.mark.parametrize("behaviour", Behaviour)
def test_a_changed_request_is_an_error(behaviour: Behaviour) -> None:
    """A container that was given one device can't come back for two."""
    with pytest.raises(SelectionError) as error:
        choose(want(2, {"a", "b"}, held=("a",)), behaviour, rng())
    assert str(error.value) == 'pod "U" container "C" changed request for resource "r/r" from 1 to 2'


@pytest.mark.parametrize("behaviour", Behaviour)
def test_a_request_for_none_allocates_nothing(behaviour: Behaviour) -> None:
    """Zero devices are no reason to call the plugin."""
    assert choose(want(0, {"a"}), behaviour, rng()) is None


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        (Behaviour.OLD, "can't allocate unregistered device r/r"),
        (Behaviour.BUGGY, "cannot allocate unregistered device r/r"),
        (Behaviour.NEW, "cannot allocate unregistered device r/r"),
    ],
)
def test_a_forgotten_plugin_is_an_error(behaviour: Behaviour, text: str) -> None:
    """The words changed with the versions."""
    with pytest.raises(SelectionError) as error:
        choose(want(1, None), behaviour, rng())
    assert str(error.value) == text


@pytest.mark.parametrize("healthy", [None, set[str](), {"b"}])
def test_the_old_kubelet_asks_nothing_of_devices_it_gave_before(healthy: set[str] | None) -> None:
    """1.20 admits a container that has its devices, whatever became of them."""
    assert choose(want(1, healthy, held=("a",)), Behaviour.OLD, rng()) is None


def test_the_old_kubelet_counts_when_nothing_is_healthy() -> None:
    """1.20 has one text for too few devices, also for none."""
    with pytest.raises(SelectionError, match=r"Requested: 1, Available: 0"):
        choose(want(1, set()), Behaviour.OLD, rng())


@pytest.mark.parametrize("behaviour", NEWER)
@pytest.mark.parametrize("held", [None, ("a",)])
def test_newer_kubelets_want_a_healthy_device(behaviour: Behaviour, held: tuple[str, ...] | None) -> None:
    """Without any, they say so, also to a container that has its devices."""
    with pytest.raises(SelectionError) as error:
        choose(want(1, set(), held=held), behaviour, rng())
    assert str(error.value) == "no healthy devices present; cannot allocate unhealthy devices r/r"


@pytest.mark.parametrize("behaviour", NEWER)
def test_newer_kubelets_want_the_same_devices_healthy(behaviour: Behaviour) -> None:
    """A container whose device has become unhealthy is not admitted again."""
    with pytest.raises(SelectionError) as error:
        choose(want(1, {"b"}, held=("a",)), behaviour, rng())
    assert str(error.value) == (
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices r/r"
    )


def test_the_plugins_preference_is_followed() -> None:
    """What the plugin prefers is taken first, whatever the seed."""
    choice = Choice((), 2, {f"d{n}" for n in range(50)})
    for seed in range(10):
        assert set(complete(choice, ["d7", "d8"], rng(seed))) == {"d7", "d8"}


def test_preferred_ids_that_are_not_available_are_ignored() -> None:
    """The rest is filled up at random, without duplicates."""
    ids = complete(Choice(("t",), 2, {"a", "b", "c"}), ["bogus", "a", "a", "t"], rng())
    assert len(ids) == len(set(ids)) == 3
    assert {"t", "a"} < set(ids) < {"t", "a", "b", "c"}


def test_of_too_many_preferred_ids_a_part_is_taken() -> None:
    """Three preferred ids for one place: one of them."""
    ids = complete(Choice((), 1, {"a", "b", "c", "d"}), ["a", "b", "c"], rng())
    assert len(ids) == 1
    assert set(ids) < {"a", "b", "c"}


def test_ids_come_in_random_order() -> None:
    """Neither the reused nor the preferred ids keep their place."""
    choice = Choice(("t",), 3, {"a", "b", "c"})
    orders = {complete(choice, ["a"], rng(seed)) for seed in range(40)}
    assert len(orders) > 10
    assert all(set(order) == {"t", "a", "b", "c"} for order in orders)


def test_devices_are_sorted_under_their_numa_nodes() -> None:
    """One without topology, or with an empty one, goes under the default; one with two nodes under both."""
    topology = {"one": (1,), "two": (0, 1), "none": ()}
    assert by_numa(("plain", "one", "two", "none"), topology, -1) == {
        -1: ("plain", "none"),
        1: ("one", "two"),
        0: ("two",),
    }


def entry(resource: str, ids: tuple[str, ...] = (), **answer: Any) -> Entry:
    response = pb.ContainerAllocateResponse(**answer)
    return Entry("U", "C", resource, {-1: ids}, response.SerializeToString())


def test_an_answer_becomes_what_the_container_gets() -> None:
    """Every field of the answer arrives, with the ids that it was for."""
    full = entry(
        "r/r",
        ("a", "b"),
        envs={"E": "1"},
        mounts=[pb.Mount(container_path="/m", host_path="/hm", read_only=True)],
        devices=[pb.DeviceSpec(container_path="/d", host_path="/hd", permissions="rw")],
        annotations={"A": "2"},
        cdi_devices=[pb.CDIDevice(name="r/r=a")],
    )
    found = merge("C", [full], Behaviour.NEW, rng())
    assert found.name == "C"
    assert found.device_ids == {"r/r": ("a", "b")}
    assert found.envs == {"E": "1"}
    assert found.mounts == (Mount("/m", "/hm", read_only=True),)
    assert found.devices == (DeviceSpec("/d", "/hd", "rw"),)
    assert found.annotations == {"A": "2"}
    assert found.cdi_devices == ("r/r=a",)


def test_the_old_kubelet_ignores_cdi_devices() -> None:
    """1.20 does not know the field."""
    assert merge("C", [entry("r/r", cdi_devices=[pb.CDIDevice(name="x")])], Behaviour.OLD, rng()).cdi_devices == ()


def test_cdi_devices_of_several_resources_are_listed_once() -> None:
    """They are told apart by name."""
    names = [pb.CDIDevice(name="x"), pb.CDIDevice(name="x")]
    merged = merge("C", [entry("r/1", cdi_devices=names), entry("r/2", cdi_devices=names)], Behaviour.NEW, rng())
    assert merged.cdi_devices == ("x",)


def _pair(make: Callable[[str], dict[str, Any]], first: str, second: str) -> list[Entry]:
    return [entry("r/1", **make(first)), entry("r/2", **make(second))]


CONFLICTS: list[tuple[Callable[[str], dict[str, Any]], str]] = [
    (lambda v: {"envs": {"K": v}}, "environment variable K"),
    (lambda v: {"annotations": {"K": v}}, "annotation K"),
    (lambda v: {"mounts": [pb.Mount(container_path="/K", host_path=v)]}, "mount /K"),
    (lambda v: {"devices": [pb.DeviceSpec(container_path="/K", host_path=v)]}, "device /K"),
]


@pytest.mark.parametrize(("make", "what"), CONFLICTS)
def test_of_two_values_for_one_key_the_first_one_wins(
    make: Callable[[str], dict[str, Any]], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The order of resources is random, and so is the winner; a conflict is logged and is no failure."""
    entries = _pair(make, "1", "2")
    winners = {repr(merge("C", entries, Behaviour.NEW, rng(seed))) for seed in range(20)}
    assert len(winners) == 2
    assert caplog.records[0].levelno == logging.ERROR
    assert what in caplog.records[0].message


@pytest.mark.parametrize(("make", "what"), CONFLICTS)
def test_equal_values_for_one_key_are_one(
    make: Callable[[str], dict[str, Any]], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What two resources agree on appears once, without a word."""
    merged = merge("C", _pair(make, "1", "1"), Behaviour.NEW, rng())
    assert len(merged.envs) + len(merged.annotations) + len(merged.mounts) + len(merged.devices) == 1
    assert not caplog.records
