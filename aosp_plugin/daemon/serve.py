"""``aosp-plugin serve``: the configuration made into a running plugin, and the signals that end or change it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin import __version__, config
from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.daemon import endpoints
from aosp_plugin.daemon.assembly import assemble, check, check_overlap
from aosp_plugin.errors import HostError, PluginError
from aosp_plugin.framework.aio import background_task, run_in_daemon_thread, wait_any
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.service import http, logs, systemd
from aosp_plugin.framework.service.heartbeat import Heartbeat
from aosp_plugin.framework.service.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from aosp_plugin.config import Config
    from aosp_plugin.daemon.assembly import ResourceRuntime
    from aosp_plugin.daemon.leaks import Leaks
    from aosp_plugin.framework import DevicePlugin

LOG = logging.getLogger(__name__)

COLLECT_AFTER = 20_000
"""Objects that are made and kept until the collector looks for cycles among them."""

EXIT_WITHIN = 1.8
"""Seconds from SIGTERM to the end, whatever is still under way."""


async def serve(load: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT. ``load`` reads the configuration: now, and again at every SIGHUP.

    Raises PluginError where the plugin can't start, or can't ever be registered.
    """
    # What is loaded stays, and nodes have no cycles: a collector that looked at them would take a third of each look.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, stop)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    current = load()
    while not stop.is_set():
        current = await _run(current, load, stop, reload)


def _end(stop: asyncio.Event) -> None:
    """Have everything end, and see to it that nothing keeps the process, be it a call that hangs or gRPC's threads."""
    stop.set()
    last_resort = threading.Timer(EXIT_WITHIN, os._exit, (0,))
    last_resort.daemon = True
    last_resort.start()


async def _run(current: Config, load: Callable[[], Config], stop: asyncio.Event, reload: asyncio.Event) -> Config:
    """Serve with one configuration until ``stop`` is set or there is another one; return what to go on with."""
    logs.set_up(current.log_level, current.log_format)
    names = ",".join(resource.resource_name for resource in current.resources)
    LOG.info("starting", extra={"version": __version__, "resources": names})
    await run_in_daemon_thread(partial(check_overlap, current), "overlap")
    files = FileEvents()
    metrics, heartbeat = Metrics(Reason), Heartbeat()
    served = assemble(current, files, metrics.observer)
    ended = asyncio.Event()
    metrics.polling = lambda: files.polling
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(contextlib.closing(files))
        leaks = await stack.enter_async_context(_watching_for_leaks(current, served, stop))
        metrics.leaks = leaks
        stack.enter_context(_listening(current, served, files, metrics, leaks, heartbeat))
        await stack.enter_async_context(background_task(heartbeat.run()))
        plugins = [one.plugin for one in served]
        told = systemd.tell(lambda: [one.unready for one in plugins], lambda: [one.unhealthy for one in plugins], stop)
        await stack.enter_async_context(background_task(told))
        running = asyncio.create_task(_run_all(plugins, current))
        running.add_done_callback(lambda _: ended.set())
        following = current
        while following == current and not (stop.is_set() or ended.is_set()):
            if await wait_any(reload, stop, ended) and reload.is_set():
                reload.clear()
                if (read := await _reloaded(current, load)) is not None:
                    following = read
                    for one in served:
                        one.backend.forget()
                        one.plugin.rescan()
        for one in served:
            one.plugin.stop()
        await running
    LOG.info("stopped", extra={"resources": names})
    return following


async def _run_all(plugins: Sequence[DevicePlugin], current: Config) -> None:
    """Run every plugin to its end; one that fails ends the others, and raises."""
    running = [asyncio.create_task(plugin.run(require_devices=current.require_devices)) for plugin in plugins]
    await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
    for plugin in plugins:
        plugin.stop()
    await asyncio.gather(*running)


@contextlib.asynccontextmanager
async def _watching_for_leaks(
    current: Config, served: Sequence[ResourceRuntime], stop: asyncio.Event
) -> AsyncIterator[Callable[[], Mapping[str, Leaks]]]:
    """Look for leaks while the context lasts, where that is wanted; yield what returns those of the last round."""
    if not current.leak_scan_interval:
        yield dict
        return
    from aosp_plugin.daemon.leak_detector import LeakDetector  # noqa: PLC0415 - psutil is a megabyte

    watch = LeakDetector(served, current.kubelet_dir, current.leak_scan_interval)
    async with background_task(watch.run(stop)):
        yield lambda: watch.latest


def _listening(
    current: Config,
    served: Sequence[ResourceRuntime],
    files: FileEvents,
    metrics: Metrics,
    leaks: Callable[[], Mapping[str, Leaks]],
    heartbeat: Heartbeat,
) -> contextlib.AbstractContextManager[object]:
    address = config.listen_address(current.listen)
    if address is None:
        return contextlib.nullcontext()
    routes = endpoints.routes(
        served,
        files,
        leaks,
        metrics,
        stuck=heartbeat.problem,
        pod_resources_socket=current.pod_resources_socket,
        leak_detection=current.leak_scan_interval > 0,
    )
    return http.serving(address, routes)


async def _reloaded(current: Config, load: Callable[[], Config]) -> Config | None:
    """Return the configuration as it reads now; None where that is wrong, or could not be served."""
    try:
        following = load()
        await run_in_daemon_thread(partial(check, following), "check")
    except (PluginError, HostError, OSError) as error:
        LOG.error("the new configuration is refused, and the old one stays", extra={"error": str(error)})  # noqa: TRY400
        return None
    LOG.info("configuration read again", extra={"changed": following != current})
    return following
