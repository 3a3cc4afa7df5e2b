"""What is known of the slices, from lists, events and answers in any order."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from aosp_plugin.framework.dra.mirror import Mirror
from aosp_plugin.framework.dra.slices import StoredSlice


def state(name: str, version: int) -> StoredSlice:
    return StoredSlice(name, f"uid-{name}", str(version), deleting=False, metadata={}, spec={"v": version}, manager="")


def test_a_deletion_that_overtakes_the_answer_to_the_creation_wins() -> None:
    mirror = Mirror()
    mirror.listed([], 5)
    assert mirror.stored(state("a", 6))
    assert mirror.deleted("a", 7)
    assert not mirror.stored(state("a", 6))
    assert not mirror.slices


def test_a_list_that_overtakes_the_answer_to_the_creation_of_a_deleted_slice_wins() -> None:
    mirror = Mirror()
    mirror.listed([], 5)
    assert not mirror.listed([], 9)
    assert not mirror.stored(state("a", 6))  # created at 6, deleted at 7
    assert not mirror.slices


def test_a_creation_after_the_list_was_made_stays() -> None:
    mirror = Mirror()
    mirror.listed([], 5)
    mirror.stored(state("a", 8))
    assert not mirror.listed([], 7)
    assert set(mirror.slices) == {"a"}


def test_a_list_reports_what_was_not_known_yet() -> None:
    mirror = Mirror()
    mirror.listed([state("a", 2), state("b", 3)], 5)
    assert mirror.listed([state("b", 8), state("c", 9)], 9) == {"a": "missing", "b": "changed", "c": "changed"}
    assert set(mirror.slices) == {"b", "c"}
    assert not mirror.listed([state("b", 8), state("c", 9)], 10)


def test_an_answer_that_a_slice_is_absent_holds_only_for_the_state_that_was_requested() -> None:
    mirror = Mirror()
    mirror.listed([state("a", 2)], 5)
    seen = mirror.slices["a"]
    mirror.stored(state("a", 6))
    assert not mirror.absent(seen)
    assert mirror.absent(mirror.slices["a"])
    assert not mirror.slices


def test_after_a_backup_was_restored_the_list_counts_although_versions_are_lower() -> None:
    mirror = Mirror()
    mirror.listed([state("a", 90), state("b", 91)], 100)
    assert mirror.highest_version == 100
    mirror.rewind()
    assert mirror.listed([state("a", 10)], 20) == {"a": "changed", "b": "missing"}
    assert {name: each.version for name, each in mirror.slices.items()} == {"a": 10}
    assert mirror.deleted("a", 21)


def test_a_list_counts_more_than_a_state_of_the_same_version() -> None:
    mirror = Mirror()
    mirror.listed([state("a", 2)], 5)
    other = state("a", 2)._replace(uid="other")
    mirror.listed([other], 5)
    assert mirror.slices == {"a": other}


def test_a_name_that_is_new_in_a_list_may_have_a_version_from_before_the_last_list() -> None:
    mirror = Mirror()
    mirror.listed([], 5)
    mirror.listed([state("a", 3)], 5)
    assert set(mirror.slices) == {"a"}


def test_versions_that_are_no_numbers_are_all_taken_as_news() -> None:
    mirror = Mirror()
    mirror.listed([state("a", 1)._replace(resource_version="x")], 0)
    assert mirror.stored(state("a", 1)._replace(resource_version="y"))
    assert mirror.slices["a"].resource_version == "y"
    assert mirror.listed([], 0) == {"a": "missing"}


class Sent(NamedTuple):
    """A message of the server: an event or an answer (a slice or a deletion), or a list."""

    version: int
    slices: list[StoredSlice] | None = None
    deleted: str = ""


@pytest.mark.parametrize("seed", range(200))
def test_whatever_the_order_of_answers_the_mirror_equals_the_server_at_the_end(seed: int) -> None:
    """Events arrive in their order; answers and lists arrive at any later time."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    server: dict[str, StoredSlice] = {}
    events: list[Sent] = []
    delayed: list[tuple[float, Sent]] = []
    for version in range(1, 40):
        name = rng.choice("abc")
        if name in server and rng.random() < 0.5:
            del server[name]
            event = Sent(version, deleted=name)
        else:
            server[name] = state(name, version)
            event = Sent(version, [server[name]])
            if rng.random() < 0.5:
                delayed.append((version + rng.random() * 10, event))
        events.append(event)
        if rng.random() < 0.1:
            delayed.append((version + rng.random() * 10, Sent(-version, list(server.values()))))
    mirror = Mirror()
    mirror.listed([], 0)
    listed = 0
    for _, message in sorted(
        [*delayed, *((each.version + 0.5 * rng.random(), each) for each in events)], key=lambda m: m[0]
    ):
        if message.version < 0:
            if -message.version > listed:  # lists are requested one after another
                listed = -message.version
                mirror.listed(message.slices or [], listed)
        elif message.slices is None:
            mirror.deleted(message.deleted, message.version)
        else:
            mirror.stored(message.slices[0])
    assert mirror.slices == server
