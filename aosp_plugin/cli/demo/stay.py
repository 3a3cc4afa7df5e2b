"""``aosp-plugin demo --stay``: a host of phones whose pods come and go, with faults at a key press.

Everything but devices and kubelet is real: the plugin, its page, its metrics and its log. What happens is printed, one
line for each event, until ``q``, SIGINT, SIGTERM or the end of the terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from typing import TYPE_CHECKING

import click

from aosp_plugin.cli.demo.faults import Faults
from aosp_plugin.cli.demo.keys import END, keys
from aosp_plugin.cli.demo.phones import RESOURCE, Phones, write_configuration
from aosp_plugin.cli.demo.plugin import DemoError, PluginProcess, free_port
from aosp_plugin.cli.demo.screen import KubeletEvents, Screen
from aosp_plugin.cli.demo.tenants import Tenants
from aosp_plugin.framework.aio import background_task
from kubelet_standin import Behaviour, Kubelet
from kubelet_standin.podresources_server import PodResources

if TYPE_CHECKING:
    from collections.abc import Coroutine

START_TIMEOUT = 20.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def stay(phones: int, seed: int, port: int) -> int:
    """Run the demo with ``phones`` phones until it is ended, and return the exit code.

    ``port`` is that of the plugin's page at 127.0.0.1; 0 for any free port.
    """
    logging.disable()  # of the stand-in kubelet; the plugin is another process
    stopped = asyncio.Event()
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    with tempfile.TemporaryDirectory(prefix="aosp-demo-") as directory:
        try:
            await _Demo(directory, phones, seed, port or free_port(), stopped).run()
        except (DemoError, TimeoutError) as error:
            click.echo(f"{click.style('✗', fg='red', bold=True)} failed: {error}")
            return 1
    return 0


class _Demo:
    """The parts of the demo."""

    def __init__(self, directory: str, phones: int, seed: int, port: int, stopped: asyncio.Event) -> None:
        self._stopped = stopped
        self._failure = ""
        self._configuration = os.path.join(directory, "config.yaml")
        self._pod_resources = os.path.join(directory, "pod-resources.sock")
        self._address = f"127.0.0.1:{port}"
        self._seed = seed
        self._namespaces: dict[str, str] = {}
        self._screen = Screen(stopped)
        self._events = KubeletEvents(self._screen, self._namespaces)
        self._phones = Phones(os.path.join(directory, "dev"), phones)
        # Nearly every cluster of today has a kubelet of these versions.
        self._kubelet = Kubelet(
            os.path.join(directory, "kubelet"), behaviour=Behaviour.BUGGY, seed=seed, on_event=self._events.show
        )
        self._tenants = Tenants(
            self._kubelet, self._namespaces, phones, seed, lambda text: self._screen.line("scheduler", text)
        )
        self._faults = Faults(
            self._phones,
            self._kubelet,
            self._tenants,
            self._plugin,
            seed,
            lambda text: self._screen.line("fault", text),
        )

    def _plugin(self, number: int) -> PluginProcess:
        """Return the process of the first or second plugin."""
        source = "plugin" if number == 1 else f"plugin {number}"
        second = {"AOSP_PLUGIN_LISTEN": "", "AOSP_PLUGIN_LEAK_SCAN_INTERVAL": "0"} if number > 1 else {}

        def failed(code: int) -> None:
            self._failure = f"the plugin exited with {code}"
            self._stopped.set()

        return PluginProcess(
            ["--config", self._configuration], second, lambda text: self._screen.log_line(source, text), failed
        )

    async def run(self) -> None:
        """Run until the event ``stopped``."""
        started = time.monotonic()
        write_configuration(
            self._configuration,
            devices=self._phones.directory,
            kubelet=self._kubelet.directory,
            pod_resources=self._pod_resources,
            listen=self._address,
        )
        async with (
            self._kubelet,
            PodResources(self._kubelet, self._pod_resources, self._namespaces),
            contextlib.aclosing(self._faults),
        ):
            await self._faults.plugin.start()
            await self._unless_stopped(self._start())
            if not self._stopped.is_set():
                async with keys() as pressed:
                    self._introduce(with_keys=pressed is not None)
                    await self._unless_stopped(self._press(pressed), self._tenants.run())
            if self._failure:
                raise DemoError(self._failure)
            await self._faults.plugin.stop()
        duration = time.monotonic() - started
        self._screen.write(
            f"Ended after {duration:.0f} s, {self._tenants.started} pods and {self._faults.caused} faults."
        )

    async def _start(self) -> None:
        """Wait for the registration, and start the first pods."""
        count = len(self._phones.names)
        await self._kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == count, START_TIMEOUT)
        await self._tenants.start()
        self._screen.line("pod", f"{self._tenants.started} pods run")
        self._events.quiet = False

    def _introduce(self, *, with_keys: bool) -> None:
        self._screen.write(
            f"\nThe plugin, a stand-in kubelet and {len(self._phones.names)} stand-in phones, whose pods come and go "
            f"(--seed {self._seed}).\n"
            f"  page      http://{self._address}/\n"
            f"  terminal  aosp-plugin status --watch --url http://{self._address}\n"
            f"  metrics   http://{self._address}/metrics\n"
            f"  config    {self._configuration}"
        )
        if with_keys:
            self._show_keys()
        else:
            self._screen.write(
                "\nNo keys: standard input is no terminal, or this is a background job. SIGTERM ends the demo.\n"
            )

    def _show_keys(self) -> None:
        rows = [(key, text) for key, (text, _) in self._faults.keys.items()]
        rows += [("h", "these keys, also ?"), ("q", "end, also Ctrl-C")]
        self._screen.write("\n" + "\n".join(f"  {click.style(key, bold=True)}  {text}" for key, text in rows) + "\n")

    async def _press(self, pressed: asyncio.Queue[str] | None) -> None:
        """Execute the keys, one after the other, until ``q``. Without a terminal, wait forever."""
        while pressed is not None:
            key = await pressed.get()
            if key in {"q", "Q", END}:
                return
            if key in self._faults.keys:
                await self._faults.cause(key)
            elif key in {"h", "?"}:
                self._show_keys()
            elif key.isprintable() and not key.isspace():
                self._screen.line("keys", f"{key} does nothing; h lists the keys")
        await asyncio.Event().wait()

    async def _unless_stopped(self, *works: Coroutine[None, None, None]) -> None:
        """Run all ``works`` until the first one ends or the demo is stopped. Raises the error of the first one."""
        async with contextlib.AsyncExitStack() as stack:
            tasks = [await stack.enter_async_context(background_task(work)) for work in (*works, self._until_stopped())]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task

    async def _until_stopped(self) -> None:
        await self._stopped.wait()
