"""``aosp-plugin serve``: the configuration made into a running plugin, and the signals that end or change it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

from aosp_plugin import __version__, config
from aosp_plugin.binder.edits import Policy
from aosp_plugin.binder.host import Host
from aosp_plugin.deviceplugin import DevicePlugin
from aosp_plugin.deviceplugin.kubelet import PluginDirectory
from aosp_plugin.errors import AospPluginError, DeviceDirectoryError
from aosp_plugin.operate import http, logs
from aosp_plugin.plugin import BinderBackend
from aosp_plugin.waiting import any_set

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.config import Config

LOG = logging.getLogger(__name__)

EXIT_WITHIN = 1.8
"""Seconds from SIGTERM to the end, whatever is still under way."""

LONGEST_SOCKET_NAME = 40
"""Characters of a socket's name that come from the resource's name."""


async def serve(load: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT. ``load`` reads the configuration: now, and again at every SIGHUP.

    Raises AospPluginError where the plugin can't start, or can't ever be registered.
    """
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
    LOG.info(
        "starting",
        extra={"version": __version__, "resource": current.resource_name, "dir": current.device_dir},
    )
    backend = make_backend(current)
    plugin = DevicePlugin(
        backend,
        resource_name=current.resource_name,
        socket_name=socket_name(current.resource_name),
        kubelet_dir=current.kubelet_dir,
    )
    ended = asyncio.Event()
    with _listening(current, plugin):
        running = asyncio.create_task(plugin.run(require_devices=current.require_nodes))
        running.add_done_callback(lambda _: ended.set())
        following = current
        while following == current and not (stop.is_set() or ended.is_set()):
            if await any_set(reload, stop, ended) and reload.is_set():
                reload.clear()
                if (read := _reloaded(current, load)) is not None:
                    following = read
                    backend.forget()
                    plugin.look_again()
        plugin.stop()
        await running
    LOG.info("stopped", extra={"resource": current.resource_name})
    return following


def make_backend(current: Config) -> BinderBackend:
    """Return the nodes that a configuration speaks of."""
    return BinderBackend(
        Host(current.host_root),
        directory=current.device_dir,
        prefix=current.device_prefix,
        verify=current.verify,
        forget_after=current.forget_after,
        policy=Policy(
            permissions=current.permissions,
            isolation=current.isolation,
            shared_mounts=[config.shared_path(text) for text in current.shared_mounts],
            shared_devices=[config.shared_path(text) for text in current.shared_devices],
            visible_devices_variable=current.visible_devices_env,
            path=current.path_env,
        ),
    )


def socket_name(resource_name: str) -> str:
    """Return what the plugin's sockets are called, up to the number that makes each one's name its own.

    A resource's name may be 308 characters long and a socket's path 107 bytes, of which the kubelet's directory and
    the numbers take 61. So a long one is cut, and told from others that begin alike by a digest.
    """
    name = resource_name.replace("/", "_")
    if len(name) > LONGEST_SOCKET_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: LONGEST_SOCKET_NAME - 9]}-{digest}"
    return f"aosp-{name}"


def _listening(current: Config, plugin: DevicePlugin) -> contextlib.AbstractContextManager[object]:
    address = config.listen_address(current.listen)
    if address is None:
        return contextlib.nullcontext()
    return http.serving(address, {"/healthz": lambda: plugin.unhealthy, "/readyz": lambda: plugin.unready})


def _reloaded(current: Config, load: Callable[[], Config]) -> Config | None:
    """Return the configuration as it reads now; None where that is wrong, or could not be served."""
    try:
        following = load()
        PluginDirectory(following.kubelet_dir, socket_name(following.resource_name)).check()
        if not Host(following.host_root).exists(following.device_dir):
            raise DeviceDirectoryError(f"the device directory {following.device_dir} does not exist")
    except AospPluginError as error:
        LOG.error("the new configuration is refused, and the old one stays", extra={"error": str(error)})  # noqa: TRY400
        return None
    LOG.info("configuration read again", extra={"changed": following != current})
    return following
