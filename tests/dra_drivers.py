"""A DRA driver's kubelet side with a scripted handler, for tests against the stand-in kubelet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, cast

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.dra.claim_records import ClaimReference
from aosp_plugin.framework.dra.claims import Claims, DeviceHealth
from aosp_plugin.framework.dra.kubelet_service import KubeletService
from aosp_plugin.framework.file_events import FileEvents
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Stop, Timings
from kubelet_standin import DraClaim, DraKubelet, DraPod, DraTimings
from tests.support import PATIENCE, RESOURCE, reported

DRIVER = "phone.example.com"

FAST_KUBELET = DraTimings(reconcile=0.01, health_retry=0.02, first_retry=0.02, last_retry=0.05)
"""A kubelet that does at once what a kubelet does periodically."""

PATIENT = Timings(patience=30.0, stop=0.8)
"""A driver that does not give up its socket in a test."""

HASTY = Timings(patience=0.2, stop=0.8)
"""A driver that soon gives up a socket that is not registered."""


class Handler:
    """Prepares each claim with one device of its name, in place of ``Claims``; tests replace ``hook``."""

    is_served_elsewhere = False

    def __init__(self) -> None:
        self.prepared: list[str] = []
        """Names of the claims, one for each time that the preparation has ended."""
        self.unprepared: list[str] = []
        self.ended = asyncio.Event()
        """Set when a preparation has ended."""
        self.seconds: list[float] = []
        """The time that was given for each claim."""
        self.hook: Callable[[], object] = lambda: None
        """Called, and awaited if it returns an awaitable, before each claim is handled."""
        self.devices: Sequence[DeviceHealth] = ()
        self.changed = asyncio.Event()

    async def prepare(self, reference: ClaimReference, seconds: float) -> Sequence[pb.Device]:
        """Prepare a claim."""
        await self._begin(seconds)
        self.prepared.append(reference.name)
        self.ended.set()
        return [
            pb.Device(
                request_names=["phone"],
                pool_name="node/00000",
                device_name=reference.name,
                cdi_device_ids=[f"example.com/phone={reference.uid}"],
            )
        ]

    async def unprepare(self, reference: ClaimReference, seconds: float) -> None:
        """Unprepare a claim."""
        await self._begin(seconds)
        self.unprepared.append(reference.name)

    def health(self) -> tuple[Sequence[DeviceHealth], Sequence[asyncio.Event]]:
        """Return what ``report`` has set."""
        return self.devices, (self.changed,)

    def report(self, *devices: DeviceHealth) -> None:
        """Change the health of the prepared devices."""
        self.devices = devices
        self.changed.set()
        self.changed = asyncio.Event()

    async def _begin(self, seconds: float) -> None:
        self.seconds.append(seconds)
        result = self.hook()
        if asyncio.isfuture(result) or asyncio.iscoroutine(result):
            await result


class Driver(NamedTuple):
    """A running driver."""

    service: KubeletService
    handler: Handler
    metrics: Metrics


@contextlib.asynccontextmanager
async def running_driver(directory: str, *, name: str = DRIVER, timings: Timings = PATIENT) -> AsyncIterator[Driver]:
    """Run a driver inside the context."""
    files = FileEvents(timings)
    stop, handler, metrics = Stop(timings), Handler(), Metrics()
    service = KubeletService(
        name,
        RESOURCE,
        directory,
        cast("Claims", handler),
        files=files.subscribe(),
        stop=stop,
        runtime=Runtime(metrics, timings=timings),
    )
    running = asyncio.create_task(service.run())
    try:
        yield Driver(service, handler, metrics)
    finally:
        stop.request()
        await running
        await service.close()
        files.close()


async def connected(kubelet: DraKubelet, driver: Driver) -> None:
    """Wait until the kubelet has registered the driver's current socket, and the driver knows."""
    await kubelet.wait_for(lambda k: k.connected(DRIVER) and driver.service.registered, PATIENCE)
    assert reported(driver.service) == []


def pod(name: str, *claims: str) -> DraPod:
    """Return a pod with claims of the driver; the UID of a claim is ``uid-NAME``."""
    return DraPod(name, tuple(DraClaim(claim, f"uid-{claim}", (DRIVER,)) for claim in claims or (name,)))
