"""Reports to the backends which devices are allocated, as far as they have to know it.

They remove surplus phones that are free, and offer no device that a pod has through the other API, after a change of
``api``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from aosp_plugin.backend import SURPLUS_INTERVAL, Allocated
from aosp_plugin.config import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.framework.podresources_client import Allocations, PodResources


async def report_allocations(
    backends: Mapping[str, BinderBackend],
    pod_resources: PodResources,
    rescan: Callable[[str], None],
    interval: float = SURPLUS_INTERVAL,
) -> None:
    """Call ``report_once`` every ``interval`` seconds until cancelled."""
    while True:
        await report_once(backends, pod_resources, rescan)
        await asyncio.sleep(interval)


async def report_once(
    backends: Mapping[str, BinderBackend], pod_resources: PodResources, rescan: Callable[[str], None]
) -> None:
    """Ask the kubelet, unless no backend has to know, and call ``rescan`` for each resource whose devices change by it.

    A kubelet that has listed no pod since it started is not believed: its pods may run, and it may not know them yet.
    Without the kubelet's socket, no device counts as held.
    """
    concerned = {name: backend for name, backend in backends.items() if backend.has_surplus or backend.holds_undecided}
    if not concerned:
        return
    asked = time.monotonic()
    allocations = await pod_resources.query()
    known = not allocations.problem and allocations.pods_known
    for name, backend in concerned.items():
        if backend.has_surplus:
            ids = frozenset(allocations.owners.get(name, {}))
            backend.set_allocated(Allocated(ids, asked) if known else None)
        if known or not pod_resources.enabled:
            held = _held(allocations, name, backend.api)
            if backend.set_held(held):
                rescan(name)


def _held(allocations: Allocations, name: str, api: Api) -> frozenset[str]:
    """Return the devices that pods have through the other API than ``api``."""
    others = allocations.by_plugin if api is Api.DRA else allocations.by_claim
    return others.get(name, frozenset())
