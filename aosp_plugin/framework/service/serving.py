"""Run device plugins or DRA drivers as a process, with probes and metrics.

``serve`` is the whole main program of a device plugin, ``serve_dra`` that of a DRA driver. A program with more to do is
a ``Process`` as well, and starts its servers with ``Running``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from aosp_plugin.framework.apiserver import SERVICE_ACCOUNT_DIRECTORY
from aosp_plugin.framework.apiserver.credentials import in_cluster
from aosp_plugin.framework.backend import Backend, is_extended_resource_name
from aosp_plugin.framework.cdi import DIRECTORY as CDI_DIRECTORY
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin, KubeletView
from aosp_plugin.framework.dra.driver import DraDirectories, DraDriver
from aosp_plugin.framework.dra.slices import driver_name
from aosp_plugin.framework.errors import PluginError, leaves
from aosp_plugin.framework.file_events import FileEvents
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.podresources_client import POD_RESOURCES_SOCKET, PodResources
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service import http, logs
from aosp_plugin.framework.service.address import listen, listen_address
from aosp_plugin.framework.service.http import Answer, Route
from aosp_plugin.framework.service.process import Process
from aosp_plugin.framework.worker import require_threads

LOG = logging.getLogger(__name__)


def serve(
    *backends: Backend[Any],
    kubelet_dir: str = KUBELET_DIRECTORY,
    pod_resources_socket: str = POD_RESOURCES_SOCKET,
    listen: str | None = None,
    allowed_hosts: Collection[str] = (),
    log_level: str = "info",
    log_format: str = "text",
) -> None:
    """Serve the resources of ``backends`` until SIGTERM or SIGINT.

    ``pod_resources_socket`` is the kubelet's podresources socket, through which the plugin checks whether the kubelet
    has its devices; empty for no check. ``listen`` is the ``host:port`` of an HTTP server with ``/healthz``,
    ``/readyz`` and ``/metrics``; None for no server. ``allowed_hosts`` are the host names under which clients reach it,
    without port, other than localhost and that of ``listen``. ``log_level`` is debug, info, warning or error;
    ``log_format`` is text or json; logs go to standard error, for which ``sys.stderr`` is replaced: see ``logs``.

    Call it in the main thread, as the last statement of the program: 4 s after the signal, the process is ended by
    force, whatever hangs, with a warning in the log and exit code 0. Clean up in ``Backend.close``, which has what is
    left of ``Timings.stop``.


    Any error ends the process with exit code 1, and each error is reported: a PluginError or OSError as one line on
    standard error, another one with its traceback in the log. Raises ValueError if an argument is invalid.
    """

    def create(runtime: Runtime) -> list[DevicePlugin]:
        return [DevicePlugin(backend, kubelet_dir=kubelet_dir, runtime=runtime) for backend in backends]

    _run(backends, create, pod_resources_socket, listen, allowed_hosts, log_level, log_format)


def serve_dra(
    *backends: Backend[Any],
    node_name: str | None = None,
    kubelet_root: str = os.path.dirname(KUBELET_DIRECTORY),
    cdi_dir: str = CDI_DIRECTORY,
    service_account_dir: str = SERVICE_ACCOUNT_DIRECTORY,
    listen: str | None = None,
    allowed_hosts: Collection[str] = (),
    log_level: str = "info",
    log_format: str = "text",
) -> None:
    """Serve the resources of ``backends`` by DRA drivers, one for each, until SIGTERM or SIGINT.

    The driver of example.com/gpu has the name gpu.example.com. ``node_name`` is the name of the Kubernetes node, by
    default the environment variable NODE_NAME. ``kubelet_root`` has the directories plugins_registry, plugins and
    pod-resources; it and ``cdi_dir`` are the host's. ``service_account_dir`` has the files token and ca.crt for the API
    server, whose address is in the environment of each pod. Everything else is as for ``serve``.
    """
    node = node_name or os.environ.get("NODE_NAME", "")
    if not node:
        raise ValueError("serve_dra() requires node_name, or the environment variable NODE_NAME")

    def create(runtime: Runtime) -> list[ResourceServer]:

        return [
            DraDriver(
                backend,
                node_name=node,
                directories=DraDirectories(
                    registry=os.path.join(kubelet_root, "plugins_registry"),
                    state=os.path.join(kubelet_root, "plugins", driver_name(backend.resource_name)),
                    cdi=cdi_dir,
                ),
                credentials=in_cluster(
                    service_account_dir, conditions=runtime.conditions, resource=backend.resource_name
                ),
                kubelet_socket=os.path.join(kubelet_root, "pod-resources", "kubelet.sock"),
                runtime=runtime,
            )
            for backend in backends
        ]

    _run(backends, create, "", listen, allowed_hosts, log_level, log_format)


def _run(
    backends: Sequence[Backend[Any]],
    create: Callable[[Runtime], Sequence[ResourceServer]],
    pod_resources_socket: str,
    listen: str | None,
    allowed_hosts: Collection[str],
    log_level: str,
    log_format: str,
) -> None:
    """Run the servers that ``create`` returns, and report their errors."""
    names = [backend.resource_name for backend in backends]
    if not names or len(set(names)) < len(names) or not all(map(is_extended_resource_name, names)):
        raise ValueError(
            f"serve() requires backends with different resource names such as example.com/gpu, not {names}"
        )
    address = listen_address(listen or "")
    logs.replace_stderr()
    logs.set_up(log_level, log_format)
    try:
        require_threads()
        asyncio.run(_serve(create, pod_resources_socket, address, allowed_hosts))
    except Exception as error:  # noqa: BLE001 - reported, whatever it is
        _report(leaves(error))
        sys.exit(1)


def _report(errors: Sequence[BaseException]) -> None:
    """Report each error once: the same one may have ended several plugins."""
    lines = dict.fromkeys(str(error) for error in errors if isinstance(error, (PluginError, OSError)))
    for line in lines:
        sys.stderr.write(f"{os.path.basename(sys.argv[0])}: {line}\n")
    for error in errors:
        if not isinstance(error, (PluginError, OSError)):
            LOG.error("task failed, exiting", exc_info=error)


class Running:
    """Servers and the tasks beside them, from their start to their end."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        servers: Sequence[ResourceServer],
        beside: Iterable[Coroutine[None, None, None]],
        run: Callable[[ResourceServer], Coroutine[None, None, None]] = lambda server: server.run(),
    ) -> None:
        """Start ``run`` for each server, and ``beside``, which is cancelled when the servers have ended."""
        self._servers = servers
        self._serving = [tasks.create_task(run(server)) for server in servers]
        self._beside = [tasks.create_task(work) for work in beside]

    async def stop(self, within: float | None = None) -> None:
        """Stop the servers, and wait until all has ended; see ``ResourceServer.stop``."""
        for server in self._servers:
            server.stop(within)
        await asyncio.wait(self._serving)
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)


