"""``aosp-plugin serve``: serves the configuration until a signal.

At SIGHUP the process reads the configuration again. If that has changed, and this host can serve it, the process stops
in order and executes its own program again, with the same process ID and arguments. So a reload is an ordinary start,
with nothing of the former configuration in memory. A configuration that cannot be served changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable
from functools import partial

from aosp_plugin.binder.driver.host import HostError
from aosp_plugin.config.keys import Config
from aosp_plugin.daemon.assembly import check_host
from aosp_plugin.daemon.node_service import NodeService
from aosp_plugin.framework.errors import PluginError, leaves
from aosp_plugin.framework.service.process import Process
from aosp_plugin.framework.timing import DEFAULT, complete_unless
from aosp_plugin.framework.worker import Worker, running_calls
from aosp_plugin.report.document import ReloadReport

LOG = logging.getLogger(__name__)

LONG_CALL = 2.0
"""Seconds after which a call on the host counts as hanging, for a reload."""

RELOADED = "AOSP_RELOADED"
"""Environment variable that a reload sets for the new program; nothing else is passed on."""


async def serve_configuration(load: Callable[[], Config]) -> None:
    """Serve until SIGTERM or SIGINT. ``load`` reads the configuration at the start and after each SIGHUP.

    Raises an ExceptionGroup of everything that failed: PluginError, HostError or OSError if the plugin cannot start, or
    can never register; any other error is a bug.
    """
    gc.freeze()  # modules stay loaded, see also ``__main__``
    await Daemon(load).run()


class Daemon:
    """The process, from its start to its end, or until its program is executed again."""

    def __init__(self, load: Callable[[], Config]) -> None:
        """``load`` reads the configuration; it is called in a worker thread."""
        self._load = load
        self._process = Process()
        self._reload = asyncio.Event()
        self._service: NodeService | None = None

    async def run(self) -> None:
        """Serve until a signal stops the process."""
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
                        check = partial(check_host, config, service.config)
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
