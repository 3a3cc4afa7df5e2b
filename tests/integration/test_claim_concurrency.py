"""Many pods at once, against two processes of a driver: no device is in two pods, and nothing is left at the end."""

import asyncio
import random
from pathlib import Path

import pytest

from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError
from aosp_plugin.framework.dra.claims import Claims
from tests.claims import PATIENCE, TIMINGS, Node, make_node, reference, unprepare

PODS, AT_ONCE = 100, 12


class Cluster:
    """A scheduler and a kubelet with faults, and the pods that have a device."""

    def __init__(self, node: Node, processes: list[Claims], rng: random.Random) -> None:
        self.node = node
        self.processes = processes
        self.rng = rng
        self.free = [f"phone{number}" for number in range(8)]
        self.released = asyncio.Event()
        self.holders: dict[str, str] = {}
        """UID of the pod whose containers run with a device."""
        self.started = 0

    async def run(self, pods: range) -> None:
        """Run pods, one after another."""
        for number in pods:
            await self._run_pod(f"u{number}")

    async def _run_pod(self, uid: str) -> None:
        ids = await self._allocate()
        self.node.source.add(uid, *ids)
        if await self._prepared(uid):
            for device_id in ids:
                assert self.holders.setdefault(device_id, uid) == uid
            self.started += 1
            await asyncio.sleep(self.rng.random() * 0.01)
        ending = self.rng.choice(("normal", "forced", "forgotten"))
        if ending != "normal":  # the claim and its devices are free while the containers end
            self.node.source.remove(uid)
            self._release(ids)
            await asyncio.sleep(self.rng.random() * 0.01)
        for device_id in ids:
            if self.holders.get(device_id) == uid:
                del self.holders[device_id]
        if ending != "forgotten":  # a kubelet that has lost its records never unprepares the claim
            while (await unprepare(self._any(), uid, seconds=self.rng.choice((0.001, PATIENCE))))[uid]:
                pass
        if ending == "normal":
            self.node.source.remove(uid)
            self._release(ids)

    async def _prepared(self, uid: str) -> bool:
        """Prepare a claim as a kubelet does, which may give up and ask again; return whether it was."""
        for _ in range(8):
            if self.rng.random() < 0.2:
                self.node.source.errors.append(
                    self.rng.choice((ApiUnavailableError(None, "away"), ApiError(None, "429", status=429)))
                )
            seconds = self.rng.choice((0.001, 0.02, PATIENCE, PATIENCE))
            task = asyncio.create_task(self._any().prepare(reference(uid), seconds))
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.random() * 0.01)
                task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                return True
        return False

    async def _allocate(self) -> list[str]:
        count = self.rng.choice((1, 1, 1, 2))
        while len(self.free) < count:
            self.released.clear()
            await self.released.wait()
        ids = self.rng.sample(self.free, count)
        self.free = [device_id for device_id in self.free if device_id not in ids]
        return ids

    def _release(self, ids: list[str]) -> None:
        self.free += ids
        self.released.set()

    def _any(self) -> Claims:
        return self.rng.choice(self.processes)


@pytest.mark.parametrize("seed", range(3))
async def test_no_device_is_in_two_pods_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    node = make_node(tmp_path)
    timings = TIMINGS._replace(claim_gone=0.02, claim_poll=0.02)
    async with node.claims(timings=timings) as first, node.claims(timings=timings) as second:
        cluster = Cluster(node, [first, second], random.Random(seed))  # noqa: S311 - repeatable
        async with asyncio.TaskGroup() as tasks:
            for start in range(AT_ONCE):
                tasks.create_task(cluster.run(range(start, PODS, AT_ONCE)))
        assert cluster.started > PODS / 2
        await first.repair()  # read what the other process prepared last
        for uid in list(first.prepared):
            await first.unprepare(reference(uid), PATIENCE)
        await second.repair()
        assert not second.prepared
        assert node.specs == node.backend.mounted == set()
