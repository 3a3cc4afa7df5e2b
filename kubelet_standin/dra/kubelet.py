"""A kubelet's dealings with DRA drivers: plugin watcher, drivers and the claims of pods, on real unix sockets."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kubelet_standin.dra.claims import ClaimDevice, ClaimInfo, ClaimsError, DraManager, DraPod, Fetch, devices_of
from kubelet_standin.dra.drivers import Drivers, DriverView, Setup, Wipe
from kubelet_standin.dra.health import HealthCache, HealthView
from kubelet_standin.dra.registration import PluginManager
from kubelet_standin.dra.settings import DraFaults, DraRegistration, DraTimings
from kubelet_standin.dra.watcher import Registry
from kubelet_standin.events import Event
from kubelet_standin.observable import Observable
from kubelet_standin.versions import NEWEST, KubeletVersion


@dataclass(frozen=True)
class _Run:
    """The objects that exist between a start and the next stop."""

    drivers: Drivers
    manager: DraManager
    health: HealthCache
    stop_watching: Callable[[], None]
    registering: asyncio.Task[None]


class DraKubelet(Observable[_Run]):
    """A kubelet's dealings with DRA drivers: an async context manager that belongs to one event loop."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | Registry,
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

        - ``directory`` is a path if it is one of this machine.
        - ``watch_health``: the feature gate ResourceHealthStatus; None for the default of the version.
        - ``wipe`` deletes the ResourceSlices of a driver on the node, or with an empty name those of all drivers. It is
          called at each start, and when a driver was away for ``timings.wipe`` seconds; again after an error.
        - ``fetch`` returns a claim from the API server, by namespace and name; without it, the pod's claim is taken.
        - ``clock`` returns the seconds after which a health is too old.
        - ``on_event`` is called with each :class:`~kubelet_standin.events.Event`, on the event loop.
        """
        self._registry = directory if isinstance(directory, Registry) else Registry(directory)
        self.directory = self._registry.path
        super().__init__("kubelet", on_event, directory=self.directory, version=str(version))
        self.version = version
        self.faults = DraFaults()
        self.timings = timings or DraTimings()
        self._watch_health = version.watches_health if watch_health is None else watch_health
        self._wipe = wipe
        self._fetch = fetch
        self._clock = clock
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._registrations: list[DraRegistration] = []
        self._registrations_before = 0  # those of the runs before this one
        self._infos: dict[tuple[str, str], ClaimInfo] = {}

    async def _start(self) -> _Run:
        """Begin to delete all ResourceSlices of the node, and to register the drivers whose sockets exist."""
        self._infos = {key: info.checkpointed() for key, info in self._infos.items()}
        health = HealthCache(self.version, self.timings.health, self._clock)
        setup = Setup(
            self._registry,
            self.version,
            self.timings,
            self.faults,
            health,
            self._watch_health,
            self._wipe,
            self._rng,
            self._emit,
        )
        self._registrations_before = len(self._registrations)
        drivers = Drivers(setup)
        plugins = PluginManager(drivers, setup, self._registrations)
        manager = DraManager(drivers, setup, self._infos, self._fetch)
        stop_watching = self._registry.watch(plugins.appeared, plugins.disappeared)
        return _Run(drivers, manager, health, stop_watching, asyncio.create_task(plugins.run()))

    async def _stop(self, run: _Run) -> None:
        run.stop_watching()
        run.registering.cancel()
        await asyncio.wait([run.registering])
        await run.drivers.close()

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
        """Prepare the claims of a pod, for its sandbox. Raises ClaimsError, also if the kubelet stops meanwhile."""
        try:
            await self._running().manager.prepare(pod)
        except ClaimsError as error:
            self._emit("pod-waiting", pod=pod.name, reason=str(error))
            raise
        self._emit("pod-prepared", pod=pod.name)

    async def unprepare(self, pod: DraPod) -> None:
        """Unprepare the claims of a pod whose containers have ended. Raises ClaimsError."""
        await self._running().manager.unprepare(pod)
        self._emit("pod-unprepared", pod=pod.name)

    def describe(self) -> str:
        """Return a description of the state in a few lines, for failed tests."""
        lines = [f"the kubelet ({self.version}) is {'running' if self._run else 'stopped'}"]
        lines.extend(f"  {name}: {view}" for name, views in self.drivers.items() for view in views)
        lines.append(f"  claims: {len(self.known_claims)}, prepared: {sorted(self.prepared)}")
        lines.append(f"  registrations: {len(self._registrations)}, last: {self._registrations[-1:]}")
        return "\n".join(lines)
