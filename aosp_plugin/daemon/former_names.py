"""What remains of former configurations of this node: names by which pods have devices, and CDI specs.

A former resource: before each start of a container, a kubelet calls PreStartContainer of the plugin that gave the
device, if that plugin asked for it (pkg/kubelet/cm/devicemanager/manager.go ``callPreStartContainerIfNeeded``). Once
that plugin has gone, the call fails, and the container waits until its pod is deleted: after the resource was renamed,
or its ``api`` changed. Therefore a plugin of the former resource registers that asks for no call and lists no device.
The kubelet then starts the container with what it got before; nobody else gets that (``held_devices``).

That is for resources whose devices this process has now. The plugin of another one may be away for a moment, and the
kubelet has to wait for it: a container would start on a phone that was not made fresh, and the node lose its capacity.

A former driver: a resource that gets another name gets another driver, and one that gets the other API has none. The
kubelet unprepares a claim by the driver that has prepared it, and keeps the pod until that succeeds
(pkg/kubelet/cm/dra/manager.go ``unprepareResources``). No other driver can do that: it would have to know the former
configuration. So records, specs and devices of these claims stay, containers may start again, and a condition says
which driver is to be served again until its pods have ended.

A stale CDI spec: that of a resource that has left the configuration, or whose specs are in another directory now. A
spec stays when the plugin ends, and when its resource no longer uses CDI: a container that restarts requires it,
because the kubelet passes the same CDI names again without a call of the plugin. It goes with the record of its
resource (``device_records``), which names the directories that it may be in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from aosp_plugin import SOCKET_PREFIX
from aosp_plugin.backend.catalog import SPECS_NOT_REMOVED
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.binder.devices.health import Reason
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.config.keys import Config
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.device_records import DeviceRecord
from aosp_plugin.framework import DevicePlugin, atomic_file
from aosp_plugin.framework.cdi import DIRECTORIES, spec_path
from aosp_plugin.framework.conditions import CLAIMS_UNSERVED, Condition, Conditions
from aosp_plugin.framework.dra.claim_records import Others
from aosp_plugin.framework.dra.kubelet_service import RegistryDirectory
from aosp_plugin.framework.dra.slices import driver_name
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError
from aosp_plugin.framework.listed import ListedDevices
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.sockets import PluginDirectory
from aosp_plugin.framework.timing import DEFAULT
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)


class _Running(NamedTuple):
    server: ResourceServer
    task: asyncio.Task[None]


class FormerNames:
    """The former resources and drivers of one configuration, and their CDI specs. For one event loop."""

    def __init__(
        self,
        config: Config,
        found: Callable[[str], FoundDevices],
        unreported: Runtime,
        conditions: Conditions,
        worker: Worker,
    ) -> None:
        """``found`` returns what the last scan of a resource has found.

        ``unreported`` is for the plugins of former resources, whose conditions and metrics nobody reads.
        """
        self._config = config
        self._found = found
        self._unreported = unreported
        self._conditions = conditions
        self._worker = worker
        self._running: dict[str, _Running] = {}
        """By resource."""
        self._closed = False

    async def follow(self, resources: Collection[str], claims: Others) -> None:
        """Serve exactly these former resources, and report the former drivers of ``claims``: of all claims on the host.

        Resources that failed are served again. What fails is logged and retried by the next call.
        """
        running = self._running.items()
        await self._end(*[name for name, each in running if each.task.done() or name not in resources])
        for resource in sorted(set(resources) - self._running.keys()):
            self._start(resource)
        # What hangs or fails is the directory of all drivers: their registrations report it.
        with contextlib.suppress(OSError, WorkerTimeoutError):
            find = partial(self._find_unserved, claims)
            unserved = await self._worker.run(find, DEFAULT.hang, label="look for former drivers")
            self._conditions.replace("former drivers", "", _conditions(unserved))

    async def remove_specs(self, records: Iterable[DeviceRecord]) -> bool:
        """Remove the stale CDI specs of the resources with these records; return whether that succeeded."""
        remove = partial(remove_stale_specs, self._config, records)
        try:
            removed = await self._worker.run(remove, DEFAULT.hang, label="removal of CDI specs")
        except (OSError, WorkerTimeoutError) as error:
            self._conditions.set(SPECS_NOT_REMOVED, str(error))
            return False
        self._conditions.set(SPECS_NOT_REMOVED, "")
        for path in removed:
            LOG.info("former CDI spec removed", extra={"path": path})
        return True

    async def close(self, within: float | None = None) -> None:
        """End all of them, and start none any more; see ``ResourceServer.stop`` for ``within``."""
        self._closed = True
        await self._end(*self._running, within=within)

    def _find_unserved(self, claims: Others) -> Counter[str]:
        """Return the number of claims of each driver that no process of this host serves.

        The manifest of a device plugin does not mount the directory of the records: what pods have by claims is then
        known by the kubelet alone. Runs in the worker thread. Raises OSError.
        """
        found = Counter(content.claim.driver for content in claims.prepared)
        found.update(os.path.basename(os.path.dirname(path)) for path in claims.damaged)
        if not os.path.isdir(self._config.driver_directory("")):
            for each in self._config.resources:
                reasons = [device.reason for device in self._found(each.resource_name).devices]
                found[driver_name(each.resource_name)] += reasons.count(Reason.IN_USE_BY_OTHER_API)
        for each in self._config.resources:
            if each.api is Api.DRA:
                del found[driver_name(each.resource_name)]
        return Counter({driver: count for driver, count in found.items() if count and not self._is_served(driver)})

    def _is_served(self, driver: str) -> bool:
        """Return whether another process serves a driver. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            return bool(RegistryDirectory(self._config.plugins_registry, driver).other_plugins())
        return False

    def _start(self, resource: str) -> None:
        """Serve a resource by a plugin that lists no device, and asks the kubelet for no call.

        None is served if all have been ended while this was found to be necessary.
        """
        if not self._closed:
            server = DevicePlugin(
                ListedDevices(resource, list, directories=()),
                kubelet_dir=self._config.kubelet_dir,
                socket_prefix=SOCKET_PREFIX,
                runtime=self._unreported,
            )
            self._running[resource] = _Running(server, asyncio.create_task(server.run()))
            LOG.info("former resource kept registered for its pods", extra={"resource": resource})

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
            extra = {"resource": name}
            if error is None:
                LOG.info("former resource is served no longer", extra=extra)
            elif isinstance(error, (PluginError, HostError, OSError)):
                LOG.warning("former resource failed, retrying", extra=extra | {"error": str(error)})
            else:
                raise error


