"""The ages of allocations are recorded by a task, whether anybody asks for the status or not."""

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

ALLOCATED = Allocations("", {RESOURCE: {"phone0": (Owner("games", "phone-1", "android"),)}})


async def test_an_allocation_has_its_age_although_nobody_has_asked_for_the_status(clock: Clock) -> None:
    """Pods have what they had while the kubelet does not answer."""
    backend: Any = SimpleNamespace(api=None)
    server: Any = SimpleNamespace(resource_name=RESOURCE, inventory=Inventory())
    kubelet: Any = SimpleNamespace(latest=Allocations("not answered"), answered=asyncio.Event())
    observation = Observation(
        {RESOURCE: backend}, lambda _: FoundDevices(), kubelet, Conditions(), polling=bool, clock=clock
    )
    async with background_task(observation.run([server])):
        assert observation.status(server).since == {}
        for clock.now, kubelet.latest in ((100.0, ALLOCATED), (200.0, Allocations("no answer")), (3800.0, ALLOCATED)):
            kubelet.answered.set()
            await until(lambda: not kubelet.answered.is_set())
        assert observation.status(server).since == {"phone0": 100.0}
