"""A process of a DRA driver that is killed at any step: nothing is lost, nothing left, and no device given twice.

A forked child runs the call, and ends without any cleanup before a chosen access to a file; its successor is a
``ClaimHost`` of this process. A step is each opening, renaming or removal of a file, as the audit events of Python
report it.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from aosp_plugin.framework.dra.claim_host import Conflict
from aosp_plugin.framework.errors import PluginError
from tests.claims import Node, make_node, prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aosp_plugin.framework.dra.claim_host import ClaimHost

KILLED, DONE, FAILED = 17, 0, 1
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.listdir", "os.scandir"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


def killed_at(step: int, root: Path, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that is killed before its access ``step`` below ``root``; return whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child of a process with threads
        pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in {KILLED, DONE}, status
        return status == KILLED
    steps = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(str(root)) and next(steps) == step:
            os._exit(KILLED)

    try:
        sys.addaudithook(hook)
        action()
    except BaseException:  # noqa: BLE001 - the child ends here
        os._exit(FAILED)
    os._exit(DONE)


def steps(limit: int = 200) -> range:
    return range(1, limit)


def check(node: Node, host: ClaimHost) -> None:
    """Check that records, specs and devices agree, and that no process has left a temporary file."""
    assert all(record.completed for record in host.records.values())
    ids = [device_id for record in host.records.values() for device_id in record.ids]
    assert len(ids) == len(set(ids))
    assert node.specs == set(host.records)
    assert node.backend.mounted == set(ids)
    assert [path.name for path in node.state.iterdir() if path.name.endswith(".tmp")] == []


def test_a_prepare_that_is_killed_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    outcomes = set()
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        prepare(node, node.host(), "other", "phone2")
        if not killed_at(step, node.root, lambda node=node: prepare(node, node.host(), "a", "phone1")):  # type: ignore[misc]
            break
        host = node.host()
        host.repair(rewrite=True)
        check(node, host)
        outcomes.add(frozenset(host.records))
        assert not isinstance(prepare(node, host, "a", "phone1"), Conflict)
        assert isinstance(prepare(node, host, "b", "phone1"), Conflict)
        check(node, host)
        assert set(host.records) == {"other", "a"}
    else:
        pytest.fail("never completed")
    assert outcomes == {frozenset({"other"})}  # the checkpoint is the last access
    assert step > 9


def test_a_prepare_that_is_killed_at_any_step_can_be_unprepared_by_a_successor(tmp_path: Path) -> None:
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        prepare(node, node.host(), "other", "phone2")
        if not killed_at(step, node.root, lambda node=node: prepare(node, node.host(), "a", "phone1")):  # type: ignore[misc]
            break
        host = node.host()  # without a repair: the kubelet may be faster
        host.unprepare("a")
        host.repair(rewrite=True)
        assert set(host.records) == {"other"}
        check(node, host)


def test_another_claim_gets_the_device_of_a_prepare_that_was_killed(tmp_path: Path) -> None:
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        if not killed_at(step, node.root, lambda node=node: prepare(node, node.host(), "a", "phone1")):  # type: ignore[misc]
            break
        host = node.host()
        result = prepare(node, host, "b", "phone1")
        assert isinstance(result, Conflict) == (set(host.records) == {"a"})
        host.repair(rewrite=True)
        check(node, host)


def test_an_unprepare_that_is_killed_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    for step in steps():
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        host = node.host()
        prepare(node, host, "other", "phone2")
        prepare(node, host, "a", "phone1")
        if not killed_at(step, node.root, lambda node=node: node.host().unprepare("a")):  # type: ignore[misc]
            break
        host = node.host()
        host.repair(rewrite=True)
        check(node, host)
        host.unprepare("a")
        check(node, host)
        assert set(host.records) == {"other"}
    else:
        pytest.fail("never completed")
    assert step > 8


@pytest.mark.parametrize("seed", range(8))
def test_random_operations_faults_and_kills_agree_with_a_model(tmp_path: Path, seed: int) -> None:
    """125 operations for each seed, by two processes of the driver, one of which may be killed in any of them."""
    random_source = random.Random(seed)  # noqa: S311 - repeatable
    node = make_node(tmp_path)
    model: dict[str, frozenset[str]] = {}
    hosts = [node.host(), node.host()]
    for _ in range(125):
        host = random_source.choice(hosts)
        operation = random_source.choice(OPERATIONS)
        if operation is loses_checkpoint:  # a process with an outdated memory would recover what it remembers
            for each in hosts:
                each.completed("")
        operation(node, host, model, random_source)
        if random_source.random() < 0.1:
            hosts[random_source.randrange(2)] = node.host()
        survivor = random_source.choice(hosts)
        survivor.repair(rewrite=random_source.random() < 0.5)
        assert {uid: frozenset(record.ids) for uid, record in survivor.records.items()} == model, operation.__name__
        check(node, survivor)
    for uid in list(model):
        hosts[0].unprepare(uid)
    assert node.backend.mounted == node.specs == set()


def _claim(node: Node, model: dict[str, frozenset[str]], source: random.Random) -> tuple[str, tuple[str, ...]]:
    uid = source.choice("abcdef")
    ids = tuple(sorted(source.sample(node.backend.ids, source.choice((1, 1, 2)))))
    return uid, tuple(sorted(model[uid])) if uid in model and source.random() < 0.5 else ids


def _taken(model: dict[str, frozenset[str]], uid: str, ids: tuple[str, ...]) -> bool:
    return any(not have.isdisjoint(ids) for other, have in model.items() if other != uid)


def prepares(node: Node, host: ClaimHost, model: dict[str, frozenset[str]], source: random.Random) -> None:
    uid, ids = _claim(node, model, source)
    result = prepare(node, host, uid, *ids)
    if isinstance(result, Conflict):
        assert _taken(model, uid, ids)
        if uid in model and model[uid] != frozenset(ids):
            del model[uid]  # its former allocation was released
    else:
        assert not _taken(model, uid, ids)
        model[uid] = frozenset(ids)


def unprepares(_node: Node, host: ClaimHost, model: dict[str, frozenset[str]], source: random.Random) -> None:
    uid = source.choice("abcdef")
    assert host.unprepare(uid) == (uid in model)
    model.pop(uid, None)


def is_killed_in_prepare(node: Node, host: ClaimHost, model: dict[str, frozenset[str]], source: random.Random) -> None:
    uid, ids = _claim(node, model, source)
    step = source.randint(1, 40)
    before = model.get(uid)
    killed = killed_at(step, node.root, lambda: prepare(node, node.host(), uid, *ids))
    host.repair()
    record = host.records.get(uid)
    after = None if record is None else frozenset(record.ids)
    assert after in {before, None, frozenset(ids)}
    if not killed and not _taken(model, uid, ids):
        assert after == frozenset(ids)
    model.pop(uid, None)
    if after is not None:
        model[uid] = after


def is_killed_in_unprepare(
    node: Node, host: ClaimHost, model: dict[str, frozenset[str]], source: random.Random
) -> None:
    uid = source.choice("abcdef")
    killed = killed_at(source.randint(1, 12), node.root, lambda: node.host().unprepare(uid))
    host.repair()
    assert killed or uid not in host.records
    if uid not in host.records:
        model.pop(uid, None)


def fails(node: Node, host: ClaimHost, model: dict[str, frozenset[str]], source: random.Random) -> None:
    uid, ids = _claim(node, model, source)
    node.backend.fail = {source.choice(("prepare", "unprepare"))}
    try:
        if uid not in model and not _taken(model, uid, ids):
            with pytest.raises(OSError, match="fails"):
                prepare(node, host, uid, *ids)
    finally:
        node.backend.fail = set()


def loses_checkpoint(node: Node, _host: ClaimHost, _model: dict[str, frozenset[str]], source: random.Random) -> None:
    if source.random() < 0.5:
        node.checkpoint.unlink(missing_ok=True)
    elif node.checkpoint.exists():
        content = bytearray(node.checkpoint.read_bytes())
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        node.checkpoint.write_bytes(content)


def loses_specs(node: Node, _host: ClaimHost, model: dict[str, frozenset[str]], source: random.Random) -> None:
    for uid in source.sample(sorted(model), source.randint(0, len(model))):
        node.spec(uid).unlink()


def loses_devices(node: Node, _host: ClaimHost, model: dict[str, frozenset[str]], source: random.Random) -> None:
    for device_id in sorted(node.backend.mounted):
        if source.random() < 0.5:
            (node.backend.directory / device_id).rmdir()


OPERATIONS = (
    [prepares] * 4
    + [unprepares] * 2
    + [is_killed_in_prepare] * 2
    + [
        is_killed_in_unprepare,
        fails,
        loses_checkpoint,
        loses_specs,
        loses_devices,
    ]
)


def test_a_restore_that_is_killed_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    """Both the process that prepares a claim and its successor are killed."""
    source = random.Random(1)  # noqa: S311 - repeatable
    for step in steps(60):
        (tmp_path / str(step)).mkdir()
        node = make_node(tmp_path / str(step))
        prepare(node, node.host(), "other", "phone2")
        killed_at(source.randint(5, 40), node.root, lambda node=node: prepare(node, node.host(), "a", "phone1"))  # type: ignore[misc]
        if not killed_at(step, node.root, lambda node=node: node.host().repair(rewrite=True)):  # type: ignore[misc]
            break
        host = node.host()
        host.repair(rewrite=True)
        check(node, host)
        assert "other" in host.records


def test_an_error_is_not_a_crash(node: Node) -> None:
    """The child reports it: the tests above would otherwise not notice errors."""
    node.backend.fail = {"prepare"}
    with pytest.raises(AssertionError):
        killed_at(1000, node.root, lambda: prepare(node, node.host(), "a", "phone1"))
    with pytest.raises(PluginError):
        raise PluginError
