"""Creates pods, and records when the scheduler has bound each of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from aosp_plugin.framework.apiserver.protocol import ApiError
from tests.e2e.common.report import say
from tests.e2e.scheduler import objects

if TYPE_CHECKING:
    from types import TracebackType

    from aosp_plugin.framework.apiserver.client import ApiClient
    from tests.e2e.scheduler.objects import Variant

_TOGETHER: Final = 8
_REPORT: Final = 10.0
"""Seconds between lines about the progress."""


def pods_path(namespace: str) -> str:
    """Return the path of the pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"


class Burst(NamedTuple):
    """Times of pods that were created at once, in seconds since the first request."""

    created: float
    """When the last pod was created."""
    bound: list[float]
    """When each pod was bound, in ascending order."""
    latencies: list[float]
    """From the request that created a pod until it was bound."""


class Bindings:
    """Watches the pods of a namespace; an async context manager."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        """Entering the context begins the watch."""
        self.times: dict[str, float] = {}
        """When each pod was seen to be bound, by its name; a monotonic clock."""
        self._client = client
        self._path = pods_path(namespace)
        self._changed = asyncio.Condition()
        self._tasks = asyncio.TaskGroup()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to watch."""
        await self._tasks.__aenter__()
        self._task = self._tasks.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch."""
        assert self._task is not None
        self._task.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def wait(self, name: str) -> float:
        """Wait until a pod is bound, and return the time."""
        async with self._changed:
            await self._changed.wait_for(lambda: name in self.times)
        return self.times[name]

    async def wait_count(self, count: int) -> None:
        """Wait until a number of pods is bound."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.times) >= count)

    async def _watch(self) -> None:
        while True:
            # The API server ends the watch of a slow client without an error, and each watch after some minutes.
            with contextlib.suppress(ApiError):
                listed = await self._client.list(self._path)
                for pod in listed.items:
                    await self._seen(pod)
                version = listed.resource_version
                async with contextlib.aclosing(self._client.watch(self._path, resource_version=version)) as events:
                    async for event in events:
                        if event.type != "BOOKMARK":
                            await self._seen(event.object)

    async def _seen(self, pod: dict[str, object]) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        assert isinstance(metadata, dict)
        assert isinstance(spec, dict)
        if spec.get("nodeName") and metadata["name"] not in self.times:
            async with self._changed:
                self.times[metadata["name"]] = time.monotonic()
                self._changed.notify_all()


async def one_at_a_time(
    client: ApiClient, variant: Variant, bindings: Bindings, prefix: str, count: int
) -> list[float]:
    """Create pods, each after the previous one is bound, and return the latencies in seconds."""
    latencies = []
    for number in range(count):
        name = f"{prefix}-{number}"
        started = time.monotonic()
        await client.create(pods_path(objects.NAMESPACE), objects.pod(variant, name))
        latencies.append(await bindings.wait(name) - started)
    return latencies


async def at_once(client: ApiClient, variant: Variant, bindings: Bindings, count: int, limit: float) -> Burst:
    """Create pods as fast as the API server accepts them, and wait until all are bound or a time limit is reached."""
    before, started = set(bindings.times), time.monotonic()
    requested: dict[str, float] = {}
    semaphore = asyncio.Semaphore(_TOGETHER)

    async def create(name: str) -> None:
        async with semaphore:
            requested[name] = time.monotonic()
            await client.create(pods_path(objects.NAMESPACE), objects.pod(variant, name))

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(create(f"burst-{number}"))
    created = time.monotonic() - started
    await _wait_all(bindings, len(before) + count, started + limit, len(before))
    times = {name: at for name, at in bindings.times.items() if name not in before}
    bound = sorted(at - started for at in times.values())
    latencies = [at - requested[name] for name, at in times.items()]
    return Burst(created, bound, latencies)


async def _wait_all(bindings: Bindings, count: int, deadline: float, before: int) -> None:
    """Wait until pods are bound, and report the progress."""
    while len(bindings.times) < count and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_REPORT, max(0.1, deadline - time.monotonic()))):
                await bindings.wait_count(count)
        say(f"#   {len(bindings.times) - before:,} of {count - before:,} pods are bound")
