"""What several integration tests need: nodes to hand out, and a plugin that runs.

Nodes are plain files (``--verify file``), so that nobody has to be root; the plugin is the real one over real unix
sockets, in this process (``running``) or in one of its own (``Serve``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import sys
from typing import TYPE_CHECKING, Self

from aosp_plugin.backend import BinderBackend
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config import Config, Resource
from aosp_plugin.daemon.assembly import settings_of, socket_name
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.deviceplugin.supervisor import Timings

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from aosp_plugin.testing import Kubelet

RESOURCE = "aosp.io/binder"
IN_LIFE = Timings(stop=0.5)
"""Patience that no busy machine wears out; only those who still hold a connection at the end are cut off sooner."""
FAST = IN_LIFE._replace(register=0.5, stream=0.3)
"""Patience cut short, so that the cases in which the kubelet does nothing don't take as long as in life."""
PATIENCE = 30.0
"""Seconds after which a test gives up what it waits for, which takes a small part of one unless the machine is busy."""


class Nodes:
    """A device directory with stand-in nodes."""

    def __init__(self, directory: Path) -> None:
        """Make the directory."""
        directory.mkdir()
        self.directory = directory

    def make(self, *numbers: int) -> None:
        """Make nodes that are not there."""
        for number in numbers:
            (self.directory / f"aosp_binder{number}").touch(exist_ok=False)

    def remove(self, *numbers: int) -> None:
        """Remove nodes."""
        for number in numbers:
            (self.directory / f"aosp_binder{number}").unlink()


def free_port() -> int:
    """Return a port of this machine that nobody listens at.

    Below those that the kernel gives to whoever asks for any (net.ipv4.ip_local_port_range), as many tests do that
    run at the same time; and each process looks from another one on.
    """
    ports = itertools.chain(range(10_000 + os.getpid() % 20_000, 30_000), range(10_000, 30_000))
    for port in itertools.islice(ports, next(_TAKEN), None):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all ports are taken")


_TAKEN = itertools.count()


def as_nobody(command: Sequence[str]) -> list[str]:
    """Return the command that runs ``command`` as a user who is nobody.

    The one right left is to read, since the interpreter and this checkout may lie where only their owner looks.
    """
    user = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    rights = [f"--{kind}=-all,+dac_read_search" for kind in ("bounding-set", "inh-caps", "ambient-caps")]
    return ["setpriv", *user, *rights, *command]


def names(numbers: Iterable[int]) -> list[str]:
    """Return the names of nodes."""
    return [f"aosp_binder{number}" for number in numbers]


def make_plugin(
    nodes: Nodes, kubelet_dir: str, *, timings: Timings = IN_LIFE, resource: str = RESOURCE
) -> DevicePlugin:
    """Return the binder plugin over stand-in nodes, not yet running."""
    of_nodes = Resource(resource_name=resource, device_dir=str(nodes.directory), verify=Verify.FILE)
    return DevicePlugin(
        BinderBackend(Host(), settings_of(Config(), of_nodes)),
        resource_name=resource,
        socket_name=socket_name(resource),
        kubelet_dir=kubelet_dir,
        timings=timings,
    )


@contextlib.asynccontextmanager
async def running(nodes: Nodes, kubelet_dir: str, *, timings: Timings = IN_LIFE) -> AsyncIterator[DevicePlugin]:
    """Run the binder plugin in this process while the context lasts; what it raises comes out at the end."""
    async with run(make_plugin(nodes, kubelet_dir, timings=timings)) as plugin:
        yield plugin


@contextlib.asynccontextmanager
async def run(plugin: DevicePlugin) -> AsyncIterator[DevicePlugin]:
    """Run a plugin in this process while the context lasts; what it raises comes out at the end."""
    task = asyncio.create_task(plugin.run())
    try:
        yield plugin
    finally:
        plugin.stop()
        await task


async def listed(kubelet: Kubelet, count: int, resource: str = RESOURCE) -> None:
    """Wait until the kubelet could hand out this many devices."""
    await kubelet.wait_for(
        lambda k: k.resource(resource).connected and k.resource(resource).allocatable == count, PATIENCE
    )


async def problem(plugin: DevicePlugin, text: str) -> None:
    """Wait until the plugin says that it is not ready, with ``text`` in the reason."""
    await until(lambda: text in plugin.unready)


async def ready(plugin: DevicePlugin) -> None:
    """Wait until the plugin says that it is ready."""
    await until(lambda: not plugin.unready)


class _Telling(logging.Handler):
    """Sets an event at everything that is logged; from the loop's own thread, as the supervisor logs."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self._event = event

    def emit(self, _record: logging.LogRecord) -> None:
        self._event.set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds; asked again at each event that is logged, as each change of state is."""
    logged = asyncio.Event()
    handler = _Telling(logged)
    logger = logging.getLogger("aosp_plugin")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await logged.wait()
                logged.clear()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def sockets(kubelet_dir: str) -> list[str]:
    """Return the plugin's sockets."""
    return [name for name in os.listdir(kubelet_dir) if name.startswith("aosp-")]


class Serve:
    """``aosp-plugin serve`` as a process."""

    def __init__(self, nodes: Nodes, kubelet_dir: str, *more: str, environment: dict[str, str] | None = None) -> None:
        """Prepare the command; ``more`` are further arguments."""
        flags = ["--device-dir", str(nodes.directory), "--kubelet-dir", kubelet_dir, "--verify", "file"]
        self._command = [sys.executable, "-m", "aosp_plugin", "serve", *flags, "--listen", "", *more]
        self._environment = os.environ | (environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self.log: list[str] = []

    async def __aenter__(self) -> Self:
        """Start."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment, stderr=asyncio.subprocess.PIPE
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it where it still runs, in the way that leaves its coverage behind."""
        if self.process.returncode is None:
            self.process.terminate()
        await self.finish()

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process."""
        assert self._process is not None
        return self._process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def logged(self, text: str) -> str:
        """Wait for a line of the log that has ``text`` in it, and return it."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stderr.readline()).decode():
                self.log.append(line)
                if text in line:
                    return line
        raise AssertionError(f"no line with {text!r} in:\n{''.join(self.log)}")

    async def finish(self) -> int:
        """Wait for the end, and return the exit code."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            self.log.append((await self.process.stderr.read()).decode())
            return await self.process.wait()
