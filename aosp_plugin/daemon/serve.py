"""``aosp-plugin serve``: serves the configuration until a signal.

At SIGHUP the process reads the configuration again. If that has changed, and this host can serve it, the process stops
in order and executes its own program again, with the same process ID and arguments. So a reload is an ordinary start,
with nothing of the former configuration in memory. A configuration that cannot be served changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine
from functools import partial

from aosp_plugin import __version__
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.backend.offers import Offers
from aosp_plugin.binder.driver.host import HostError
from aosp_plugin.config.keys import Config
from aosp_plugin.config.sources import node_name
from aosp_plugin.daemon import assembly
from aosp_plugin.daemon.allocations import AllocationWatch, yield_to_device_plugins
from aosp_plugin.daemon.device_records import DeviceRecords
from aosp_plugin.daemon.former_names import FormerNames
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.deviceplugin.plugin import KubeletView
from aosp_plugin.framework.dra.claim_records import claims_on_host
from aosp_plugin.framework.dra.driver import DraDriver
from aosp_plugin.framework.errors import PluginError, WorkerTimeoutError, leaves
from aosp_plugin.framework.file_events import FileEvents
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service import http, logs
from aosp_plugin.framework.service.address import listen
from aosp_plugin.framework.service.process import Process
from aosp_plugin.framework.service.serving import Running
from aosp_plugin.framework.timing import DEFAULT, complete_unless
from aosp_plugin.framework.worker import Worker, running_calls
from aosp_plugin.report import endpoints
from aosp_plugin.report.document import ReloadReport
from aosp_plugin.report.node_reporter import NodeReporter
from aosp_plugin.report.observation import Observation

LOG = logging.getLogger(__name__)

LONG_CALL = 2.0
"""Seconds after which a call on the host counts as hanging, for a reload."""

RELOADED = "AOSP_RELOADED"
"""Environment variable that a reload sets for the new program; nothing else is passed on."""


class Daemon:
    """The process, from its start to its end, or until its program is executed again."""

    def __init__(self, load: Callable[[], Config]) -> None:
        """``load`` reads the configuration at the start and after each SIGHUP; it is called in a worker thread."""
        self._load = load
        self._process = Process()
        self._reload = asyncio.Event()
        self._service: NodeService | None = None

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises an ExceptionGroup of everything that failed: PluginError, HostError or OSError if the plugin cannot
        start, or can never register; any other error is a bug.
        """
        await self._process.run(self._serve, self._reload.set)

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        stop, began = self._process.stop, time.time()
        is_reload = os.environ.pop(RELOADED, "") == "yes"
        await complete_unless(stop, self._start(tasks))
        if (service := self._service) is None:
            return
        if is_reload:
            _reloaded(service, began, changed=True)
        if await complete_unless(stop, self._until_changed(service)):
            self._process.reloading.set()
        await service.stop(stop.remaining)
        if not stop.is_set():
            os.environ[RELOADED] = "yes"
            await self._process.execute_again()

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        """Read the configuration in a worker thread, because its file system may hang, and serve it."""
        with contextlib.closing(Worker("configuration")) as worker:
            config = await worker.run(self._load)
        service = NodeService(config)
        await service.start(tasks)
        self._service, self._process.servers = service, service.servers

    async def _until_changed(self, service: NodeService) -> None:
        """Wait for a SIGHUP with a new valid configuration. At each other SIGHUP, scan again or report an error."""
        while True:
            await self._reload.wait()
            self._reload.clear()
            began = time.time()
            try:
                with contextlib.closing(Worker("configuration")) as worker:  # a call of the last one may hang
                    config = await worker.run(self._load, DEFAULT.hang, label="reading the configuration")
                    if config != service.config:
                        check = partial(assembly.check_host, config, service.config)
                        await worker.run(check, DEFAULT.hang, label="check of the configuration")
                        _require_no_hang()
                        return
            except Exception as error:  # also a bug that only this configuration reveals
                errors = leaves(error)
                reason = "; ".join(str(error) or repr(error) for error in errors)
                bugs = [error for error in errors if not isinstance(error, (PluginError, HostError, OSError))]
                LOG.error(  # noqa: TRY400 - a traceback only of a bug
                    "configuration reload rejected, keeping the current configuration",
                    extra={"error": reason},
                    exc_info=bugs[0] if bugs else None,
                )
                service.observation.last_reload = ReloadReport(began, changed=False, error=reason)
            else:
                service.rescan()
                _reloaded(service, began, changed=False)


def _reloaded(service: NodeService, began: float, *, changed: bool) -> None:
    service.observation.last_reload = ReloadReport(began, changed=changed, error="")
    LOG.info("configuration reloaded", extra={"changed": changed})


def _require_no_hang() -> None:
    """Raise PluginError if a call on the host may hang.

    execve(2) ends all other threads first, and waits for one that is in an uninterruptible sleep (fs/exec.c
    ``de_thread``): the process would serve nothing until the file system answers.
    """
    if calls := running_calls(LONG_CALL):
        raise PluginError(f"a call on the host hangs, reload again when it has ended: {', '.join(calls)}")


