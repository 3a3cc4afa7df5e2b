"""The ages of allocations are recorded by a task, whether anybody asks for the status or not."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.report.observation import Observation
from tests.support import RESOURCE, Clock, until

PHONE = Owner("games", "phone-1", "android")


class Node:
    """The observation of one resource whose allocations a test sets, with a clock that it moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        backend: Any = SimpleNamespace(api=None)
        self.server: Any = SimpleNamespace(resource_name=RESOURCE, inventory=Inventory())
        pod_resources: Any = SimpleNamespace(latest=Allocations("not answered"), answered=asyncio.Event())
        self.observation = Observation(
            {RESOURCE: backend},
            lambda _: FoundDevices(),
            pod_resources,
            Conditions(),
            polling=bool,
            clock=self.clock,
        )
        self.pod_resources = pod_resources

    def answer(self, *ids: str) -> None:
        """Let the kubelet answer that a pod has these devices."""
        self.pod_resources.latest = Allocations(owners={RESOURCE: dict.fromkeys(ids, (PHONE,))})
        self.pod_resources.answered.set()

    def fail(self) -> None:
        """Let the kubelet answer no more."""
        self.pod_resources.latest = Allocations("no answer")
        self.pod_resources.answered.set()

    def recording(self) -> contextlib.AbstractAsyncContextManager[asyncio.Task[None]]:
        """Record inside the context."""
        return background_task(self.observation.run([self.server]))

    def ages(self) -> dict[str, float]:
        """Return when each device was allocated, as a request for the status gets it."""
        return dict(self.observation.status(self.server).since)


async def test_an_allocation_has_its_age_although_nobody_has_asked_for_the_status() -> None:
    node = Node()
    async with node.recording():
        await until(lambda: not node.pod_resources.answered.is_set())
        node.clock.now = 200.0
        node.answer("phone0")
        await until(lambda: not node.pod_resources.answered.is_set())
        node.clock.now = 3800.0
        assert node.ages() == {"phone0": 200.0}


async def test_pods_have_what_they_had_while_the_kubelet_does_not_answer() -> None:
    node = Node()
    node.answer("phone0")
    async with node.recording():
        await until(lambda: not node.pod_resources.answered.is_set())
        node.clock.now = 200.0
        node.fail()
        await until(lambda: not node.pod_resources.answered.is_set())
        node.answer("phone0")
        await until(lambda: not node.pod_resources.answered.is_set())
        assert node.ages() == {"phone0": 100.0}


def test_a_request_for_the_status_records_nothing() -> None:
    node = Node()
    node.answer("phone0")
    assert node.ages() == {}
