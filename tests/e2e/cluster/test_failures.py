"""Each fault once, and several at once: phones that no fault has touched run on, and all invariants hold afterwards."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

import pytest

from tests.e2e.cluster import faults, invariants, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.faults import DEPLOYMENT, STATEFUL_SET, World

pytestmark = pytest.mark.usefixtures("three_nodes", "_removed")

_TOGETHER: Final = (
    *(faults.control_plane_is_killed, faults.kubelet_is_killed, faults.plugin_is_killed, faults.devices_vanish),
)
_AFTER_REBOOT: Final = 1.5 * invariants.SETTLE
_EFFECT: Final = 1.0
"""Seconds from the end of the faults to the first check: some have an effect only then."""


@pytest.fixture(scope="module")
def _removed(cluster: Cluster) -> Iterator[None]:
    yield
    phones.remove(cluster, "Deployment", DEPLOYMENT)
    phones.remove(cluster, "StatefulSet", STATEFUL_SET)
    plugin.uninstall(cluster)


def _name(happening: Sequence[Callable[[World], object]]) -> str:
    return "-and-".join(each.__name__ for each in happening)


@pytest.mark.parametrize("happening", [*((fault,) for fault in faults.ALL), _TOGETHER], ids=_name)
def test_other_phones_run_on(
    cluster: Cluster, happening: Sequence[Callable[[World], AbstractContextManager[None]]]
) -> None:
    world = World(cluster)
    seconds = _AFTER_REBOOT if faults.machine_reboots in happening else invariants.SETTLE
    with world.compared():
        before = world.phones()
        with contextlib.ExitStack() as lasting:
            for fault in happening:
                lasting.enter_context(fault(world))
        time.sleep(_EFFECT)
        invariants.settle(cluster, seconds=seconds, tend=world.tend)
        problems = world.problems(before)
    assert not problems, "; ".join(problems)
