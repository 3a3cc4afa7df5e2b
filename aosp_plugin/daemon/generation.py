"""Everything that serves one configuration: HTTP servers, device plugins and DRA drivers, leak detection.

One generation serves at a time. See ``serve`` for a reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin import __version__
from aosp_plugin.daemon.allocations import report_allocations, report_once, yield_to_device_plugins
from aosp_plugin.daemon.assembly import (
    check_overlap,
    check_phone_directories,
    create_backends,
    create_server,
    device_plugins,
    dra_drivers,
)
from aosp_plugin.daemon.stale_specs import remove_stale_specs
from aosp_plugin.errors import HostError, PluginError, WorkerTimeoutError
from aosp_plugin.framework.deviceplugin.kubelet_view import KubeletView
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.worker import Worker
from aosp_plugin.report.node_reporter import NodeReporter
from aosp_plugin.report.observation import Observation

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.config import Config
    from aosp_plugin.framework.resource_server import ResourceServer
    from aosp_plugin.report.changes import History
    from aosp_plugin.report.leak_detector import LeakDetector

LOG = logging.getLogger(__name__)

CHECK_TIMEOUT = 10.0
"""Seconds to check the directories of phones."""

RETRY = 0.5
"""Seconds until the HTTP servers are started again for which the process had no free descriptor."""

FIRST_LIST = 0.2
"""Seconds after which HTTP requests are answered although the kubelet does not have the devices yet."""


class Generation:
    """What serves one configuration. To be used in one event loop.

    Call ``serve_http_after_start`` and ``prepare``, then ``start`` and ``stop``; or ``discard`` instead of ``start``.
    """

    def __init__(
        self,
        config: Config,
        stuck: Callable[[], str],
        history: History,
        listeners: Mapping[tuple[str, int], socket.socket],
    ) -> None:
        """``stuck`` returns what is wrong with the event loop, and is called in other threads.

        ``history`` and ``listeners``, the listening sockets of the configuration by address, outlive the generation.
        """
        self.config = config
        self.names = ",".join(resource.resource_name for resource in config.resources)
        self._listeners = listeners
        self._served: set[tuple[str, int]] = set()
        """The addresses on which HTTP requests are answered."""
        self._server_tasks: list[asyncio.Task[None]] = []
        self._background: list[asyncio.Task[None]] = []
        self._replaced = False
        with contextlib.ExitStack() as stack:
            self._worker = stack.enter_context(contextlib.closing(Worker("generation")))
            files = stack.enter_context(contextlib.closing(FileEvents()))
            self._backends = create_backends(config)
            self._leak_detector = _create_leak_detector(config, self._backends)
            self._pod_resources = pod_resources = PodResources(
                config.pod_resources_socket, self._backends, ids=lambda name: self._backends[name].ids
            )
            stack.callback(pod_resources.close)
            self._observation = observation = Observation(
                config.resources,
                self._backends,
                pod_resources,
                self._leak_detector,
                polling=lambda: files.polling,
                scraped=bool(config.listen),
                history=history,
            )
            self.servers = [
                create_server(config, resource, backend, files, observation)
                for resource, backend in zip(config.resources, self._backends.values(), strict=True)
            ]
            self._node_reporter = NodeReporter(config, self.servers, self._backends, observation.metrics)
            self._kubelet_view = KubeletView(device_plugins(self.servers), pod_resources)
            self._files, self._stuck = files, stuck
            self._stack = stack.pop_all()

    def _serve_http(self) -> None:
        """Answer HTTP requests from now on. Raises OSError; then it may be called again."""
        from aosp_plugin.framework.service import http  # noqa: PLC0415 - as above
        from aosp_plugin.report import endpoints  # noqa: PLC0415 - after the start, see serve_http_after_start

        routes = endpoints.routes(
            self.servers, self._files, self._observation, stuck=self._stuck, runbook_url=self.config.runbook_url
        )
        for address, served in endpoints.by_address(self.config, routes).items():
            if address not in self._served:
                host_names = {address[0], *self.config.allowed_hosts}
                self._stack.enter_context(http.serving(self._listeners[address].dup(), served, host_names))
                self._served.add(address)

    def serve_http_after_start(self, tasks: asyncio.TaskGroup) -> None:
        """Answer HTTP requests when the kubelet has the devices, or after ``FIRST_LIST`` seconds; clients wait.

        The modules for it are imported then: until it has the devices, a kubelet starts no pod that requests one.
        """
        self._background.append(tasks.create_task(self._serve_http_after_start()))

    async def _serve_http_after_start(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIST):
                for plugin in device_plugins(self.servers):
                    await plugin.view_due.wait()
        metrics = self._observation.metrics
        failed = False

        def importing() -> None:
            importlib.import_module("aosp_plugin.report.endpoints")
            if metrics.exposed:
                metrics.load()

        with contextlib.closing(Worker("imports")) as worker:
            while True:
                try:
                    await worker.run(importing, label="import")
                    self._serve_http()
                except (OSError, ImportError) as error:  # no free descriptors; ImportError: for a shared library
                    if not failed:
                        LOG.warning("HTTP server failed to start, retrying", extra={"error": str(error)})
                    failed = True
                    await asyncio.sleep(RETRY)
                else:
                    return

    async def prepare(self, *, require_devices: bool) -> None:
        """Scan all resources for the first time, side by side, and check that they share no binder device.

        A scan that hangs is no error. Raises an ExceptionGroup of PluginError, HostError and OSError.
        """
        with contextlib.suppress(WorkerTimeoutError):
            check = partial(check_phone_directories, self.config)
            await self._worker.run(check, CHECK_TIMEOUT, label="check of the directories of phones")
        scans = [server.prepare(require_devices=require_devices) for server in self.servers]
        results = await asyncio.gather(*scans, return_exceptions=True)
        errors = [each for each in results if isinstance(each, Exception) and not isinstance(each, WorkerTimeoutError)]
        if errors:
            raise ExceptionGroup("the configuration cannot be served", errors)
        check_overlap(self._backends)

    def start(self, tasks: asyncio.TaskGroup, *, require_devices: bool, previous: Config | None = None) -> None:
        """Start the servers and all else as ``tasks``; an error of one of them is raised there.

        ``previous`` is the configuration that this process served before.
        """
        LOG.info("starting", extra={"version": __version__, "resources": self.names})
        self._server_tasks = [
            tasks.create_task(self._run(server, require_devices=require_devices)) for server in self.servers
        ]
        self._background += [
            tasks.create_task(self._kubelet_view.run()),
            tasks.create_task(report_allocations(self._backends, self._pod_resources, self._rescan_one)),
            tasks.create_task(yield_to_device_plugins(dra_drivers(self.servers), self._pod_resources)),
            tasks.create_task(self._remove_stale_specs(previous)),
        ]
        self._background += [tasks.create_task(work) for work in self._node_reporter.work()]
        if self._leak_detector:
            self._background.append(tasks.create_task(self._leak_detector.run()))

    async def _run(self, server: ResourceServer, *, require_devices: bool) -> None:
        try:
            if server.driver is not None:  # publish no device that a pod has through the device plugin API
                await report_once(self._backends, self._pod_resources, self._rescan_one)
            await server.run(require_devices=require_devices)
        except (PluginError, HostError, OSError) as error:
            if not self._replaced:
                raise
            extra = {"resource": server.resource_name, "error": str(error)}
            LOG.error("cleanup of the previous configuration failed", extra=extra)  # noqa: TRY400 - no traceback

    async def _remove_stale_specs(self, previous: Config | None) -> None:
        names = [resource.resource_name for resource in previous.resources] if previous else []
        remove = partial(remove_stale_specs, self.config, names)
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

    async def stop(self, *, replaced: bool) -> None:
        """End all tasks and servers. If the generation is ``replaced``, errors of its servers are only logged."""
        self._replaced = replaced
        for server in self.servers:
            server.stop()
        await _ended(self._server_tasks)
        for task in self._background:
            task.cancel()
        await _ended(self._background)
        await self._node_reporter.close()
        self._stack.close()
        LOG.info("stopped", extra={"resources": self.names})

    async def discard(self) -> None:
        """Release all resources of a generation that has not been started."""
        for task in self._background:
            task.cancel()
        await _ended(self._background)
        await asyncio.gather(*(server.discard() for server in self.servers), return_exceptions=True)
        await self._node_reporter.close()
        self._stack.close()


def _create_leak_detector(config: Config, backends: Mapping[str, BinderBackend]) -> LeakDetector | None:
    """Return the leak detector, or None if leak detection is off."""
    if not config.leak_scan_interval:
        return None
    from aosp_plugin.report.leak_detector import LeakDetector  # noqa: PLC0415 - only where it is on

    return LeakDetector(backends, config.kubelet_dir, config.leak_scan_interval)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
