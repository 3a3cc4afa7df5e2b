"""Run plugins as a process: signals, logs, probes and metrics.

``serve`` is the whole main program of a device plugin. A daemon with more to do uses its parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import background_task
from aosp_plugin.framework.deviceplugin import KUBELET_DIRECTORY
from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory
from aosp_plugin.framework.deviceplugin.kubelet_view import KubeletView
from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.observer import NULL_OBSERVER
from aosp_plugin.framework.podresources_client import POD_RESOURCES_SOCKET, PodResources
from aosp_plugin.framework.resource_names import is_extended_resource_name
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.service.address import listen_address
from aosp_plugin.framework.service.heartbeat import Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aosp_plugin.framework.backend import Backend
    from aosp_plugin.framework.service.http import Route

EXIT_WITHIN = 1.8
"""Seconds from SIGTERM until the process is ended by force."""


def serve(
    *backends: Backend,
    kubelet_dir: str = KUBELET_DIRECTORY,
    pod_resources_socket: str = POD_RESOURCES_SOCKET,
    listen: str | None = None,
    log_level: str = "info",
    log_format: str = "text",
) -> None:
    """Serve the resources of ``backends`` until SIGTERM or SIGINT.

    ``pod_resources_socket`` is the kubelet's podresources socket, through which the plugin checks whether the kubelet
    has its devices; empty for no check. ``listen`` is the ``host:port`` of an HTTP server with ``/healthz``,
    ``/readyz`` and ``/metrics``; None for no server. ``log_level`` is debug, info, warning or error; ``log_format`` is
    text or json; logs go to standard error.

    Call it in the main thread, as the last statement of the program: ``EXIT_WITHIN`` seconds after the signal, the
    process is ended by force, even if a scan hangs. Clean up in ``Backend.close``.

    A PluginError or OSError ends the process with one line on standard error and the exit code 1. Raises ValueError if
    an argument is invalid.
    """
    names = [backend.resource_name for backend in backends]
    if not names or len(set(names)) < len(names) or not all(map(is_extended_resource_name, names)):
        raise ValueError(
            f"serve() requires backends with different resource names such as example.com/gpu, not {names}"
        )
    address = listen_address(listen or "")
    logs.set_up(log_level, log_format)
    try:
        for name in names:
            PluginDirectory(kubelet_dir, name).check()
        asyncio.run(_serve(backends, kubelet_dir, pod_resources_socket, address))
    except (PluginError, OSError) as error:
        sys.stderr.write(f"{os.path.basename(sys.argv[0])}: {error}\n")
        sys.exit(1)


async def _serve(
    backends: Iterable[Backend], kubelet_dir: str, pod_resources_socket: str, address: tuple[str, int] | None
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        files = stack.enter_context(contextlib.closing(FileEvents()))
        metrics = None
        if address is not None:
            from aosp_plugin.framework.service.metrics import Metrics  # noqa: PLC0415 - takes megabytes of memory

            metrics = Metrics(polling=lambda: files.polling)
        plugins = [
            DevicePlugin(
                backend,
                kubelet_dir=kubelet_dir,
                files=files,
                observer=metrics.observer(backend.resource_name) if metrics else NULL_OBSERVER,
            )
            for backend in backends
        ]
        stop_on_signals(lambda: stop_all(plugins))
        pod_resources = PodResources(pod_resources_socket, [plugin.resource_name for plugin in plugins])
        stack.callback(pod_resources.close)
        await stack.enter_async_context(background_task(KubeletView(plugins, pod_resources).run()))
        if address is not None and metrics is not None:
            from aosp_plugin.framework.service import http  # noqa: PLC0415 - as above

            heartbeat = Heartbeat()
            routes = probe_routes(plugins, heartbeat.problem)
            routes["/metrics"] = lambda: http.Answer(*metrics.exposition())
            stack.enter_context(http.serving(address, routes))
            await stack.enter_async_context(background_task(heartbeat.run()))
        await run_plugins(plugins)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` in the running event loop on SIGTERM and SIGINT.

    The process is ended by force after ``EXIT_WITHIN`` seconds, so that neither a call that hangs nor gRPC's threads
    can keep it.
    """

    def handle() -> None:
        stop()
        forced_exit = threading.Timer(EXIT_WITHIN, os._exit, (0,))
        forced_exit.daemon = True
        forced_exit.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle)


async def run_plugins(plugins: Sequence[DevicePlugin], *, require_devices: bool = False) -> None:
    """Run the plugins until all have stopped. If one fails, stop the others, and raise its error."""
    tasks = [asyncio.create_task(plugin.run(require_devices=require_devices)) for plugin in plugins]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    stop_all(plugins)
    await asyncio.gather(*tasks)


def stop_all(plugins: Iterable[DevicePlugin]) -> None:
    """Stop the plugins."""
    for plugin in plugins:
        plugin.stop()


def probe_routes(plugins: Sequence[DevicePlugin], stuck: Callable[[], str]) -> dict[str, Route]:
    """Return the routes ``/healthz`` and ``/readyz`` of plugins that run in the current event loop.

    ``stuck`` returns what is wrong with the event loop, and is called in other threads.
    """
    from aosp_plugin.framework.service import http  # noqa: PLC0415 - as above

    async def unready() -> str:
        return _join((plugin.resource_name, plugin.unready) for plugin in plugins)

    def unhealthy() -> str:
        return stuck() or _join((plugin.resource_name, plugin.unhealthy) for plugin in plugins)

    def details(ready: bool) -> str:  # noqa: FBT001 - called by position
        texts = [
            (plugin.resource_name, text)
            for plugin in plugins
            for text in (str(plugin.confirmation) if ready or not plugin.confirmation.unknown else "", plugin.notice)
        ]
        return "; ".join(f"{name}: {text}" for name, text in texts if text)

    return {"/healthz": http.probe(unhealthy), "/readyz": http.probe(http.in_loop(unready), details)}


def _join(problems: Iterable[tuple[str, str]]) -> str:
    """Return the problems in one line, with the names of the resources if there are several resources."""
    pairs = list(problems)
    return "; ".join(problem if len(pairs) == 1 else f"{name}: {problem}" for name, problem in pairs if problem)
