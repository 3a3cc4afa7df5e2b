"""``aosp-plugin serve``: runs the generations of the configuration, one at a time.

A reload reads and checks the new configuration, binds its addresses, and creates all that is to serve it, while the
current generation serves. What fails until then changes nothing. Then the current generation stops, and the new one
starts; if it cannot, the current configuration is served again, and what fails then is retried. Listening sockets
outlive a generation, so that clients of an unchanged address wait for a moment instead of being refused.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Collection
from functools import partial

from aosp_plugin import __version__
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.config.keys import Config, status_address
from aosp_plugin.daemon.assembly import check_host
from aosp_plugin.daemon.generation import Generation, Listeners
from aosp_plugin.framework.aio import complete_unless, leaves, wait_any
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.service.address import listen, listen_address
from aosp_plugin.framework.service.serving import Process
from aosp_plugin.framework.timings import DEFAULT
from aosp_plugin.framework.worker import Worker
from aosp_plugin.report.document import Event, ReloadReport
from aosp_plugin.report.history import History

LOG = logging.getLogger(__name__)


async def serve_configuration(load: Callable[[], Config]) -> None:
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
        self._process = Process()
        self._worker = Worker("configuration")
        self._history = History()
        self._generation: Generation | None = None

    async def run(self) -> None:
        """Serve until a signal stops the process."""
        await self._process.run(self._serve, reloads=True)

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        stop, reload = self._process.stop, self._process.reload
        if await complete_unless(stop, self._start_first(tasks)):
            while not stop.is_set():
                await wait_any(stop, reload)
                if not await complete_unless(stop, self._reload(tasks)):
                    break
                # A generation that was replaced is in reference cycles, with its memory. By itself, the collector might
                # not run for days in an idle process.
                gc.collect()
            if self._generation is not None:
                await self._generation.stop(stop.remaining)

    async def _start_first(self, tasks: asyncio.TaskGroup) -> None:
        """Start with the configuration. Nothing that a running plugin would only report keeps the process from it."""
        config = await self._worker.run(self._load)
        self._history.record(Event.STARTED, f"aosp-plugin {__version__} started")
        generation = Generation(config, self._history, await self._listen(config))
        await self._start(generation, tasks, require_devices=config.require_devices)

    async def _start(
        self,
        generation: Generation,
        tasks: asyncio.TaskGroup,
        *,
        require_devices: bool = False,
        previous: Collection[str] = (),
        restores: bool = False,
    ) -> None:
        await generation.start(tasks, require_devices=require_devices, previous=previous, restores=restores)
        self._generation, self._process.servers = generation, generation.servers

    async def _reload(self, tasks: asyncio.TaskGroup) -> None:
        """Read the configuration again; serve it if it has changed and can be served, and else rescan or go on."""
        generation = self._generation
        if self._process.stop.is_set() or generation is None:
            return
        self._process.reload.clear()
        began = self._history.clock()
        # A call of the last reload may hang, with a directory that this configuration no longer names.
        self._worker.close()
        self._worker = Worker("configuration")
        following = None
        try:
            config = await self._worker.run(self._load, DEFAULT.hang, label="reading the configuration")
            if config != generation.config:
                following = await self._checked(config, generation.listeners)
                await generation.stop()
                await self._start(following, tasks, previous=generation.resources)
        except Exception as error:  # also a bug that only this configuration reveals
            errors = leaves(error)
            reason = "; ".join(str(error) or repr(error) for error in errors)
            bugs = [error for error in errors if not isinstance(error, (PluginError, HostError, OSError))]
            LOG.error(  # noqa: TRY400 - a traceback only of a bug
                "configuration reload rejected, keeping the current configuration",
                extra={"error": reason},
                exc_info=bugs[0] if bugs else None,
            )
            if following is not None:
                _close_except(generation.listeners, following.listeners)
                restored = Generation(generation.config, self._history, generation.listeners)
                await self._start(restored, tasks, previous=following.resources, restores=True)
            self._history.last_reload = ReloadReport(began, changed=False, error=reason)
            return
        if following is None:
            generation.rescan()
        else:
            _close_except(following.listeners, generation.listeners)
            self._history.record(Event.RELOADED, "configuration reloaded")
        self._history.last_reload = ReloadReport(began, changed=following is not None, error="")
        LOG.info("configuration reloaded", extra={"changed": following is not None})

    async def _checked(self, config: Config, present: Listeners) -> Generation:
        """Return what is to serve a configuration that this host can serve, with its sockets. Raises what it cannot."""
        listeners = await self._listen(config, present)
        try:
            await self._worker.run(partial(check_host, config), DEFAULT.hang, label="check of the configuration")
            return Generation(config, self._history, listeners)
        except BaseException:
            _close_except(present, listeners)
            raise

    async def _listen(self, config: Config, present: Listeners | None = None) -> Listeners:
        """Return a socket for each address: one of those that are ``present``, or a new one.

        Resolves host names in the worker thread. Raises ServiceError, WorkerTimeoutError and OSError.
        """
        present, listeners = present or {}, {}
        try:
            for address in filter(None, (listen_address(config.listen), status_address(config))):
                if address in present:
                    listeners[address] = present[address]
                elif address not in listeners:
                    label = f"binding {address[0]}:{address[1]}"
                    listeners[address] = await self._worker.run(partial(listen, address), DEFAULT.hang, label=label)
        except BaseException:
            _close_except(present, listeners)
            raise
        return listeners


def _close_except(kept: Listeners, sockets: Listeners) -> None:
    """Close the sockets whose addresses are not to be kept."""
    for address, listener in sockets.items():
        if address not in kept:
            listener.close()
