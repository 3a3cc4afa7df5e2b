"""Shared helpers of the integration tests: stand-in binder devices, and a plugin in this process or in its own.

The devices are plain files (``--verify file``), so that the tests need no root. The plugin is the real one on real
unix sockets: ``running`` runs it in this process, ``Serve`` in a process of its own.
"""

import asyncio
import collections
import contextlib
import io
import itertools
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

import grpc
import pytest

from aosp_plugin import SOCKET_PREFIX
from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.cli.main import cli, main
from aosp_plugin.config import sources
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.daemon.serve import Daemon
from aosp_plugin.framework import DevicePlugin, timing
from aosp_plugin.framework.conditions import Condition, Conditions, Kind
from aosp_plugin.framework.errors import leaves
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service import logs, process
from aosp_plugin.framework.service.address import listen
from aosp_plugin.framework.service.http import Route, serving
from aosp_plugin.framework.timing import Timings
from kubelet_standin import Kubelet

RESOURCE = "aosp.io/binder"
IN_LIFE = Timings(stop=2.0)
"""Production timeouts; only the time for the end is shorter."""
FAST = IN_LIFE._replace(register=0.5, stream=0.3)
"""Short timeouts, for tests in which the kubelet does not respond."""
PATIENCE = 30.0
"""Seconds after which a test gives up waiting. Far more than any step needs, even on a busy machine."""


class Clock:
    """A clock that only a test moves, in seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the current time."""
        return self.now


class DeviceDirectory:
    """A device directory with stand-in binder devices."""

    def __init__(self, directory: Path) -> None:
        """Create the directory."""
        directory.mkdir()
        self.directory = directory

    def add(self, *numbers: int) -> None:
        """Create devices; FileExistsError if one exists."""
        for number in numbers:
            (self.directory / f"aosp_binder{number}").touch(exist_ok=False)

    def remove(self, *numbers: int) -> None:
        """Remove devices."""
        for number in numbers:
            (self.directory / f"aosp_binder{number}").unlink()


@contextlib.contextmanager
def http_serving(address: tuple[str, int], routes: Mapping[str, Route]) -> Iterator[int]:
    """Serve routes on an address, as the plugin does; yield the port."""
    with serving(listen(address), routes, {address[0]}) as port:
        yield port


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is not in use.

    The port is below the ephemeral range (net.ipv4.ip_local_port_range), which many tests use at the same time, and
    each test process starts its search far from that of others, whose process IDs may be neighbours: a port that has
    been returned is free until a process of the test binds it.
    """
    ports = itertools.chain(range(10_000 + os.getpid() * 7_919 % 20_000, 30_000), range(10_000, 30_000))
    for port in itertools.islice(ports, next(_TAKEN), None):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("all ports are taken")


_TAKEN = itertools.count()


def run_command(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run ``aosp-plugin`` in this process, and return its exit code and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        code = main(arguments)
    root.setLevel(level)  # the command has set up its own log
    root.handlers[:] = handlers
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return code, texts[0], texts[1]


def run_without_rights(imports: str, statements: str, *arguments: str) -> str:
    """Run statements in a Python process without root's rights, and return its output.

    ``imports`` run before the process gives up the rights, because only root may be able to read the checkout.
    """
    setuid = "import os; os.getuid() or (os.setresgid(*[65534] * 3), os.setresuid(*[65534] * 3))"
    command = [sys.executable, "-c", f"{imports}\n{setuid}\n{statements}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - this interpreter


def write_files(directory: Path, texts: Mapping[str, str]) -> None:
    """Write texts into files below a directory, by their paths in it."""
    for name, text in texts.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """Let a process open no more files inside the context, not even if it closes others."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def fds() -> collections.Counter[str]:
    """Count the open files of this process by target."""
    targets: collections.Counter[str] = collections.Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            targets[os.readlink(f"/proc/self/fd/{name}")] += 1
    return targets


@contextlib.contextmanager
def mounted(directory: Path, *arguments: str | Path) -> Iterator[None]:
    """Mount on a directory inside the context; ``arguments`` are those of mount(8) before it. Requires root."""
    subprocess.run(["mount", *arguments, directory], check=True)  # noqa: S603, S607
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)  # noqa: S603, S607


def mounted_tmpfs(directory: Path, options: str = "size=64k") -> contextlib.AbstractContextManager[None]:
    """Mount a tmpfs, by default one of a few pages, inside the context. Requires root."""
    return mounted(directory, "-t", "tmpfs", "-o", options, "tmpfs")


