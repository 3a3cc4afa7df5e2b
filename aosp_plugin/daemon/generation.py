"""Everything that serves one configuration: HTTP servers, device plugins and DRA drivers, leak detection.

One generation serves at a time. See ``serve`` for a reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
from collections.abc import Collection, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from aosp_plugin import __version__
from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.config.keys import Config
from aosp_plugin.daemon import assembly
from aosp_plugin.daemon.allocations import report_allocations, report_once, yield_to_device_plugins
from aosp_plugin.daemon.stale_specs import remove_stale_specs
from aosp_plugin.framework.aio import leaves
from aosp_plugin.framework.deviceplugin.kubelet_view import KubeletView
from aosp_plugin.framework.errors import ConfigError, PluginError, WorkerTimeoutError
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.observer import LastingProblem
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.service.serving import Running
from aosp_plugin.framework.timings import DEFAULT
from aosp_plugin.framework.worker import Worker
from aosp_plugin.report.history import History
from aosp_plugin.report.node_reporter import NodeReporter, node_name
from aosp_plugin.report.observation import Observation

if TYPE_CHECKING:
    from aosp_plugin.report.leak_detector import LeakDetector

LOG = logging.getLogger(__name__)

Listeners: TypeAlias = "dict[tuple[str, int], socket.socket]"
"""Listening sockets by address."""


class Generation:
    """What serves one configuration. To be used in one event loop: ``start``, then ``stop``."""

    def __init__(self, config: Config, history: History, listeners: Listeners) -> None:
        """``history`` and ``listeners``, the listening sockets of the configuration by address, outlive the generation.

        Has no effect on the host. Raises PluginError if the configuration requires an API server that is not there.
        """
        self.config = config
        self.resources = [resource.resource_name for resource in config.resources]
        self.listeners = listeners
        self._worker = Worker("generation")
        self._running: Running | None = None
        self._http: asyncio.Task[None] | None = None
        with contextlib.ExitStack() as stack:
            stack.callback(self._worker.close)
            files = stack.enter_context(contextlib.closing(FileEvents()))
            self._backends = assembly.create_backends(config)
            self._leak_detector = _create_leak_detector(config, self._backends)
            self._pod_resources = pod_resources = PodResources(
                config.pod_resources_socket,
                self._backends,
                ids=lambda name: [*self._backends[name].binder_devices()],
                node_name=node_name(),
            )
            stack.callback(pod_resources.close)
            self._observation = observation = Observation(
                self._backends,
                pod_resources,
                self._leak_detector,
                polling=lambda: files.polling,
                scraped=bool(config.listen),
                history=history,
            )
            self.servers = [
                assembly.create_server(config, resource, backend, files, observation)
                for resource, backend in zip(config.resources, self._backends.values(), strict=True)
            ]
            self._node_reporter = NodeReporter(config, self.servers, self._backends, observation.metrics)
            self._kubelet_view = KubeletView(assembly.device_plugins(self.servers), pod_resources)
            self._files = files
            self._stack = stack.pop_all()

    async def start(
        self, tasks: asyncio.TaskGroup, *, require_devices: bool, previous: Collection[str], restores: bool
    ) -> None:
        """Scan all resources, then start the servers and all else as ``tasks``, where their errors are raised.

        ``previous`` are the resources that this process served before. Raises what keeps the devices from being served:
        PluginError, HostError and OSError, as a group. ``restores``: the configuration was served before, so that the
        cause may pass, and is retried.
        """
        logs.set_up(self.config.log_level, self.config.log_format)
        self._http = tasks.create_task(self._serve_http_after_start())
        try:
            await self._prepare(require_devices=require_devices)
        except BaseException as error:
            if not (restores and all(map(_may_pass, leaves(error)))):
                await asyncio.gather(*(server.discard() for server in self.servers), return_exceptions=True)
                await self._close()
                raise
        LOG.info("starting", extra={"version": __version__, "resources": ",".join(self.resources)})
        beside: list[Coroutine[None, None, None]] = [
            self._kubelet_view.run(),
            report_allocations(self._backends, self._pod_resources, self._rescan_one),
            yield_to_device_plugins(assembly.dra_drivers(self.servers), self._pod_resources),
            self._remove_stale_specs(previous),
            *self._node_reporter.work(),
        ]
        if self._leak_detector:
            beside.append(self._leak_detector.run())
        run = partial(self._run, require_devices=require_devices)
        self._running = Running(tasks, self.servers, beside, run)

    async def _prepare(self, *, require_devices: bool) -> None:
        """Scan all resources side by side, and check that they share no device. A scan that hangs is no error."""
        with contextlib.suppress(WorkerTimeoutError):
            check = partial(assembly.check_phone_directories, self.config)
            await self._worker.run(check, DEFAULT.hang, label="check of the directories of phones")
        scans = [server.prepare(require_devices=require_devices) for server in self.servers]
        results = await asyncio.gather(*scans, return_exceptions=True)
        errors = [each for each in results if isinstance(each, Exception) and not isinstance(each, WorkerTimeoutError)]
        if errors:
            raise ExceptionGroup("the configuration cannot be served", errors)
        assembly.check_overlap(self._backends)

    async def _run(self, server: ResourceServer, *, require_devices: bool) -> None:
        if server.driver is not None:  # publish no device that a pod has through the device plugin API
            await report_once(self._backends, self._pod_resources, self._rescan_one)
        await server.run(require_devices=require_devices)

    async def _serve_http_after_start(self) -> None:
        """Answer HTTP requests when the kubelet has the devices, or after ``Timings.first_list``; clients wait.

        The modules for it are imported then: until it has the devices, a kubelet starts no pod that requests one.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEFAULT.first_list):
                for plugin in assembly.device_plugins(self.servers):
                    await plugin.view_due.wait()
        failure = LastingProblem(LOG, "HTTP server failed to start, retrying", "HTTP server started")
        with contextlib.closing(Worker("imports")) as worker:
            while True:
                try:
                    await worker.run(self._import_endpoints, label="import")
                    self._serve_http()
                except (OSError, ImportError) as error:  # no free descriptors; ImportError: for a shared library
                    failure.set(str(error), error=str(error))
                    await asyncio.sleep(DEFAULT.retry)
                else:
                    failure.set("")
                    return

    def _import_endpoints(self) -> None:
        importlib.import_module("aosp_plugin.report.endpoints")
        if self._observation.metrics.exposed:
            self._observation.metrics.load()

    def _serve_http(self) -> None:
        """Answer HTTP requests from now on. Raises OSError; then it may be called again."""
        from aosp_plugin.framework.service import http  # noqa: PLC0415 - after the start, see above
        from aosp_plugin.report import endpoints  # noqa: PLC0415 - as above

        routes = endpoints.routes_by_address(self.config, self.servers, self._files, self._observation)
        with contextlib.ExitStack() as stack:
            for address, served in routes.items():
                host_names = {address[0], *self.config.allowed_hosts}
                stack.enter_context(http.serving(self.listeners[address].dup(), served, host_names))
            self._stack.push(stack.pop_all())

    async def _remove_stale_specs(self, previous: Collection[str]) -> None:
        remove = partial(remove_stale_specs, self.config, previous)
        try:
            for path in await self._worker.run(remove, label="removal of CDI specs"):
                LOG.info("CDI spec of a former resource removed", extra={"path": path})
        except OSError as error:
            LOG.warning("CDI specs of former resources could not be removed", extra={"error": str(error)})

    def rescan(self) -> None:
        """Forget the history of all devices, and scan them."""
        for backend, server in zip(self._backends.values(), self.servers, strict=True):
            backend.reset()
            server.rescan()

    def _rescan_one(self, name: str) -> None:
        for server in self.servers:
            if server.resource_name == name:
                server.rescan()

    async def stop(self, within: float | None = None) -> None:
        """End all tasks and servers; see ``ResourceServer.stop``."""
        if self._running is not None:
            await self._running.stop(within)
        await self._close()
        LOG.info("stopped", extra={"resources": ",".join(self.resources)})

    async def _close(self) -> None:
        if self._http is not None:
            self._http.cancel()
            await asyncio.wait([self._http])
        await self._node_reporter.close()
        self._stack.close()


def _may_pass(error: BaseException) -> bool:
    """Return whether an error is one of the host at this moment, and neither of the configuration nor a bug."""
    return isinstance(error, (PluginError, HostError, OSError)) and not isinstance(error, ConfigError)


def _create_leak_detector(config: Config, backends: Mapping[str, BinderBackend]) -> LeakDetector | None:
    """Return the leak detector, or None if leak detection is off."""
    if not config.leak_scan_interval:
        return None
    from aosp_plugin.report.leak_detector import LeakDetector  # noqa: PLC0415 - only where it is on

    return LeakDetector(backends, config.kubelet_dir, config.leak_scan_interval)
