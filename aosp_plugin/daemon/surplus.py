"""Reports to the backends which of their surplus phones are allocated, so that they remove the free ones."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from aosp_plugin.backend import SURPLUS_INTERVAL, Allocated
from aosp_plugin.framework.podresources_client import MAX_AGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.framework.podresources_client import PodResources


async def report_allocations(
    backends: Mapping[str, BinderBackend], pod_resources: PodResources, interval: float = SURPLUS_INTERVAL
) -> None:
    """Ask the kubelet every ``interval`` seconds, while there are surplus phones. Runs until it is cancelled.

    A kubelet that has listed no pod since it started is not believed: its pods may run, and it may not know them yet.
    """
    while True:
        for name, backend in backends.items():
            if backend.has_surplus:
                allocations = await pod_resources.current()
                known = not allocations.problem and allocations.pods_known
                asked = time.monotonic() - MAX_AGE
                ids = frozenset(allocations.owners.get(name, {}))
                backend.set_allocated(Allocated(ids, asked) if known else None)
        await asyncio.sleep(interval)