def fill(directory: Path) -> None:
    """Fill a file system that ``mounted_tmpfs`` has mounted, unless it is read-only."""
    with contextlib.suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


LISTEN = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
OPEN = "import sys; file = open(sys.argv[1])"


@contextlib.contextmanager
def other_process(program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program inside the context; it waits at its end until its standard input is closed."""
    command = (sys.executable, "-c", f"{program}\nprint(flush=True); sys.stdin.read()", *arguments)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - ours
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(PATIENCE)


def names(numbers: Iterable[int]) -> list[str]:
    """Return the names of binder devices."""
    return [f"aosp_binder{number}" for number in numbers]


def make_plugin(
    devices: DeviceDirectory,
    kubelet_dir: str,
    *,
    timings: Timings = IN_LIFE,
    clock: timing.Clock = timing.CLOCK,
) -> DevicePlugin:
    """Return the binder plugin for a device directory; it does not run yet."""
    config_resource = Resource(resource_name=RESOURCE, device_dir=str(devices.directory), verify=Verify.FILE)
    return DevicePlugin(
        BinderBackend(Host(), config_resource, cdi_dir=Config().cdi_dir),
        kubelet_dir=kubelet_dir,
        socket_prefix=SOCKET_PREFIX,
        runtime=Runtime(timings=timings, clock=clock),
    )


@contextlib.asynccontextmanager
async def running(
    devices: DeviceDirectory, kubelet_dir: str, *, timings: Timings = IN_LIFE
) -> AsyncIterator[DevicePlugin]:
    """Run the binder plugin in this process inside the context; its error is raised on exit."""
    async with run(make_plugin(devices, kubelet_dir, timings=timings)) as plugin:
        yield plugin


@contextlib.asynccontextmanager
async def run(plugin: DevicePlugin) -> AsyncIterator[DevicePlugin]:
    """Run a plugin in this process inside the context; its error is raised on exit."""
    task = asyncio.create_task(plugin.run())
    try:
        yield plugin
    finally:
        plugin.stop()
        await task


async def listed(kubelet: Kubelet, count: int, resource: str = RESOURCE) -> None:
    """Wait until the kubelet has this many allocatable devices."""
    await kubelet.wait_for(
        lambda k: k.resource(resource).connected and k.resource(resource).allocatable == count, PATIENCE
    )


def connected(kubelet: Kubelet) -> grpc.aio.Channel:
    """Return a connection of another client to the plugin that has registered last. For use as a context."""
    path = os.path.join(kubelet.directory, kubelet.registrations[-1].endpoint)
    # Otherwise the clients of a process share one connection.
    return grpc.aio.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)])


async def problem(plugin: DevicePlugin, text: str) -> None:
    """Wait until the plugin is not ready and its reason contains ``text``."""
    await until(lambda: text in unready(plugin))


async def ready(plugin: DevicePlugin) -> None:
    """Wait until the plugin is ready."""
    await until(lambda: plugin.ready)


def unready(server: ResourceServer) -> str:
    """Return the causes of the conditions that make a server unready; empty if it is ready."""
    return "; ".join(each.detail for each in server.conditions() if each.kind.blocks)


class Reporting(Protocol):
    """A part of a server that reports conditions."""

    _conditions: Conditions


def reported(part: Reporting) -> list[Condition]:
    """Return all that is wrong according to a part of a server, and to those with the same conditions."""
    return [each for found in part._conditions._current.values() for each in found]


def causes(part: Reporting, *kinds: Kind) -> str:
    """Return the causes of the conditions of some kinds, or of all of them; empty if there are none."""
    return "; ".join(each.detail for each in reported(part) if not kinds or each.kind in kinds)


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the sum of the series of a metric with these labels. The name is without the prefix of all names."""
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    found = [each for each in samples if each.name == f"device_plugin_{name}" and labels.items() <= each.labels.items()]
    return sum(sample.value for sample in found)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds: a state of any thread, whose changes nothing reports."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - most of what tests wait for sets no event
            await asyncio.sleep(0.005)


async def answered(port: int, path: str, text: str) -> tuple[int, str]:
    """Wait until the answer to an HTTP request contains ``text``; return its status and body."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(OSError):  # nothing listens yet
                status, _, body = await http_get(port, path)
                if text in body:
                    return status, body
            await asyncio.sleep(0.005)


async def http_get(port: int, path: str) -> tuple[int, str, str]:
    """Return status, head and body of the answer to an HTTP request. Raises OSError if there is no answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    if not answer:  # the process ended after it had accepted the connection
        raise ConnectionResetError("the connection ended without an answer")
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body.decode(errors="replace")


def sockets(kubelet_dir: str) -> list[str]:
    """Return the names of the sockets that plugins serve on."""
    return [name for name in os.listdir(kubelet_dir) if re.fullmatch(r"[^.].*-[0-9]+-[0-9]+\.sock", name)]


def usual_arguments(devices: DeviceDirectory, kubelet_dir: str) -> tuple[str, ...]:
    """Return the usual flags of ``aosp-plugin serve``."""
    directories = ("--device-dir", str(devices.directory), "--kubelet-dir", kubelet_dir)
    return (*directories, "--verify", "file", "--listen", "")


class Serve:
    """``aosp-plugin serve`` as a process."""

    def __init__(
        self,
        devices: DeviceDirectory,
        kubelet_dir: str,
        *flags: str,
        environment: dict[str, str] | None = None,
        usual_flags: bool = True,
        stderr: int = asyncio.subprocess.PIPE,
        program: Sequence[str] = (sys.executable, "-m", "aosp_plugin"),
    ) -> None:
        """Build the command line; ``flags`` are added to the usual ones, or replace them.

        ``stderr`` is a file descriptor for standard error, by default that of ``logged``. ``program`` is how the
        command is called.
        """
        self._arguments = [*(usual_arguments(devices, kubelet_dir) if usual_flags else ()), *flags]
        self._command = [*program, "serve", *self._arguments]
        self._environment = environment or {}
        self._stderr = stderr
        self._process: asyncio.subprocess.Process | None = None
        self.log: list[str] = []

    async def __aenter__(self) -> Self:
        """Start."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env=os.environ | self._environment,
            stderr=self._stderr,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Terminate the process if it still runs, by SIGTERM, so that it writes its coverage data."""
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
        """Wait for a log line that contains ``text``, and return it."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stderr.readline()).decode():
                self.log.append(line)
                if text in line:
                    return line
        raise AssertionError(f"no line with {text!r} in:\n{''.join(self.log)}")

    async def finish(self) -> int:
        """Wait for the process to exit, and return its exit code."""
        async with asyncio.timeout(PATIENCE):
            if self.process.stderr is not None:
                self.log.append((await self.process.stderr.read()).decode())
            return await self.process.wait()


class ServeHere(Serve):
    """``aosp-plugin serve`` in this process."""

    async def __aenter__(self) -> Self:
        """Start."""
        self._patch = pytest.MonkeyPatch()
        for name, value in self._environment.items():
            self._patch.setenv(name, value)
        self._patch.setattr(process, "stop_on_signals", lambda *_: None)
        self._patch.setattr(logs, "set_up", lambda *_: None)
        self._handler = _Lines(self.log)
        logger = logging.getLogger("aosp_plugin")
        logger.addHandler(self._handler)
        self._level = logger.level
        logger.setLevel(logging.INFO)
        flags = cli.commands["serve"].make_context("serve", [*self._arguments]).params
        file = flags.pop("file")
        self._load = lambda: sources.load(flags, os.environ, file)[0]
        self._task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        """Run the daemon, and the next one whenever it executes its program again."""
        is_over = False
        while not is_over:
            is_over = True

            async def execute_again() -> None:
                nonlocal is_over
                is_over = False

            self._daemon = Daemon(self._load)
            self._patch.setattr(self._daemon._process, "execute_again", execute_again)
            await self._daemon.run()

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        self.signal(signal.SIGTERM)
        await self.finish()
        logger = logging.getLogger("aosp_plugin")
        logger.removeHandler(self._handler)
        logger.setLevel(self._level)
        self._patch.undo()

    def signal(self, number: signal.Signals) -> None:
        """Do what a signal does."""
        events = {signal.SIGTERM: self._daemon._process.stop, signal.SIGHUP: self._daemon._reload}
        events[number].set()

    async def finish(self) -> int:
        """Wait for the end; return what would be the exit code of the process, and log its errors as it does."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait({self._task})
        error = self._task.exception()
        errors = leaves(error) if error else []
        self.log += [f"aosp-plugin: {each}\n" for each in errors]
        return max([getattr(each, "exit_code", 1) for each in errors], default=0)


class _Lines(logging.Handler):
    """Appends log lines to a list."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(logs.TextFormatter())
        self.addFilter(logs.add_resource)

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line."""
        self._lines.append(f"{self.format(record)}\n")
