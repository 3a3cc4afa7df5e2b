"""Asks the kubelet what it has given away or offers, as far as backends and drivers have to know it.

The backends remove surplus phones that are free, and offer no device that a pod has through the other API, after a
change of ``api``. A DRA driver offers no device that a device plugin offers on the same node: nodes move from one API
to the other one by one, and a mistake in their labels runs both on a node, where the scheduler would give each device
away twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.offered_phones import Allocated
from aosp_plugin.config.values import Api
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.timings import DEFAULT

if TYPE_CHECKING:
    from aosp_plugin.framework.dra.driver import DraDriver

LONGEST_PAUSE = 30
"""Between two questions to a kubelet that does not answer, at the longest, as a multiple of ``Timings.allocations``."""


async def report_allocations(
    backends: Mapping[str, BinderBackend],
    pod_resources: PodResources,
    rescan: Callable[[str], None],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Call ``report_once`` every ``Timings.allocations`` until cancelled, less often while it fails."""
    pause = DEFAULT.allocations
    while True:
        answered = await report_once(backends, pod_resources, rescan)
        pause = DEFAULT.allocations if answered else min(2 * pause, LONGEST_PAUSE * DEFAULT.allocations)
        await sleep(pause)


async def report_once(
    backends: Mapping[str, BinderBackend], pod_resources: PodResources, rescan: Callable[[str], None]
) -> bool:
    """Ask the kubelet, unless no backend has to know, and call ``rescan`` for each resource whose devices change by it.

    Returns whether it has answered, or need not. A kubelet that has listed no pod but static ones since it started is
    not believed: its pods may run, and it may not know them yet. Without the kubelet's socket, no device counts as
    held.
    """
    concerned = {name: backend for name, backend in backends.items() if backend.has_surplus or backend.holds_undecided}
    if not concerned:
        return True
    asked = time.monotonic()
    allocations = await pod_resources.query()
    known = not allocations.problem and allocations.pods_known
    for name, backend in concerned.items():
        if backend.has_surplus:
            ids = frozenset(allocations.owners.get(name, {}))
            backend.set_allocated(Allocated(ids, asked) if known else None)
        if known or not pod_resources.enabled:
            of_other_api = allocations.by_plugin if backend.api is Api.DRA else allocations.by_claim
            if backend.set_held(of_other_api.get(name, ())):
                rescan(name)
    return known or not pod_resources.enabled


async def yield_to_device_plugins(
    drivers: Iterable[DraDriver], pod_resources: PodResources, interval: float = DEFAULT.allocations
) -> None:
    """Ask the kubelet every ``interval`` seconds for device plugins of the drivers' resources, until cancelled.

    While the kubelet does not answer, nothing changes.
    """
    drivers = list(drivers)
    while drivers:
        allocatable = await pod_resources.allocatable()
        if not allocatable.problem:
            for driver in drivers:
                count = len(allocatable.devices.get(driver.resource_name, ()))
                driver.withhold(
                    f"a device plugin offers {count} devices of {driver.resource_name} on this node" if count else ""
                )
        await asyncio.sleep(interval)
