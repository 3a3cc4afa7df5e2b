"""``aosp-plugin serve``: runs the plugins of a configuration, and handles the signals that stop or reload it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin import __version__
from aosp_plugin.daemon import endpoints
from aosp_plugin.daemon.assembly import check, check_overlap, create_backends
from aosp_plugin.daemon.observation import Observation
from aosp_plugin.errors import HostError, PluginError
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.aio import background_task, run_in_daemon_thread, wait_any
from aosp_plugin.framework.deviceplugin.kubelet_view import KubeletView
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.service import http, logs, systemd
from aosp_plugin.framework.service.heartbeat import Heartbeat
from aosp_plugin.framework.service.serving import run_plugins, stop_all, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.config import Config
    from aosp_plugin.daemon.leak_detector import LeakDetector

LOG = logging.getLogger(__name__)

GC_THRESHOLD = 20_000
"""Surviving allocations before the garbage collector runs."""


async def serve(load: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT. ``load`` reads the configuration at the start and after each SIGHUP.

    Raises PluginError or HostError if the plugin cannot start, or can never register.
    """
    # Modules stay loaded and devices have no reference cycles. Collecting them would take a third of each scan.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    stop, reload = asyncio.Event(), asyncio.Event()
    stop_on_signals(stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    config = load()
    while not stop.is_set():
        config = await _run(config, load, stop, reload)


async def _run(config: Config, load: Callable[[], Config], stop: asyncio.Event, reload: asyncio.Event) -> Config:
    """Serve with one configuration until ``stop`` is set or a reload changes it. Return the next configuration."""
    logs.set_up(config.log_level, config.log_format)
    names = ",".join(resource.resource_name for resource in config.resources)
    LOG.info("starting", extra={"version": __version__, "resources": names})
    await run_in_daemon_thread(partial(check_overlap, config), "overlap")
    async with contextlib.AsyncExitStack() as stack:
        files = stack.enter_context(contextlib.closing(FileEvents()))
        backends = create_backends(config)
        leak_detector = _create_leak_detector(config, backends)
        pod_resources = PodResources(config.pod_resources_socket, backends)
        observation = Observation(
            config.resources, backends, pod_resources, leak_detector, polling=lambda: files.polling
        )
        heartbeat = Heartbeat()
        plugins = [
            DevicePlugin(backend, kubelet_dir=config.kubelet_dir, files=files, observer=observation.observer(name))
            for name, backend in backends.items()
        ]
        stack.callback(pod_resources.close)
        await stack.enter_async_context(background_task(KubeletView(plugins, pod_resources).run(stop)))
        routes = endpoints.routes(plugins, files, observation, stuck=heartbeat.problem)
        for address, served in endpoints.by_address(config, routes).items():
            stack.enter_context(http.serving(address, served, config.allowed_hosts))
        if leak_detector:
            await stack.enter_async_context(background_task(leak_detector.run(stop)))
        await stack.enter_async_context(background_task(heartbeat.run()))
        notifications = systemd.notify(lambda: [plugin.unready for plugin in plugins], stop)
        await stack.enter_async_context(background_task(notifications))
        ended = asyncio.Event()
        running = asyncio.create_task(run_plugins(plugins, require_devices=config.require_devices))
        running.add_done_callback(lambda _: ended.set())
        next_config = config
        while next_config == config and not (stop.is_set() or ended.is_set()):
            await wait_any(reload, stop, ended)
            if reload.is_set():
                reload.clear()
                reloaded = await _reload(config, load)
                if reloaded is not None:
                    next_config = reloaded
                    for backend, plugin in zip(backends.values(), plugins, strict=True):
                        backend.reset()
                        plugin.rescan()
        stop_all(plugins)
        await running
    LOG.info("stopped", extra={"resources": names})
    return next_config


def _create_leak_detector(config: Config, backends: Mapping[str, BinderBackend]) -> LeakDetector | None:
    """Return the leak detector, or None if leak detection is off."""
    if not config.leak_scan_interval:
        return None
    from aosp_plugin.daemon.leak_detector import LeakDetector  # noqa: PLC0415 - psutil takes a megabyte of memory

    return LeakDetector(backends, config.kubelet_dir, config.leak_scan_interval)


async def _reload(config: Config, load: Callable[[], Config]) -> Config | None:
    """Read the configuration again; return None if it is invalid or cannot be served."""
    try:
        reloaded = load()
        await run_in_daemon_thread(partial(check, reloaded), "check")
    except (PluginError, HostError, OSError) as error:
        LOG.error(  # noqa: TRY400
            "configuration reload rejected, keeping the current configuration", extra={"error": str(error)}
        )
        return None
    LOG.info("configuration reloaded", extra={"changed": reloaded != config})
    return reloaded