class NodeService:
    """The servers of a configuration: HTTP, device plugins and DRA drivers. In one event loop: ``start``, ``stop``."""

    def __init__(self, config: Config) -> None:
        """Listen at the addresses of the configuration, without any other effect on the host.

        Raises PluginError if an address is not available, or the configuration requires an API server that is missing.
        """
        self.config = config
        self.resources = [resource.resource_name for resource in config.resources]
        self._worker = Worker("node service")
        self._running: Running | None = None
        with contextlib.ExitStack() as stack:
            stack.callback(self._worker.close)
            self._conditions = conditions = Conditions()
            files = stack.enter_context(contextlib.closing(FileEvents(conditions=conditions)))
            offers = Offers() if len(config.resources) > 1 else None
            self._backends = assembly.create_backends(config, conditions, offers)
            self._pod_resources = pod_resources = PodResources(
                config.pod_resources_socket,
                self._backends,
                ids=lambda name: [*self._found(name).sets],
                node_name=node_name(),
                conditions=conditions,
            )
            stack.callback(pod_resources.close)
            self._former = FormerNames(config, self._found, Runtime(files=files), conditions, self._worker)
            self._allocation_watch = AllocationWatch(
                self._backends,
                self._found,
                pod_resources,
                DeviceRecords(config.kubelet_dir, config.cdi_dir, self.resources[0]),
                lambda name: self._server(name).rescan(),
                partial(claims_on_host, config.driver_directory("")),
                self._former.follow,
                self._former.remove_specs,
                conditions,
                offers,
            )
            stack.callback(self._allocation_watch.close)
            self.observation = observation = Observation(
                self._backends,
                self._found,
                pod_resources,
                conditions,
                polling=lambda: files.polling,
            )
            runtime = Runtime(observation.metrics, conditions, files)
            self.servers = [
                assembly.create_server(config, resource, backend, runtime)
                for resource, backend in zip(config.resources, self._backends.values(), strict=True)
            ]
            self._node_reporter = NodeReporter(config, self.servers, conditions, observation.metrics)
            plugins = [server for server in self.servers if isinstance(server, DevicePlugin)]
            self._kubelet_view = KubeletView(plugins, pod_resources, runtime)
            routes = endpoints.routes_by_address(config, self.servers, observation)
            for address, served in routes.items():
                names = {address[0], *config.allowed_hosts}
                stack.enter_context(http.serving(listen(address), served, names))
            self._stack = stack.pop_all()

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Scan all resources, then start the servers and other work in ``tasks``, where their errors are raised.

        Raises the errors that keep the devices from being served: PluginError, HostError and OSError, as a group.
        """
        logs.set_up(self.config.log_level, self.config.log_format)
        logging.getLogger().addHandler(self.observation.log)
        try:
            await self._prepare()
        except BaseException:
            await self._close()
            raise
        LOG.info("starting", extra={"version": __version__, "resources": ",".join(self.resources)})
        drivers = [server for server in self.servers if isinstance(server, DraDriver)]
        beside: list[Coroutine[None, None, None]] = [
            self._kubelet_view.run(),
            self.observation.run(self.servers),
            self._allocation_watch.run(self.servers),
            yield_to_device_plugins(drivers, self._pod_resources),
            assembly.end_with_removed_mounts(self.config, self._conditions, self._worker),
            *self._node_reporter.work(),
        ]
        self._running = Running(tasks, self.servers, beside, self._run)

    async def _prepare(self) -> None:
        """Scan all resources side by side, and check that they share no device. A scan that hangs is no error."""
        with contextlib.suppress(WorkerTimeoutError):
            check = partial(assembly.check_phone_directories, self.config)
            await self._worker.run(check, DEFAULT.hang, label="check of the directories of phones")
        await self._allocation_watch.begin()
        results = await asyncio.gather(*(server.prepare() for server in self.servers), return_exceptions=True)
        errors = [each for each in results if isinstance(each, Exception) and not isinstance(each, WorkerTimeoutError)]
        if errors:
            raise ExceptionGroup("the configuration cannot be served", errors)
        assembly.check_overlap({name: self._found(name) for name in self.resources})
        await self._allocation_watch.begin()

    async def _run(self, server: ResourceServer) -> None:
        if server.driver is not None:  # publish no device that a pod has through the device plugin API
            await self._allocation_watch.ask()
        await server.run()

    def rescan(self) -> None:
        """Forget the history of all devices, and scan them."""
        for backend, server in zip(self._backends.values(), self.servers, strict=True):
            backend.input = backend.input._replace(resets=backend.input.resets + 1)
            server.rescan()

    def _server(self, name: str) -> ResourceServer:
        return self.servers[self.resources.index(name)]

    def _found(self, name: str) -> FoundDevices:
        """Return what the last scan of a resource has found; nothing before the first one. For any thread."""
        return self._server(name).inventory.found or FoundDevices()

    async def stop(self, within: float | None = None) -> None:
        """End all tasks and servers; see ``ResourceServer.stop``."""
        if self._running is not None:
            await asyncio.gather(self._running.stop(within), self._former.close(within))
        await self._close()
        LOG.info("stopped", extra={"resources": ",".join(self.resources)})

    async def _close(self) -> None:
        await self._node_reporter.close()
        self._stack.close()
