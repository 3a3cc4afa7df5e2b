"""The stand-in kubelet as a command: it prints a line for each event, and reads commands from standard input.

An event line has the time, the event's name and its fields as ``key=value``, or is a JSON object with ``--json``.
Commands are executed one after the other, and answer with such lines as well: the events that they cause, ``status``,
``resource``, ``pod``, ``device``, ``fault``, or ``error`` with a message. The kubelet keeps running at the end of the
input; ``quit``, SIGINT or SIGTERM stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aosp_plugin.framework.errors import KubeletDirectoryError
from aosp_plugin.testing.directory import socket_path
from aosp_plugin.testing.events import Event
from aosp_plugin.testing.faults import Faults
from aosp_plugin.testing.kubelet import Kubelet
from aosp_plugin.testing.podresources_server import PodResources
from aosp_plugin.testing.pods import AdmissionError, Container, ContainerAllocation, Pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aosp_plugin.testing.behaviour import Behaviour

EXPIRY_INTERVAL: Final = 1.0
"""Seconds between two checks for resources whose grace period is over."""

_WAIT_TIMEOUT: Final = 30.0
"""Seconds that ``wait`` waits by default."""


class CommandError(Exception):
    """A command is unknown, has wrong arguments, or failed. The text is one line."""


# -- output ---------------------------------------------------------------------------------------------------------


def _text_value(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(char in text for char in ' "\n\t') else text


def _allocation_fields(allocation: ContainerAllocation) -> Iterator[tuple[str, object]]:
    """Yield what a container gets, as fields of a text line."""
    yield "container", allocation.name
    for resource, ids in allocation.device_ids.items():
        yield resource, ",".join(ids)
    for name, value in sorted(allocation.envs.items()):
        yield f"env:{name}", value
    for device in allocation.devices:
        yield "device", f"{device.host_path}:{device.container_path}:{device.permissions}"
    for mount in allocation.mounts:
        yield "mount", f"{mount.host_path}:{mount.container_path}:{'ro' if mount.read_only else 'rw'}"
    for name, value in sorted(allocation.annotations.items()):
        yield f"annotation:{name}", value
    for name in allocation.cdi_devices:
        yield "cdi", name


def format_text(event: Event, now: datetime.datetime) -> str:
    """Return an event as a line of text."""
    fields: list[tuple[str, object]] = []
    for name, value in event.fields.items():
        fields += _allocation_fields(value) if isinstance(value, ContainerAllocation) else [(name, value)]
    pairs = (f"{name}={_text_value(value)}" for name, value in fields)
    return " ".join([f"{now:%H:%M:%S}.{now.microsecond // 1000:03}", event.name, *pairs])


def format_json(event: Event, now: datetime.datetime) -> str:
    """Return an event as a JSON object in one line."""
    fields: dict[str, Any] = {"time": now.isoformat(timespec="milliseconds"), "event": event.name}
    for name, value in event.fields.items():
        if isinstance(value, ContainerAllocation):
            fields |= {"container": value.name, **dataclasses.asdict(value)}
            del fields["name"]
        else:
            fields[name] = value
    return json.dumps(fields, ensure_ascii=False)


class Output:
    """Writes event lines to standard output, each at once."""

    def __init__(self, *, as_json: bool) -> None:
        self._format = format_json if as_json else format_text
        self.closed = asyncio.Event()
        """Set when the reader of standard output has closed it."""

    def __call__(self, event: Event) -> None:
        """Write an event."""
        if self.closed.is_set():
            return
        try:
            print(self._format(event, datetime.datetime.now().astimezone()), flush=True)  # noqa: T201 - this is output
        except BrokenPipeError:
            # The interpreter flushes standard output once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.closed.set()


# -- commands -------------------------------------------------------------------------------------------------------


class _Command(NamedTuple):
    run: Callable[..., Awaitable[None]]
    usage: str
    description: str
    least: int
    most: int | None
    """The numbers of arguments; None: no limit."""


def _number(text: str, kind: Callable[[str], Any], what: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise CommandError(f"{what} is not a number: {text}") from None


def _by_name(faults: Faults) -> dict[str, object]:
    """Return the faults by their command names, such as ``refuse-register``."""
    fields = (field.name for field in dataclasses.fields(faults) if not field.name.startswith("_"))
    return {name.replace("_", "-"): getattr(faults, name) for name in fields}


class Console:
    """Executes commands on a kubelet."""

    def __init__(self, kubelet: Kubelet, emit: Callable[[Event], None]) -> None:
        self._kubelet = kubelet
        self._emit = emit
        self._pods: dict[str, Pod] = {}
        self.commands = {
            "admit": _Command(
                self._admit, "POD [CONTAINER:]RESOURCE=COUNT ...", "admit a pod; the container is main", 2, None
            ),
            "run": _Command(self._run, "POD", "start the containers of an admitted pod (PreStartContainer)", 1, 1),
            "remove": _Command(self._remove, "POD", "end a pod; its devices become free", 1, 1),
            "restart": _Command(
                self._restart, "[lose-checkpoint]", "restart the kubelet, with or without its memory", 0, 1
            ),
            "stop": _Command(self._stop, "", "stop the kubelet as if it was killed", 0, 0),
            "start": _Command(self._start, "", "start the kubelet again", 0, 0),
            "status": _Command(self._status, "", "show the kubelet, its resources and its pods", 0, 0),
            "devices": _Command(self._devices, "RESOURCE", "show each device with its health and its pod", 1, 1),
            "wait": _Command(
                self._wait, "RESOURCE COUNT [SECONDS]", "wait until so many devices are allocatable", 2, 3
            ),
            "break": _Command(self._break, "[FAULT [VALUE]]", "inject a fault, or list the faults", 0, 2),
            "repair": _Command(self._repair, "[FAULT]", "remove a fault, or all faults", 0, 1),
            "drop": _Command(self._drop, "[RESOURCE]", "cancel the ListAndWatch streams of a resource, or all", 0, 1),
            "help": _Command(self._help, "", "list the commands", 0, 0),
            "quit": _Command(self._quit, "", "stop the kubelet and exit", 0, 0),
        }
        self.quit = False

    async def execute(self, line: str) -> None:
        """Execute one line. A failure is reported as an event; empty lines and comments (#) are ignored."""
        try:
            name, *arguments = shlex.split(line, comments=True) or [""]
            if name:
                await self._dispatch(name, arguments)
        except AdmissionError:
            pass  # the kubelet has reported it
        except (CommandError, RuntimeError, TimeoutError, OSError, ValueError) as error:
            self._emit(Event("error", {"message": " ".join(str(error).split())}))

    async def _dispatch(self, name: str, arguments: list[str]) -> None:
        command = self.commands.get(name)
        if command is None:
            raise CommandError(f"unknown command {name}; try help")
        if len(arguments) < command.least or (command.most is not None and len(arguments) > command.most):
            raise CommandError(f"usage: {name} {command.usage}".rstrip())
        await command.run(*arguments)

    def _pod(self, name: str) -> Pod:
        try:
            return self._pods[name]
        except KeyError:
            raise CommandError(f"no pod {name}") from None

    async def _admit(self, name: str, *limits: str) -> None:
        containers: dict[str, dict[str, int]] = {}
        for limit in limits:
            target, _, count = limit.rpartition("=")
            container, _, resource = target.rpartition(":")
            if not resource:
                raise CommandError(f"not [CONTAINER:]RESOURCE=COUNT: {limit}")
            containers.setdefault(container or "main", {})[resource] = _number(count, int, "the count")
        pod = Pod(name, [Container(container, resources) for container, resources in containers.items()])
        await self._kubelet.admit(pod)
        self._pods[name] = pod

    async def _run(self, name: str) -> None:
        pod = self._pod(name)
        for container in pod.containers:
            await self._kubelet.start_container(pod, container.name)

    async def _remove(self, name: str) -> None:
        await self._kubelet.finish(self._pod(name))
        del self._pods[name]

    async def _restart(self, option: str = "") -> None:
        if option not in {"", "lose-checkpoint"}:
            raise CommandError(f"unknown option {option}; the only one is lose-checkpoint")
        await self._kubelet.restart(keep_checkpoint=not option)

    async def _stop(self) -> None:
        await self._kubelet.stop()

    async def _start(self) -> None:
        await self._kubelet.start()

    async def _status(self) -> None:
        kubelet = self._kubelet
        state = {"running": kubelet.running, "behaviour": kubelet.behaviour.name.lower()}
        self._emit(Event("status", state | {"registrations": len(kubelet.registrations)}))
        for name in kubelet.resources:
            view = kubelet.resource(name)
            counts = {"capacity": view.capacity, "allocatable": view.allocatable, "connected": view.connected}
            self._emit(Event("resource", {"resource": name, **counts, "streams": view.streams}))
        for pod in self._pods.values():
            self._emit(Event("pod", {"pod": pod.name, "uid": pod.uid}))

    async def _devices(self, resource: str) -> None:
        view = self._kubelet.resource(resource)
        if not view.known:
            raise CommandError(f"no resource {resource}")
        owners = self._kubelet.allocated(resource)
        for device, health in view.devices.items():
            pod, container = owners.get(device, ("", ""))
            owner = {"pod": pod, "container": container} if pod else {}
            self._emit(Event("device", {"resource": resource, "device": device, "health": health, **owner}))

    async def _wait(self, resource: str, count: str, seconds: str = str(_WAIT_TIMEOUT)) -> None:
        allocatable = _number(count, int, "the count")
        timeout = _number(seconds, float, "the timeout")
        try:
            await self._kubelet.wait_for(lambda k: k.resource(resource).allocatable == allocatable, timeout)
        except TimeoutError:
            current = self._kubelet.resource(resource).allocatable
            raise CommandError(f"{resource} has {current} allocatable devices after {timeout:g} s") from None
        self._emit(Event("allocatable", {"resource": resource, "allocatable": allocatable}))

    def _fault(self, name: str) -> object:
        faults = _by_name(self._kubelet.faults)
        if name not in faults:
            raise CommandError(f"unknown fault {name}; the faults are {', '.join(faults)}")
        return faults[name]

    async def _break(self, name: str = "", value: str = "") -> None:
        if name:
            current = self._fault(name)
            fault: object = True
            if name == "refuse-register":
                fault = value or "refused by the stand-in kubelet"
            elif isinstance(current, float):
                fault = _number(value, float, "the delay")
            elif value:
                raise CommandError(f"{name} has no value")
            setattr(self._kubelet.faults, name.replace("-", "_"), fault)
        for fault_name, fault_value in _by_name(self._kubelet.faults).items():
            if name in {"", fault_name}:
                self._emit(Event("fault", {"fault": fault_name, "value": fault_value or False}))

    async def _repair(self, name: str = "") -> None:
        if name:
            self._fault(name)
        defaults = _by_name(Faults())
        for fault_name, default in defaults.items():
            if name in {"", fault_name}:
                setattr(self._kubelet.faults, fault_name.replace("-", "_"), default)
                self._emit(Event("fault", {"fault": fault_name, "value": False}))
        if not self._kubelet.faults.hang_register:
            self._kubelet.faults.release_register()

    async def _drop(self, resource: str | None = None) -> None:
        await self._kubelet.drop_streams(resource)

    async def _help(self) -> None:
        for name, command in self.commands.items():
            usage = f"{name} {command.usage}".rstrip()
            self._emit(Event("help", {"usage": usage, "description": command.description}))

    async def _quit(self) -> None:
        self.quit = True


# -- the process ----------------------------------------------------------------------------------------------------


def _read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    """Pass the lines of standard input to the event loop, until its end. Runs in a thread of its own.

    Standard input may be a file or a terminal, which event loops cannot poll alike. It is read without a buffer,
    because the interpreter cannot exit while a thread holds the buffer's lock.
    """
    with contextlib.suppress(OSError, RuntimeError), open(0, "rb", buffering=0, closefd=False) as stdin:
        for line in stdin:  # RuntimeError: the loop is closed
            loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))


