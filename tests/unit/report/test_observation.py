"""The ages of allocations are recorded by a task, whether anybody asks for the status or not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.podresources_client import Allocations, Owner
from aosp_plugin.framework.timing import background_task
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
        self.pod_resources = pod_resources
        self.observation = Observation(
            {RESOURCE: backend}, lambda _: FoundDevices(), pod_resources, Conditions(), polling=bool, clock=self.clock
        )

    async def answer(self, *ids: str, problem: str = "") -> None:
        """Let the kubelet answer that a pod has these devices, or not, and wait until that was read."""
        self.pod_resources.latest = Allocations(problem, {RESOURCE: dict.fromkeys(ids, (PHONE,))})
        self.pod_resources.answered.set()
        await until(lambda: not self.pod_resources.answered.is_set())

    def ages(self) -> dict[str, float]:
        """Return when each device was allocated, as a request for the status gets it."""
        return dict(self.observation.status(self.server).since)


async def test_an_allocation_has_its_age_although_nobody_has_asked_for_the_status() -> None:
    """Pods have what they had while the kubelet does not answer."""
    node = Node()
    async with background_task(node.observation.run([node.server])):
        assert node.ages() == {}
        await node.answer("phone0")
        node.clock.now = 200.0
        await node.answer(problem="no answer")
        node.clock.now = 3800.0
        await node.answer("phone0")
        assert node.ages() == {"phone0": 100.0}
