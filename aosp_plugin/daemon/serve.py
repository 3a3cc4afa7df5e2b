"""``aosp-plugin serve``: runs the generations of the configuration, and handles the signals that stop or reload it.

A reload checks the new configuration while the current one serves, then stops the current generation and starts the
new one. If that fails, the current configuration is started again. Listening sockets outlive a generation, so that
clients of an unchanged address wait for a moment instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from aosp_plugin import __version__
from aosp_plugin.config import listen_address, status_address
from aosp_plugin.daemon.assembly import check
from aosp_plugin.daemon.generation import Generation
from aosp_plugin.errors import HostError, PluginError
from aosp_plugin.framework.aio import complete_unless, leaves, wait_any
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.service.address import listen
from aosp_plugin.framework.service.liveness import Heartbeat, notify
from aosp_plugin.framework.service.termination import stop_on_signals
from aosp_plugin.framework.worker import Worker
from aosp_plugin.report.changes import History
from aosp_plugin.report.document import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aosp_plugin.config import Config

LOG = logging.getLogger(__name__)

Address: TypeAlias = "tuple[str, int]"

CHECK_TIMEOUT = 10.0
"""Seconds to read the configuration again, to bind an address, and to check whether the host can serve it: a file may
be on a file system that hangs."""


async def serve(load: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT. ``load`` reads the configuration at the start and after each SIGHUP.

    Raises an ExceptionGroup of everything that failed: PluginError, HostError or OSError if the plugin cannot start, or
    can never register; any other error is a bug.
    """
    gc.freeze()  # modules stay loaded, see also ``__main__``
    await Daemon(load).run()


class Daemon:
    """The process: one generation at a time, and what outlives it."""

    def __init__(self, load: Callable[[], Config]) -> None:
        """``load`` reads the configuration; it is called in a worker thread."""
        self._load = load
        self._stop, self._reload = asyncio.Event(), asyncio.Event()
        self._heartbeat = Heartbeat()
        self._history = History()
        self._listeners: dict[Address, socket.socket] = {}
        self._generation: Generation | None = None

    async def run(self) -> None:
        """Serve until a signal stops the process. All its tasks are in one group, so that none can fail unnoticed."""
        stop_on_signals(self._stop.set, self._reload.set)
        async with asyncio.TaskGroup() as tasks:
            heartbeat = tasks.create_task(self._heartbeat.run())
            tasks.create_task(notify(self._unready, self._stop))
            if await complete_unless(self._stop, self._start_first(tasks)):
                await self._serve(tasks)
            heartbeat.cancel()

    def _unready(self) -> list[str]:
        return [server.unready for server in self._generation.servers] if self._generation else ["starting"]

    async def _start_first(self, tasks: asyncio.TaskGroup) -> None:
        """Start with the configuration. Nothing that a running plugin would only report keeps the process from it."""
        with contextlib.closing(Worker("configuration")) as worker:
            config = await worker.run(self._load)
            self._history.record(Event.STARTED, f"aosp-plugin {__version__} started")
            self._listeners = await self._listen(worker, config)
        one = len(config.resources) == 1
        self._generation = await self._started(config, tasks, prepare=not one, require_devices=config.require_devices)

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        """Handle reloads until the process is stopped."""
        while not self._stop.is_set():
            await wait_any(self._stop, self._reload)
            if not await complete_unless(self._stop, self._reload_configuration(tasks)):
                break
            # A generation that was replaced is in reference cycles, with its memory. By itself, the collector might
            # not run for days in an idle process.
            gc.collect()
        if self._generation is not None:
            await self._generation.stop(replaced=False)

    async def _reload_configuration(self, tasks: asyncio.TaskGroup) -> None:
        """Read the configuration again; serve it if it has changed and can be served, and else rescan or go on."""
        generation = self._generation
        if self._stop.is_set() or generation is None:
            return
        self._reload.clear()
        previous, listeners = generation.config, self._listeners
        try:
            config = await self._checked(previous)
            if config == previous:
                generation.rescan()
            else:
                await self._replace(generation, config, tasks)
        except Exception as error:  # also a bug that only this configuration reveals
            _close_except(listeners, self._listeners)
            self._listeners = listeners
            errors = leaves(error)
            bugs = [error for error in errors if not isinstance(error, (PluginError, HostError, OSError))]
            LOG.error(  # noqa: TRY400 - a traceback only of a bug
                "configuration reload rejected, keeping the current configuration",
                extra={"error": "; ".join(str(error) or repr(error) for error in errors)},
                exc_info=bugs[0] if bugs else None,
            )
            if self._generation is None:
                self._generation = await self._started(previous, tasks, prepare=True)
        else:
            _close_except(self._listeners, listeners)
            LOG.info("configuration reloaded", extra={"changed": config != previous})

    async def _checked(self, previous: Config) -> Config:
        """Return the configuration as it is now. If it has changed, bind its addresses, and check it on this host.

        The plugin serves ``previous`` meanwhile.
        """
        # A thread of its own: one that hangs does not keep the next reload from being handled.
        with contextlib.closing(Worker("configuration")) as worker:
            config = await worker.run(self._load, CHECK_TIMEOUT, label="reading the configuration")
            if config != previous:
                self._listeners = await self._listen(worker, config)
                await worker.run(partial(check, config), CHECK_TIMEOUT, label="check of the configuration")
            return config

    async def _listen(self, worker: Worker, config: Config) -> dict[Address, socket.socket]:
        """Return a socket for each address: one that is there already, or a new one.

        Resolves host names in the worker thread. Raises ServiceError, WorkerTimeoutError and OSError.
        """
        present, listeners = self._listeners, dict[Address, socket.socket]()
        try:
            for address in filter(None, (listen_address(config.listen), status_address(config))):
                if address in present:
                    listeners[address] = present[address]
                elif address not in listeners:
                    bind = partial(listen, address, beside=list(present.values()))
                    label = f"binding {address[0]}:{address[1]}"
                    listeners[address] = await worker.run(bind, CHECK_TIMEOUT, label=label)
        except BaseException:
            _close_except(present, listeners)
            raise
        return listeners

    async def _replace(self, generation: Generation, config: Config, tasks: asyncio.TaskGroup) -> None:
        """Serve another configuration. Without ``_generation`` after an error, nothing serves any more."""
        await generation.stop(replaced=True)
        self._generation = None
        self._generation = await self._started(config, tasks, prepare=True, previous=generation.config)
        self._history.record(Event.RELOADED, "configuration reloaded")

    async def _started(
        self,
        config: Config,
        tasks: asyncio.TaskGroup,
        *,
        prepare: bool,
        require_devices: bool = False,
        previous: Config | None = None,
    ) -> Generation:
        """Return a generation that serves. Raises what keeps it from serving.

        ``prepare``: scan before, so that an error of the scan is raised here instead of in ``tasks``.
        """
        logs.set_up(config.log_level, config.log_format)
        generation = Generation(config, self._heartbeat.problem, self._history, self._listeners)
        try:
            generation.serve_http_after_start(tasks)
            if prepare:
                await generation.prepare(require_devices=require_devices)
            generation.start(tasks, require_devices=require_devices, previous=previous)
        except BaseException:
            await generation.discard()
            raise
        return generation


def _close_except(
    kept: Mapping[tuple[str, int], socket.socket], sockets: Mapping[tuple[str, int], socket.socket]
) -> None:
    """Close the sockets whose addresses are not to be kept."""
    for address, listener in sockets.items():
        if address not in kept:
            listener.close()
