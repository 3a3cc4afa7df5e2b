"""``aosp-plugin serve``: runs the generations of the configuration, and handles the signals that stop or reload it."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING

from aosp_plugin import __version__
from aosp_plugin.daemon.changes import History
from aosp_plugin.daemon.generation import Generation
from aosp_plugin.daemon.report import Event
from aosp_plugin.errors import HostError, PluginError
from aosp_plugin.framework.aio import complete_unless, leaves, wait_any
from aosp_plugin.framework.service import logs
from aosp_plugin.framework.service.liveness import Heartbeat, notify
from aosp_plugin.framework.service.termination import stop_on_signals
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.config import Config

LOG = logging.getLogger(__name__)

LOAD_TIMEOUT = 10.0
"""Seconds for reading the configuration again. Its file may be on a file system that hangs."""


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
        self._loader = Worker("configuration")
        self._stop, self._reload = asyncio.Event(), asyncio.Event()
        self._heartbeat = Heartbeat()
        self._history = History()
        self._generation: Generation | None = None
        self._replacement: Generation | None = None

    async def run(self) -> None:
        """Serve until a signal stops the process. All its tasks are in one group, so that none can fail unnoticed."""
        stop_on_signals(self._stop.set, self._reload.set)
        async with asyncio.TaskGroup() as tasks:
            heartbeat = tasks.create_task(self._heartbeat.run())
            tasks.create_task(notify(self._unready, self._stop))
            if await complete_unless(self._stop, self._first_generation(tasks)):
                await self._serve(tasks)
            heartbeat.cancel()

    def _unready(self) -> list[str]:
        return [server.unready for server in self._generation.servers] if self._generation else ["starting"]

    async def _first_generation(self, tasks: asyncio.TaskGroup) -> None:
        """Start with the configuration. Nothing that a running plugin would only report keeps the process from it."""
        config = await self._loader.run(self._load)
        logs.set_up(config.log_level, config.log_format)
        generation = Generation(config, self._heartbeat.problem, self._history)
        self._history.record(Event.STARTED, f"aosp-plugin {__version__} started")
        await generation.listen({})
        generation.serve_http_after_start(tasks)
        self._generation = generation
        if len(generation.servers) > 1:
            await generation.prepare(strict=False)
        generation.start(tasks, require_devices=config.require_devices)

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        """Handle reloads until the process is stopped."""
        while self._generation is not None:
            await wait_any(self._stop, self._reload)
            if not await self._reload_unless_stopped(self._generation, tasks):
                return
            # A generation that was replaced or rejected is in reference cycles, with its memory. By itself, the
            # collector might not run for days in an idle process.
            gc.collect()

    async def _reload_unless_stopped(self, generation: Generation, tasks: asyncio.TaskGroup) -> bool:
        """Reload the configuration, or stop if that was requested; return whether the process goes on."""
        if self._stop.is_set() or not await complete_unless(self._stop, self._reloaded(generation)):
            await generation.stop(replaced=False)
            return False
        if self._replacement is not None:
            self._history.record(Event.RELOADED, "configuration reloaded")
            await generation.stop(replaced=True)
            self._generation, self._replacement = self._replacement, None
            logs.set_up(self._generation.config.log_level, self._generation.config.log_format)
            self._generation.start(tasks, require_devices=False, replaced=generation)
        return True

    async def _reloaded(self, generation: Generation) -> None:
        """Read the configuration again and build its generation, or rescan if it has not changed.

        Whatever fails, the current generation is not affected.
        """
        self._reload.clear()
        try:
            config = await self._loader.run(self._load, LOAD_TIMEOUT, label="reading the configuration")
            if config == generation.config:
                generation.rescan()
            else:
                self._replacement = await self._built(config, generation)
        except Exception as error:  # also a bug that only this configuration reveals
            errors = leaves(error)
            bugs = [error for error in errors if not isinstance(error, (PluginError, HostError, OSError))]
            LOG.error(  # noqa: TRY400 - a traceback only of a bug
                "configuration reload rejected, keeping the current configuration",
                extra={"error": "; ".join(str(error) or repr(error) for error in errors)},
                exc_info=bugs[0] if bugs else None,
            )
        else:
            LOG.info("configuration reloaded", extra={"changed": config != generation.config})

    async def _built(self, config: Config, current: Generation) -> Generation:
        """Return a generation that only has to be started. Raises what keeps it from serving.

        Then its scans are not logged: their results would be mistaken for those of the current generation.
        """
        with logs.attempt() as events:
            generation = Generation(config, self._heartbeat.problem, self._history)
            try:
                await generation.listen(current.listeners)
                await generation.prepare(strict=True)
                generation.serve_http()
            except Exception:
                await generation.discard()
                raise
            events.succeeded()
        return generation
