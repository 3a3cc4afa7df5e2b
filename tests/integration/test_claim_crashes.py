"""A process of a DRA driver that is killed at any step: nothing is lost, nothing left, and no device given twice.

The process that is killed is one of ``tests.claim_process``; its successor is a ``ClaimHost`` of this process.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aosp_plugin.framework.dra.claim_host import ClaimHost, Conflict
from tests.claim_process import ClaimProcesses
from tests.claims import Node, make_node, prepare


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


@pytest.fixture(scope="module")
def processes() -> Iterator[ClaimProcesses]:
    with ClaimProcesses() as running:
        yield running


def steps(limit: int = 200) -> range:
    return range(1, limit)


def check(node: Node, host: ClaimHost) -> None:
    """Check that specs and devices agree, and that no process has left a temporary file."""
    ids = [device_id for record in host.specs.records.values() for device_id in record.ids]
    assert len(ids) == len(set(ids))
    assert node.specs == set(host.specs.records)
    assert node.backend.mounted == set(ids)


def test_a_prepare_that_is_killed_at_any_step_can_be_repeated(tmp_path: Path, processes: ClaimProcesses) -> None:
    outcomes = set()
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        prepare(node, node.host(), "other", "phone2")
        if not processes.killed_at(step, node, "prepare", "a", "phone1"):
            break
        host = node.host()
        host.repair()
        check(node, host)
        outcomes.add(frozenset(host.specs.records))
        assert not isinstance(prepare(node, host, "a", "phone1"), Conflict)
        assert isinstance(prepare(node, host, "b", "phone1"), Conflict)
        check(node, host)
        assert set(host.specs.records) == {"other", "a"}
    else:
        pytest.fail("never completed")
    assert outcomes == {frozenset({"other"})}  # the renaming of the spec is the last access
    assert step > 5


def test_a_prepare_that_is_killed_at_any_step_can_be_unprepared_by_a_successor(
    tmp_path: Path, processes: ClaimProcesses
) -> None:
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        prepare(node, node.host(), "other", "phone2")
        if not processes.killed_at(step, node, "prepare", "a", "phone1"):
            break
        host = node.host()  # without a repair: the kubelet may be faster
        host.unprepare("a")
        host.repair()
        assert set(host.specs.records) == {"other"}
        check(node, host)


def test_another_claim_gets_the_device_of_a_prepare_that_was_killed(tmp_path: Path, processes: ClaimProcesses) -> None:
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        if not processes.killed_at(step, node, "prepare", "a", "phone1"):
            break
        host = node.host()
        result = prepare(node, host, "b", "phone1")
        assert isinstance(result, Conflict) == (set(host.specs.records) == {"a"})
        host.repair()
        check(node, host)


def test_an_unprepare_that_is_killed_at_any_step_can_be_repeated(tmp_path: Path, processes: ClaimProcesses) -> None:
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        host = node.host()
        prepare(node, host, "other", "phone2")
        prepare(node, host, "a", "phone1")
        if not processes.killed_at(step, node, "unprepare", "a"):
            break
        host = node.host()
        host.repair()
        check(node, host)
        host.unprepare("a")
        check(node, host)
        assert set(host.specs.records) == {"other"}
    else:
        pytest.fail("never completed")
    assert step > 3


class Step(NamedTuple):
    """What an operation uses: one of the two drivers, and the devices that each claim has according to the model."""

    node: Node
    host: ClaimHost
    model: dict[str, frozenset[str]]
    source: random.Random
    processes: ClaimProcesses

    def claim(self) -> tuple[str, tuple[str, ...]]:
        """Return the UID of a claim and devices: often those that it has."""
        uid = self.source.choice("abcdef")
        ids = tuple(sorted(self.source.sample(self.node.backend.ids, self.source.choice((1, 1, 2)))))
        return uid, tuple(sorted(self.model[uid])) if uid in self.model and self.source.random() < 0.5 else ids

    def taken(self, uid: str, ids: tuple[str, ...]) -> bool:
        """Return whether another claim has one of the devices."""
        return any(not have.isdisjoint(ids) for other, have in self.model.items() if other != uid)


def prepares(step: Step) -> None:
    uid, ids = step.claim()
    result = prepare(step.node, step.host, uid, *ids)
    if isinstance(result, Conflict):
        assert step.taken(uid, ids)
        if uid in step.model and step.model[uid] != frozenset(ids):
            del step.model[uid]  # its former allocation was released
    else:
        assert not step.taken(uid, ids)
        step.model[uid] = frozenset(ids)


def test_a_restore_that_is_killed_at_any_step_can_be_repeated(tmp_path: Path, processes: ClaimProcesses) -> None:
    """Both the process that prepares a claim and its successor are killed."""
    source = random.Random(1)  # noqa: S311 - repeatable
    for step in steps(60):
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        prepare(node, node.host(), "other", "phone2")
        processes.killed_at(source.randint(5, 40), node, "prepare", "a", "phone1")
        if not processes.killed_at(step, node, "repair"):
            break
        host = node.host()
        host.repair()
        check(node, host)
        assert "other" in host.specs.records


def test_an_error_is_not_a_crash(node: Node, processes: ClaimProcesses) -> None:
    """The child reports it: the tests above would otherwise not notice errors."""
    node.backend.fail = {"prepare"}
    with pytest.raises(AssertionError):
        processes.killed_at(1000, node, "prepare", "a", "phone1")