def _conditions(unserved: Counter[str]) -> Iterator[Condition]:
    for driver, claims in sorted(unserved.items()):
        text = (
            f"no process on this node serves {driver}, which has prepared {claims} claims: configure its resource "
            "again until the pods with these claims have ended"
        )
        yield Condition(CLAIMS_UNSERVED, text, driver, {"driver": driver, "claims": claims})


def remove_stale_specs(config: Config, records: Iterable[DeviceRecord]) -> list[str]:
    """Remove the specs of the resources with these records; return the paths of those that existed.

    The spec of a resource of ``config`` stays in the configured directory. It stays in others as well while the
    configured one does not have it, or another process serves the resource: that would write it again. Specs of other
    programs are in the same directories. May block. Raises OSError.

    A resource has one spec on a host. The default order of the library, in which /var/run/cdi has precedence over
    /etc/cdi (pkg/cdi/spec-dirs.go), decides which of two a runtime takes, without an error: changes of the
    configuration would have no effect on new pods. So a spec in another directory than the configured one goes as soon
    as the configured one has it.
    """
    host = Host(config.host_root)
    present = host.process_path(host.resolve(config.cdi_dir))
    own = {resource.resource_name for resource in config.resources}
    removed: list[str] = []
    for record in records:
        name = record.resource
        directories = sorted({host.process_path(host.resolve(each)) for each in (*DIRECTORIES, *record.cdi_dirs)})
        if name in own:
            directories = [each for each in directories if not _is_same(each, present)]
        paths = [path for each in directories if os.path.lexists(path := spec_path(each, name))]
        if name in own and paths:
            is_written = os.path.lexists(spec_path(present, name))
            if not is_written or PluginDirectory(config.kubelet_dir, name, SOCKET_PREFIX).other_plugins():
                continue
        removed += filter(atomic_file.remove, paths)
    return removed


def _is_same(directory: str, other: str) -> bool:
    """Return whether two paths lead to the same directory. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samefile(directory, other)
    return False
