"""Keeps a DRA driver from offering devices that a device plugin offers on the same node.

Nodes move from one API to the other one by one, and a mistake in their labels runs both on a node. The scheduler would
then give each device away twice. The kubelet knows whether a device plugin serves the resource; the DRA driver yields.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aosp_plugin.framework.podresources_client import PodResources

INTERVAL = 10.0
"""Seconds between two questions to the kubelet."""


class Withholding(Protocol):
    """A DRA driver."""

    resource_name: str

    def withhold(self, reason: str) -> None:
        """Publish no devices for this reason; with an empty reason, publish them again."""


async def yield_to_device_plugins(
    drivers: Iterable[Withholding], pod_resources: PodResources, interval: float = INTERVAL
) -> None:
    """Ask the kubelet every ``interval`` seconds for device plugins of the drivers' resources, until cancelled.

    While the kubelet does not answer, nothing changes.
    """
    drivers = list(drivers)
    while drivers:
        allocatable = await pod_resources.allocatable()
        if not allocatable.problem:
            for driver in drivers:
                count = allocatable.devices.get(driver.resource_name, 0)
                driver.withhold(
                    f"a device plugin offers {count} devices of {driver.resource_name} on this node" if count else ""
                )
        await asyncio.sleep(interval)
