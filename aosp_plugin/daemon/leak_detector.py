"""Looking for leaked nodes now and then, and telling of each once. How a leak is found is ``operate.leaks``' matter."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from aosp_plugin.daemon import leaks
from aosp_plugin.errors import HostError
from aosp_plugin.framework.aio import run_in_daemon_thread, wait_any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from aosp_plugin.daemon.assembly import ResourceRuntime
    from aosp_plugin.daemon.leaks import Holder, Leaks

LOG = logging.getLogger(__name__)


class LeakDetector:
    """The leaks of all resources as of the last round."""

    def __init__(self, served: Sequence[ResourceRuntime], kubelet_dir: str, interval: float) -> None:
        """``interval`` is in seconds; 0: only on request."""
        self._served = served
        self._checkpoint = os.path.join(kubelet_dir, leaks.CHECKPOINT)
        self._interval = interval
        self._told: dict[str, Sequence[Holder]] = {}
        self._blind = False
        self.latest: Mapping[str, Leaks] = {}
        """By resource; empty before the first round."""

    async def run(self, stop: asyncio.Event) -> None:
        """Look at every interval until ``stop`` is set."""
        while self._interval and not await wait_any(stop, timeout=self._interval):
            await self.look()

    async def look(self) -> Mapping[str, Leaks]:
        """Look once, log what is new, and return what there is."""
        self.latest = await run_in_daemon_thread(self._find, "leaks")
        for resource, found in self.latest.items():
            self._tell(resource, found)
        return self.latest

    def _find(self) -> dict[str, Leaks]:
        return {one.name: self._find_of(one) for one in self._served}

    def _find_of(self, one: ResourceRuntime) -> Leaks:
        nodes = one.backend.nodes()

        def owners() -> dict[str, frozenset[str]] | None:
            given = self._owners(one.name)
            if given is None:
                return None
            pods = {
                device_id: frozenset().union(*(given.get(one_id, ()) for one_id in one.backend.ids(device_id)))
                for device_id in nodes
            }
            return {node.name: pods[device_id] for device_id, own in nodes.items() for node in own}

        return leaks.find([node for own in nodes.values() for node in own], owners)

    def _owners(self, resource: str) -> dict[str, frozenset[str]] | None:
        """Return the pods that have each device by the kubelet's checkpoint; None where it can't be read."""
        try:
            with open(self._checkpoint, "rb") as file:
                return leaks.owners_from(file.read(), [resource])
        except (OSError, HostError) as error:
            LOG.debug(
                "it is not known which pods have which devices", extra={"resource": resource, "error": str(error)}
            )
            return None

    def _tell(self, resource: str, found: Leaks) -> None:
        news = leaks.changes(self._told.get(resource, ()), found)
        self._told[resource] = news.told
        for holder in news.appeared:
            LOG.warning("a process holds a node of a pod that it is not in", extra=_described(resource, holder))
        for holder in news.gone:
            LOG.info("a process no longer holds a node", extra=_described(resource, holder))
        blind = not found.whole or found.unreadable > 0
        if blind and not self._blind:
            LOG.warning(
                "leaks may be overlooked, as the host's processes can't all be seen: it takes hostPID, SYS_PTRACE and "
                "DAC_READ_SEARCH",
                extra={"unreadable": found.unreadable},
            )
        self._blind = blind


def _described(resource: str, holder: Holder) -> dict[str, object]:
    return {
        "resource": resource,
        "device": holder.node,
        "pid": holder.pid,
        "command": holder.command,
        "container": holder.container,
        "pod_uid": holder.pod_uid,
    }
