"""The stand-in kubelet as a command: it prints a line for each event, and reads commands from standard input.

An event line is a JSON object with the time, the event's name and its fields.
Commands are executed one after the other. Most cause events of the kubelet; ``wait`` and ``devices`` answer with an
event of their own, and a command that fails with an ``error`` event. The kubelet keeps running at the end of the input;
``quit``, SIGINT or SIGTERM stop it.
"""

import asyncio
import contextlib
import dataclasses
import datetime
import errno
import inspect
import json
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from kubelet_standin.aio import background_task
from kubelet_standin.deviceplugin.directory import PluginDirectory
from kubelet_standin.deviceplugin.faults import Faults
from kubelet_standin.deviceplugin.kubelet import Kubelet
from kubelet_standin.deviceplugin.podresources import PodResources
from kubelet_standin.deviceplugin.pods import AdmissionError, Container, ContainerAllocation, Pod
from kubelet_standin.events import Event
from kubelet_standin.versions import KubeletVersion

_CONTAINER = "main"
"""The name of the container of each pod."""


def format_event(event: Event, now: datetime.datetime) -> str:
    """Return an event as a JSON object in one line."""
    line: dict[str, Any] = {"time": now.isoformat(timespec="milliseconds"), "event": event.name}
    for name, value in event.fields.items():
        if isinstance(value, ContainerAllocation):
            allocation = dataclasses.asdict(value)
            line |= {"container": allocation.pop("name"), **allocation}
        else:
            line[name] = value
    return json.dumps(line)


class Console:
    """Executes commands on a kubelet."""

    def __init__(self, kubelet: Kubelet, emit: Callable[[Event], None], stopped: asyncio.Event) -> None:
        """``quit`` sets ``stopped``."""
        self._kubelet = kubelet
        self._emit = emit
        self._stopped = stopped
        self._pods: dict[str, Pod] = {}
        self._commands: dict[str, tuple[Callable[..., Awaitable[None]], str]] = {
            "admit": (self._admit, "POD RESOURCE=COUNT ..."),
            "run": (self._run, "POD"),
            "remove": (self._remove, "POD"),
            "restart": (self._restart, "[lose-checkpoint]"),
            "stop": (kubelet.stop, ""),
            "start": (kubelet.start, ""),
            "devices": (self._devices, "RESOURCE"),
            "wait": (self._wait, "RESOURCE COUNT [SECONDS]"),
            "break": (self._break, "FAULT [VALUE]"),
            "repair": (self._repair, ""),
            "drop": (kubelet.drop_streams, "[RESOURCE]"),
            "quit": (self._quit, ""),
        }

    async def execute(self, line: str) -> None:
        """Execute one line. A failure is reported as an event; empty lines and comments (#) are ignored."""
        try:
            name, *arguments = shlex.split(line, comments=True) or [""]
            if name:
                await self._command(name, arguments)
        except AdmissionError:
            pass  # the kubelet has reported it
        except Exception as error:  # noqa: BLE001 - a mistake of the stand-in does not end the input either
            self._emit(Event("error", {"message": " ".join(str(error).split())}))

    def _command(self, name: str, arguments: list[str]) -> Awaitable[None]:
        if name not in self._commands:
            raise ValueError(f"unknown command {name}; the commands are {', '.join(self._commands)}")
        command, usage = self._commands[name]
        try:
            inspect.signature(command).bind(*arguments)
        except TypeError:
            raise ValueError(f"usage: {name} {usage}".rstrip()) from None
        return command(*arguments)

    def _pod(self, name: str) -> Pod:
        if name not in self._pods:
            raise ValueError(f"no pod {name}")
        return self._pods[name]

    async def _admit(self, name: str, limit: str, *limits: str) -> None:
        counts = [text.rpartition("=") for text in (limit, *limits)]
        if not all(resource and count.isdecimal() for resource, _, count in counts):
            raise ValueError(f"usage: admit {self._commands['admit'][1]}")
        pod = Pod(name, [Container(_CONTAINER, {resource: int(count) for resource, _, count in counts})])
        await self._kubelet.admit(pod)
        self._pods[name] = pod

    async def _run(self, name: str) -> None:
        await self._kubelet.start_container(self._pod(name), _CONTAINER)

    async def _remove(self, name: str) -> None:
        await self._kubelet.finish(self._pod(name))
        del self._pods[name]

    async def _restart(self, option: str = "") -> None:
        if option not in {"", "lose-checkpoint"}:
            raise ValueError(f"unknown option {option}; the only one is lose-checkpoint")
        await self._kubelet.restart(keep_checkpoint=not option)

    async def _devices(self, resource: str) -> None:
        self._emit(Event("devices", {"resource": resource, "devices": dict(self._kubelet.resource(resource).devices)}))

    async def _wait(self, resource: str, count: str, seconds: str = "30") -> None:
        allocatable = int(count)
        await self._kubelet.wait_for(lambda k: k.resource(resource).allocatable == allocatable, float(seconds))
        self._emit(Event("allocatable", {"resource": resource, "allocatable": allocatable}))

    async def _break(self, name: str, value: str = "injected fault") -> None:
        faults = {key.replace("_", "-"): default for key, default in vars(Faults()).items() if key[0] != "_"}
        if name not in faults:
            raise ValueError(f"unknown fault {name}; the faults are {', '.join(faults)}")
        convert = {bool: bool, float: float}.get(type(faults[name]), str)
        setattr(self._kubelet.faults, name.replace("-", "_"), convert(value))

    async def _repair(self) -> None:
        self._kubelet.faults.release_register()
        vars(self._kubelet.faults).update(vars(Faults()))

    async def _quit(self) -> None:
        self._stopped.set()


async def _execute_input(console: Console) -> None:
    """Execute the lines of standard input, until its end.

    It may be a file or a terminal, which event loops cannot poll alike, so a thread reads it.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        # Without a buffer, because the interpreter cannot exit while a thread holds the buffer's lock.
        with (
            open(0, "rb", buffering=0, closefd=False) as stdin,
            contextlib.suppress(RuntimeError),
        ):  # the loop is closed
            for line in stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while line := await lines.get():
        await console.execute(line.decode(errors="replace"))


def _require_no_listener(directory: str) -> None:
    """Raise OSError if a kubelet listens in the directory: a start would remove its sockets."""
    path = PluginDirectory(directory).socket_path
    with socket.socket(socket.AF_UNIX) as client:
        if client.connect_ex(path) == 0:
            raise OSError(errno.EADDRINUSE, "a kubelet already listens", path)


async def run(directory: str, version: KubeletVersion, *, pod_resources: str = "") -> None:
    """Run a kubelet in ``directory`` until ``quit`` or a signal. Raises OSError.

    ``pod_resources`` is the path of a socket for the podresources API; empty for none.
    """
    _require_no_listener(directory)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    def emit(event: Event) -> None:
        try:
            print(format_event(event, datetime.datetime.now().astimezone()), flush=True)  # noqa: T201
        except BrokenPipeError:
            # The interpreter flushes standard output once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            stopped.set()

    async with (
        Kubelet(directory, version=version, on_event=emit) as kubelet,
        PodResources(kubelet, pod_resources) if pod_resources else contextlib.nullcontext(),
        background_task(_execute_input(Console(kubelet, emit, stopped))),
    ):
        await stopped.wait()