def _require_no_listener(directory: str) -> None:
    """Raise KubeletDirectoryError if a kubelet listens in the directory: a start would remove its sockets."""
    path = socket_path(os.path.abspath(directory))
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return
    raise KubeletDirectoryError(f"a kubelet already listens on {path}")


async def _execute_all(console: Console, lines: asyncio.Queue[str]) -> None:
    while not console.quit:
        await console.execute(await lines.get())


async def _expire(kubelet: Kubelet) -> None:
    while True:
        await asyncio.sleep(EXPIRY_INTERVAL)
        _ = kubelet.resources  # the access expires resources


async def run(
    directory: str,
    *,
    behaviour: Behaviour,
    seed: int,
    grace_period: float,
    pod_resources: str | None = None,
    as_json: bool = False,
) -> None:
    """Run a kubelet in ``directory`` until ``quit`` or a signal. Raises KubeletDirectoryError and OSError.

    ``pod_resources`` is the path of the podresources socket, or None.
    """
    _require_no_listener(directory)
    output = Output(as_json=as_json)
    kubelet = Kubelet(directory, behaviour=behaviour, seed=seed, grace_period=grace_period, on_event=output)
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(kubelet)
        if pod_resources is not None:
            await stack.enter_async_context(PodResources(kubelet, pod_resources))
        threading.Thread(target=_read_lines, args=(loop, lines), daemon=True).start()
        work = (_execute_all(Console(kubelet, output), lines), _expire(kubelet), stopped.wait(), output.closed.wait())
        tasks = [asyncio.ensure_future(task) for task in work]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for task in done:
            task.result()
