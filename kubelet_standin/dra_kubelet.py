"""The DRA half of the stand-in kubelet: plugin watcher, DRA drivers and the claims of pods, on real unix sockets.

::

    async with DraKubelet(f"{root}/plugins_registry") as kubelet:
        process = await asyncio.create_subprocess_exec("my-driver", "--registry", kubelet.directory)
        await kubelet.wait_for(lambda k: k.connected("gpu.example.com"))
        pod = DraPod("game", (DraClaim("gpu", "uid-1", ("gpu.example.com",)),))
        await kubelet.prepare(pod)
        assert kubelet.cdi_devices(pod)
        await kubelet.unprepare(pod)

Modelled, with the differences between the versions (``KubeletVersion``): the directory ``plugins_registry``, which is
read at the start and followed by inotify; registration with its deadlines, its checks and the pauses after failures;
one connection for each registered socket; several instances of one driver; Prepare and Unprepare with the kubelet's
checks of the answers; claims that pods share; the checkpoint, without which claims are prepared, so that a restarted
kubelet prepares them again where a sandbox is made; pods that wait after a failure, and pods that are gone without
their claims having been unprepared; health streams; ResourceSlices that are deleted when a kubelet starts, and when a
driver is away for too long.

Not modelled: containers and sandboxes, idle connections (closed after 30 minutes), the checkpoint's file, feature gates
but ResourceHealthStatus, ``SkipNodeOperations``, the kubelet's metrics. ``reservedFor`` is not checked.

``seed`` determines everything that is random. ``wait_for`` does not poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kubelet_standin.dra_claims import (
    ClaimDevice,
    ClaimInfo,
    ClaimsError,
    DraClaim,
    DraManager,
    DraPod,
    Fetch,
    devices_of,
)
from kubelet_standin.dra_drivers import Drivers, DriverView, Setup, Wipe
from kubelet_standin.dra_health import HealthCache, HealthView
from kubelet_standin.dra_registration import PluginManager
from kubelet_standin.dra_settings import DraFaults, DraRegistration, DraTimings
from kubelet_standin.events import Event
from kubelet_standin.registry_watcher import RegistryWatcher
from kubelet_standin.versions import NEWEST, KubeletVersion

__all__ = [
    "ClaimDevice",
    "ClaimsError",
    "DraClaim",
    "DraFaults",
    "DraKubelet",
    "DraPod",
    "DraRegistration",
    "DraTimings",
    "DriverView",
    "HealthView",
]


@dataclass(frozen=True)
class _Run:
    """The objects that exist between a start and the next stop."""

    drivers: Drivers
    manager: DraManager
    health: HealthCache
    watcher: RegistryWatcher
    tasks: Sequence[asyncio.Task[None]]


class DraKubelet:
    """A kubelet's dealings with DRA drivers: an async context manager that belongs to one event loop."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        version: KubeletVersion = NEWEST,
        seed: int = 0,
        timings: DraTimings | None = None,
        watch_health: bool | None = None,
        wipe: Wipe | None = None,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Prepare a kubelet for its ``directory`` plugins_registry, which it creates when it starts.

        - ``watch_health``: the feature gate ResourceHealthStatus; None for the default of the version.
        - ``wipe`` deletes the ResourceSlices of a driver on the node, or with an empty name those of all drivers. It is
          called at each start, and when a driver was away for ``timings.wipe`` seconds; again after an error.
        - ``fetch`` returns a claim from the API server, by namespace and name; without it, the pod's claim is taken.
        - ``clock``, in seconds, is that of the health of devices.
        - ``on_event`` is called with each :class:`~kubelet_standin.events.Event`, on the event loop.
        """
        self.directory = os.path.abspath(directory)
        self.version = version
        self.faults = DraFaults()
        self.timings = timings or DraTimings()
        self.calls = 0
        """Number of calls of NodePrepareResources and NodeUnprepareResources."""
        self._watch_health = version.watches_health if watch_health is None else watch_health
        self._wipe = wipe
        self._fetch = fetch
        self._clock = clock
        self._on_event = on_event
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._registrations: list[DraRegistration] = []
        self._registrations_before = 0  # those of the runs before this one
        self._infos: dict[tuple[str, str], ClaimInfo] = {}
        self._pods: dict[str, DraPod] = {}
        self._changed = asyncio.Event()
        self._run: _Run | None = None

    async def __aenter__(self) -> Self:
        """Start the kubelet."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the kubelet."""
        await self.stop()

    async def start(self) -> None:
        """Begin to delete all ResourceSlices of the node, and to register the drivers whose sockets exist.

        Raises RuntimeError if the kubelet already runs.
        """
        if self._run is not None:
            raise RuntimeError("the kubelet already runs")
        self._infos = {key: info.checkpointed() for key, info in self._infos.items()}
        health = HealthCache(self.version, self.timings.health, self._clock)
        setup = Setup(
            self.version, self.timings, self.faults, health, self._watch_health, self._wipe, self._rng, self._emit
        )
        self._registrations_before = len(self._registrations)
        drivers = Drivers(setup)
        plugins = PluginManager(drivers, setup, self._registrations)
        manager = DraManager(drivers, setup, self._infos, self._fetch)
        watcher = RegistryWatcher(self.directory, plugins.appeared, plugins.disappeared)
        tasks = [asyncio.create_task(plugins.run()), asyncio.create_task(self._reconcile_claims(manager))]
        self._run = _Run(drivers, manager, health, watcher, tasks)
        self._emit("kubelet-started", directory=self.directory, version=str(self.version))

    async def stop(self) -> None:
        """Stop as if killed: all connections break. Idempotent."""
        run, self._run = self._run, None
        if run is None:
            return
        run.watcher.close()
        for task in run.tasks:
            task.cancel()
        await asyncio.wait(run.tasks)
        await run.drivers.close()
        self._emit("kubelet-stopped")

    async def restart(self, *, keep_checkpoint: bool = True) -> None:
        """Stop and start again. Which claims are prepared is not in the checkpoint: see ``prepare_again``."""
        await self.stop()
        if not keep_checkpoint:
            self._infos = {}
        await self.start()

    async def prepare_again(self) -> None:
        """Prepare the claims of all pods, which need new sandboxes, as after a reboot. Raises ClaimsError."""
        async with asyncio.TaskGroup() as group:
            for pod in list(self._pods.values()):
                group.create_task(self._running().manager.prepare(pod))

    @property
    def running(self) -> bool:
        """Whether the kubelet is started."""
        return self._run is not None

    @property
    def registrations(self) -> Sequence[DraRegistration]:
        """All attempts to register a socket, across restarts, in the order in which they began."""
        return tuple(self._registrations)

    @property
    def drivers(self) -> Mapping[str, Sequence[DriverView]]:
        """The registered sockets of each driver; empty while stopped."""
        return self._run.drivers.views if self._run is not None else {}

    @property
    def prepared(self) -> frozenset[str]:
        """The UIDs of the claims that the kubelet considers prepared; none after a start."""
        return frozenset(info.claim.uid for info in self._infos.values() if info.prepared)

    @property
    def known_claims(self) -> frozenset[str]:
        """The UIDs of the claims in the checkpoint: those that are to be unprepared some time."""
        return frozenset(info.claim.uid for info in self._infos.values())

    def registered(self, driver: str) -> bool:
        """Whether the kubelet has registered a driver, and has told it so."""
        attempts = self._registrations[self._registrations_before :]
        endpoints = {each.endpoint for each in attempts if each.outcome == "ok"}
        return any(view.endpoint in endpoints for view in self.drivers.get(driver, ()))

    def connected(self, driver: str) -> bool:
        """Whether a driver is registered and connected."""
        return self.registered(driver) and any(view.connected for view in self.drivers.get(driver, ()))

    def health(self, driver: str, pool: str, device: str) -> HealthView:
        """Return the health of a device; Unknown if no report is recent enough."""
        return self._running().health.get(driver, pool, device)

    def devices(self, pod: DraPod, request: str = "") -> Sequence[ClaimDevice]:
        """Return the prepared devices of a container that uses a request of the pod's claims, or all requests."""
        return devices_of(pod, request, self._infos)

    def cdi_devices(self, pod: DraPod, request: str = "") -> Sequence[str]:
        """Return the CDI devices of such a container."""
        return tuple(name for device in self.devices(pod, request) for name in device.cdi_devices)

    async def prepare(self, pod: DraPod) -> None:
        """Prepare the claims of a pod, for its sandbox. Raises ClaimsError; ``run_pod`` tries again."""
        self._pods[pod.uid] = pod
        try:
            await self._running().manager.prepare(pod)
        except ClaimsError as error:
            self._emit("pod-waiting", pod=pod.name, reason=str(error))
            raise
        self._emit("pod-prepared", pod=pod.name)

    async def unprepare(self, pod: DraPod) -> None:
        """Unprepare the claims of a pod whose containers have ended. Raises ClaimsError."""
        await self._running().manager.unprepare(pod)
        self._pods.pop(pod.uid, None)
        self._emit("pod-unprepared", pod=pod.name)

    async def run_pod(self, pod: DraPod) -> None:
        """Prepare the claims of a pod until it has worked, across restarts, with the kubelet's pauses."""
        await self._insist(self.prepare, pod, self.timings.pod_retry)

    async def end_pod(self, pod: DraPod) -> None:
        """Unprepare the claims of a pod until it has worked, across restarts, with the kubelet's pauses."""
        await self._insist(self.unprepare, pod, self.timings.termination_retry)

    def forget_pod(self, pod: DraPod) -> None:
        """Let a pod be gone, as if deleted by force: its claims are unprepared ``timings.claim_reconcile`` later."""
        self._pods.pop(pod.uid, None)

    async def wait_for(self, predicate: Callable[[DraKubelet], bool], timeout: float = 30.0) -> None:
        """Wait until the predicate holds; it is evaluated now and after each change of state.

        Raises TimeoutError after ``timeout`` seconds, with a description of the state.
        """
        try:
            async with asyncio.timeout(timeout):
                while not predicate(self):
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"condition not met within {timeout:g} s; {self.describe()}") from None

    def describe(self) -> str:
        """Return a description of the state in a few lines, for failed tests."""
        lines = [f"the kubelet ({self.version}) is {'running' if self._run else 'stopped'}"]
        lines.extend(f"  {name}: {view}" for name, views in self.drivers.items() for view in views)
        lines.append(f"  claims: {len(self.known_claims)}, prepared: {sorted(self.prepared)}")
        lines.append(f"  registrations: {len(self._registrations)}, last: {self._registrations[-1:]}")
        return "\n".join(lines)

    async def _insist(
        self, attempt: Callable[[DraPod], Coroutine[None, None, None]], pod: DraPod, pause: float
    ) -> None:
        while True:
            await self.wait_for(lambda k: k.running, float("inf"))
            with contextlib.suppress(ClaimsError):
                await attempt(pod)
                return
            await asyncio.sleep(pause * self._rng.uniform(1.0, 1.5))

    async def _reconcile_claims(self, manager: DraManager) -> None:
        """Unprepare the claims of pods that are gone, in each period."""
        while True:
            await asyncio.sleep(self.timings.claim_reconcile)
            for uid, claims in manager.pods_with_claims().items():
                if uid not in self._pods:
                    with contextlib.suppress(ClaimsError):
                        await manager.unprepare(DraPod(uid, claims, uid))

    def _running(self) -> _Run:
        if self._run is None:
            raise RuntimeError("the kubelet is stopped")
        return self._run

    def _emit(self, name: str, /, **fields: object) -> None:
        self.calls += name == "driver-called"
        if self._on_event is not None:
            self._on_event(Event(name, fields))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
