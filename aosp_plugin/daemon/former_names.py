"""Serves names that resources of this node had before, as long as pods have their devices by these names.

A former driver: a resource that gets another name gets another driver, and one that gets the other API has none. The
kubelet unprepares a claim by the driver that has prepared it, and keeps the pod until that succeeds
(pkg/kubelet/cm/dra/manager.go ``unprepareResources``). So a process whose devices claims of another driver have, which
no process serves, serves that driver as well: it repairs and unprepares these claims, prepares no further one, and
publishes no device. The records of the claims say which drivers these are (``framework.dra.record_store``); it also
restores damaged ones.

A former resource: before each start of a container, a kubelet calls PreStartContainer of the plugin that gave the
device, if that plugin asked for it (pkg/kubelet/cm/devicemanager/manager.go ``callPreStartContainerIfNeeded``). Once
that plugin has gone, the call fails, and the container waits until its pod is deleted: after the resource was renamed,
or its ``api`` changed. Therefore a plugin of the former resource registers that asks for no call and lists no device.
The kubelet then starts the container with what it got before; nobody else gets that (``held_devices``).

That is for resources whose devices this process has now. The plugin of another one may be away for a moment, and the
kubelet has to wait for it: a container would start on a phone that was not made fresh, and the node lose its capacity.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import msgspec

from aosp_plugin.backend.catalog import CLAIMS_UNSERVED, FORMER_DRIVERS_FAILING
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.binder.devices.sets import is_phone
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.config.values import Api, ProvisionedBy, has_placeholder
from aosp_plugin.framework.clock import CLOCK, Clock
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra.driver_names import driver_name, resource_name
from aosp_plugin.framework.dra.kubelet_service import RegistryDirectory
from aosp_plugin.framework.dra.record_store import Others
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timings import DEFAULT
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)

WIPE = 45.0
"""Seconds after the start of a process when the kubelet has deleted the ResourceSlices of a driver that is not
registered any more: it does so after 30 s (pkg/kubelet/cm/dra/manager.go, ``defaultWipingDelay``), and never while the
driver is registered. Devices that nobody prepares would stay published."""


LINGER = 180.0
"""Seconds for which a driver is served after its last claim has ended: the kubelet may have missed the answer, and asks
again when it handles the pod the next time, after 60 to 90 s (pkg/kubelet/pod_workers.go)."""


class _Running(NamedTuple):
    server: ResourceServer
    task: asyncio.Task[None]
    needed: float
    """When a pod had a device by this name last, in seconds of the clock."""


class FormerNames:
    """The former resources and drivers of one configuration. For one event loop."""

    def __init__(
        self,
        config: Config,
        found: Callable[[str], FoundDevices],
        create_driver: Callable[[Resource], ResourceServer],
        create_plugin: Callable[[str], ResourceServer],
        conditions: Conditions,
        worker: Worker,
        *,
        wait: float = WIPE,
        linger: float = LINGER,
        clock: Clock = CLOCK,
    ) -> None:
        """``found`` returns what the last scan of a resource has found.

        ``create_driver`` returns a driver that publishes no device, and ``create_plugin`` a device plugin without
        devices. Drivers are served after ``wait`` seconds, and for ``linger`` seconds without claims.
        """
        self._config = config
        self._found = found
        self._create_driver = create_driver
        self._create_plugin = create_plugin
        self._conditions = conditions
        self._worker = worker
        self._linger, self._clock = linger, clock
        self._begin = clock() + wait
        self._own = {driver_name(each.resource_name) for each in config.resources if each.api is Api.DRA}
        self._running: dict[str, _Running] = {}
        """By driver or resource; a resource has a slash in its name, and a driver has none."""
        self._closed = False

    async def serve(self, resources: Collection[str], claims: Others) -> None:
        """Serve exactly these former resources, and the former drivers of ``claims``, which are all on this host.

        Those that failed are started again. What fails is logged and retried by the next call.
        """
        running = self._running.items()
        await self._end(
            *[name for name, each in running if each.task.done() or ("/" in name and name not in resources)]
        )
        for resource in sorted(set(resources) - self._running.keys()):
            self._start(resource, partial(self._create_plugin, resource))
            LOG.info("former resource kept registered for its pods", extra={"resource": resource})
        failure = ""
        try:
            self._conditions.set(CLAIMS_UNSERVED, await self._serve_drivers(claims))
        except (OSError, PluginError) as error:
            failure = str(error)
        self._conditions.set(FORMER_DRIVERS_FAILING, failure)

    async def close(self, within: float | None = None) -> None:
        """End all of them, and start none any more; see ``ResourceServer.stop`` for ``within``."""
        self._closed = True
        await self._end(*self._running, within=within)

    async def _serve_drivers(self, claims: Others) -> str:
        """Start and stop drivers, so that those run whose claims have devices of this configuration.

        Return what to do if pods have devices by claims, and the kubelet's directory of the records is not mounted;
        otherwise an empty text. Raises OSError and PluginError, also if a driver cannot be created.
        """
        places = {os.path.basename(os.path.dirname(path)): set[str]() for path in claims.damaged}
        for content in claims.prepared:
            places.setdefault(content.claim.driver, set()).update(content.places)
        wanted = {
            driver: resource
            for driver in places.keys() - self._own
            if (resource := self._resource_of(places[driver])) is not None
        }
        look = partial(self._look, {*wanted, *(name for name in self._running if "/" not in name)})
        others, is_mounted = await self._worker.run(look, DEFAULT.hang, label="look for former drivers")
        now = self._clock()
        for driver in wanted.keys() & self._running.keys():
            self._running[driver] = self._running[driver]._replace(needed=now)
        await self._end(
            *[
                name
                for name, each in self._running.items()
                if name in others or ("/" not in name and now - each.needed >= self._linger)
            ]
        )
        for driver in sorted(wanted.keys() - self._running.keys() - others) if now >= self._begin else ():
            self._start(driver, partial(self._create_driver, _former(wanted[driver], driver)))
            fields = {"resource": wanted[driver].resource_name, "driver": driver}
            LOG.warning("former driver has prepared claims, serving it until they have ended", extra=fields)
        found = [self._found(each.resource_name) for each in self._config.resources]
        if is_mounted or not any(each.reason is Reason.IN_USE_BY_OTHER_API for one in found for each in one.devices):
            return ""
        return (
            f"{self._claims_directory} does not exist: mount it, {self._config.plugins_registry} and the token of a "
            "service account that may get resourceclaims, or serve api: dra again until these pods have ended"
        )

    @property
    def _claims_directory(self) -> str:
        return self._config.driver_directory("").rstrip("/")

    def _look(self, drivers: Collection[str]) -> tuple[set[str], bool]:
        """Return those drivers that other processes serve, and whether the directory of claims exists.

        Runs in the worker thread. Raises OSError.
        """
        registry = self._config.plugins_registry
        served = {driver for driver in drivers if RegistryDirectory(registry, driver).other_plugins()}
        return served, os.path.isdir(self._claims_directory)

    def _resource_of(self, places: set[str]) -> Resource | None:
        """Return the resource that has a device in one of these places; None if none has.

        If no resource has one, the directory of the phones has changed as well: it is the first resource with phones,
        in their former directory. Without places, it is the only resource of the configuration.
        """
        if not places and len(self._config.resources) == 1:
            return self._config.resources[0]
        for resource in self._config.resources:
            if any(map(self._found(resource.resource_name).device_at, places)):
                return resource
        directory, _, name = min(places, default="").rpartition("/")
        with_phones = [each for each in self._config.resources if each.phones and is_phone(name)]
        return _moved(with_phones[0], directory) if with_phones else None

    def _start(self, name: str, create: Callable[[], ResourceServer]) -> None:
        """Start a server, unless all have been ended while this was found to be necessary."""
        if not self._closed:
            server = create()
            self._running[name] = _Running(server, asyncio.create_task(server.run()), self._clock())

    async def _end(self, *names: str, within: float | None = None) -> None:
        """Stop servers, and log the errors of those that have failed."""
        ending = {name: self._running[name] for name in names}
        for each in ending.values():
            each.server.stop(within)
        if ending:
            await asyncio.wait({each.task for each in ending.values()})
        for name, each in ending.items():
            self._running.pop(name, None)  # only now: this call may be cancelled before, and repeated
            error = each.task.exception()
            extra = {"resource": each.server.resource_name}
            if error is None:
                LOG.info("former resource is served no longer", extra=extra)
            elif isinstance(error, (PluginError, HostError, OSError)):
                LOG.warning("former resource failed, retrying", extra=extra | {"error": str(error)})
            else:
                raise error


def _moved(resource: Resource, directory: str) -> Resource:
    """Return a resource with its phones in another directory, without what it gives to its own phones by number."""
    phones = msgspec.structs.replace(resource.phones, directory=directory)  # type: ignore[type-var]
    mounts = tuple(mount for mount in resource.shared_mounts if not has_placeholder(mount))
    return msgspec.structs.replace(resource, phones=phones, spread_devices=(), slice_devices=(), shared_mounts=mounts)


def _former(resource: Resource, driver: str) -> Resource:
    """Return a resource as the driver had it, without what the device plugin API alone has."""
    return msgspec.structs.replace(
        resource,
        resource_name=resource_name(driver),
        api=Api.DRA,
        replicas=1,
        provisioned_by=ProvisionedBy.PLUGIN,
    )
