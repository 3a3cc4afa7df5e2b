"""The pods of ``demo --stay``: a scheduler for one node, whose pods come and go at random, but repeatably."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from aosp_plugin.cli.demo.phones import RESOURCE
from kubelet_standin import AdmissionError, Container, Pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubelet_standin import Kubelet

NAMESPACES = ("games", "tests", "streaming")
CONTAINER = "android"
INITIAL_LOAD = 0.6
"""The part of the phones that have a pod at the start. Then it moves around this value."""
MEAN_PAUSE = 1.5
"""Seconds between two changes, on average."""


class Tenants:
    """Pods with one phone each."""

    def __init__(
        self, kubelet: Kubelet, namespaces: dict[str, str], phones: int, seed: int, report: Callable[[str], None]
    ) -> None:
        """Prepare pods for ``phones`` phones. ``namespaces`` is filled with the namespace of each pod.

        ``report`` is called with what the kubelet does not report itself.
        """
        self.lock = asyncio.Lock()
        """Held while a pod is admitted. A kubelet is not restarted meanwhile."""
        self.started = 0
        """The number of pods that were ever admitted."""
        self._kubelet = kubelet
        self._namespaces = namespaces
        self._phones = phones
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._report = report
        self._pods: list[Pod] = []
        self._waiting: Pod | None = None

    async def start(self) -> None:
        """Admit the pods that run from the beginning."""
        for _ in range(int(self._phones * INITIAL_LOAD)):
            await self._admit(self._new_pod())

    async def run(self) -> None:
        """Let pods come and go until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / MEAN_PAUSE))
            load = len(self._pods) / self._phones
            comes = self._rng.random() < 0.5 + INITIAL_LOAD - load
            async with self.lock:
                if not self._kubelet.running:
                    continue
                if comes or not self._pods:
                    await self._schedule()
                else:
                    await self._kubelet.finish(self._pods.pop(self._rng.randrange(len(self._pods))))

    async def _schedule(self) -> None:
        """Start a pod, or let it wait: the scheduler compares the requests of the pods with what is allocatable."""
        pod = self._waiting or self._new_pod()
        if len(self._pods) < self._kubelet.resource(RESOURCE).allocatable:
            self._waiting = None
            await self._admit(pod)
        elif self._waiting is None:
            self._waiting = pod
            self._report(f"{self._namespaces[pod.name]}/{pod.name} waits: Insufficient {RESOURCE}")

    async def _admit(self, pod: Pod) -> None:
        try:
            await self._kubelet.admit(pod)
            await self._kubelet.start_container(pod, CONTAINER)
        except AdmissionError:
            return  # the kubelet has reported it
        self.started += 1
        self._pods.append(pod)

    def _new_pod(self) -> Pod:
        pod = Pod(f"phone-{self._rng.randrange(16**5):05x}", [Container(CONTAINER, {RESOURCE: 1})])
        self._namespaces[pod.name] = self._rng.choice(NAMESPACES)
        return pod