async def _serve(
    create: Callable[[Runtime], Sequence[ResourceServer]],
    pod_resources_socket: str,
    address: tuple[str, int] | None,
    allowed_hosts: Collection[str],
) -> None:
    """Run the servers that ``create`` returns. The podresources socket is that of device plugins."""
    process = Process()

    async def work(tasks: asyncio.TaskGroup) -> None:
        with contextlib.ExitStack() as stack:
            conditions = Conditions()
            files = stack.enter_context(contextlib.closing(FileEvents(conditions=conditions)))
            metrics = Metrics(polling=lambda: files.polling)
            runtime = Runtime(metrics, conditions, files)
            process.servers = servers = create(runtime)
            beside = []
            if plugins := [server for server in servers if isinstance(server, DevicePlugin)]:
                pod_resources = PodResources(pod_resources_socket, [plugin.resource_name for plugin in plugins])
                stack.callback(pod_resources.close)
                beside.append(KubeletView(plugins, pod_resources, runtime).run())
            running = Running(tasks, servers, beside)
            if address is not None:
                routes = probe_routes(servers)
                routes["/metrics"] = lambda: http.Answer(*metrics.exposition())
                stack.enter_context(http.serving(listen(address), routes, {address[0], *allowed_hosts}))
            await process.stop.wait()
            await running.stop(process.stop.remaining)

    await process.run(work)


def probe_routes(servers: Sequence[ResourceServer]) -> dict[str, Route]:
    """Return the routes ``/healthz`` and ``/readyz`` of resources that are served in the current event loop.

    Only what a restart of the process heals makes ``/healthz`` fail: an event loop that does not turn, and does not
    answer here. An error that ends a task ends the process. Trouble of the host makes ``/readyz`` fail.
    """

    async def turns() -> Answer:
        return http.text(HTTPStatus.OK, "ok")

    async def ready() -> Answer:
        found = [(server.resource_name, each) for server in servers for each in server.conditions()]
        blocking = [(name, each.detail) for name, each in found if each.kind.blocks]
        causes = [text if len(servers) == 1 else f"{name}: {text}" for name, text in blocking]
        said = [f"{each.resource_name}: {text}" for each in servers for text in _said_of(each, ready=not causes)]
        if causes:
            return http.text(HTTPStatus.SERVICE_UNAVAILABLE, "; ".join([*causes, *said]))
        return http.text(HTTPStatus.OK, f"ok: {'; '.join(said)}" if said else "ok")

    return {"/healthz": http.in_loop(turns), "/readyz": http.in_loop(ready)}


def _said_of(server: ResourceServer, *, ready: bool) -> Iterator[str]:
    """Yield what the readiness probe says of a resource besides why it is not ready."""
    snapshot, driver, confirmation = server.inventory.snapshot, server.driver, server.confirmation
    if snapshot.devices and not snapshot.healthy:
        yield f"none of {len(snapshot.devices)} devices is healthy"
    elif snapshot.revision and not snapshot.healthy:
        yield "no devices"
    elif driver is not None and ready:
        yield f"{driver.slices} ResourceSlices, {driver.claims} prepared claims"
    elif driver is None and server.registered and (ready or confirmation.allocatable is not None):
        yield str(confirmation)  # the number of the time before the registration has ended would be misleading
    yield from (each.detail for each in server.conditions() if each.detail and not each.kind.blocks)
