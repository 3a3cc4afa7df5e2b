"""``aosp-plugin demo --stay``: a host of phones whose pods come and go, with faults at a key press.

Everything but devices and kubelet is real: the plugin, its page, its metrics and its log. What happens is printed, one
line for each event, until ``q``, SIGINT, SIGTERM or the end of the terminal.
"""

import asyncio
import contextlib
import datetime
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Awaitable, Callable, Iterator, Mapping

import click

from aosp_plugin.demo.node import BINDER_DEVICES, RESOURCE, START_TIMEOUT, DemoError, Host, PluginProcess
from kubelet_standin import (
    AdmissionError,
    Container,
    ContainerAllocation,
    Event,
    Kubelet,
    KubeletVersion,
    Pod,
    PodResources,
)

NAMESPACES = ("games", "tests", "streaming")
INITIAL_LOAD = 0.6
"""The part of the phones that have a pod at the start. Then it moves around this value."""
MEAN_PAUSE = 1.5
"""Seconds between two changes, on average."""
PLUGIN_PAUSE = 3.0
"""Seconds that a killed plugin stays away."""
_END = ""
"""The key when the terminal is gone."""
_NO_KEYS = "\nNo keys: standard input is no terminal, or this is a background job. SIGTERM ends the demo.\n"

_COLORS = {"fault": "magenta", "kubelet": "cyan", "pod": "green", "WARNING": "yellow", "ERROR": "red"}

_EVENTS = {
    "kubelet-started": "started",
    "kubelet-stopped": "stopped",
    "plugin-registered": "plugin registered: {endpoint}",
    "stream-ended": "stream of {endpoint} ended: {reason}",
    "devices-changed": "{resource}: capacity {capacity}, allocatable {allocatable}",
}
"""What is printed of an event of the stand-in kubelet; other events are those of pods."""
_PODS = {
    "pod-rejected": "! {pod}: {reason}: {message}",
    "container-failed": "! {pod}: {message}",
    "container-allocated": "+ {pod} has {devices}",
    "pod-removed": "- {pod}",
}


async def stay(phones: int, seed: int, port: int) -> int:
    """Run the demo with ``phones`` phones until it is ended, and return the exit code.

    ``port`` is that of the plugin's page at 127.0.0.1; 0 for any free port.
    """
    logging.disable()  # of the stand-in kubelet; the plugin is another process
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    failures: list[BaseException] = []
    with tempfile.TemporaryDirectory(prefix="aosp-demo-") as directory:
        try:
            await _Demo(directory, phones, seed, port or _free_port(), stopped).run()
        except* (DemoError, TimeoutError) as group:
            failures += group.exceptions
    for failure in failures:
        click.echo(f"{click.style('✗', fg='red', bold=True)} failed: {failure}")
    return int(bool(failures))


class _Screen:
    """Standard output."""

    def __init__(self, stopped: asyncio.Event, namespaces: Mapping[str, str]) -> None:
        """Set ``stopped`` when the output has no reader any more. ``namespaces`` has the namespace of each pod."""
        self.shows_pods = False
        """Whether pods that come and go are printed."""
        self._stopped = stopped
        self._namespaces = namespaces

    def write(self, text: str) -> None:
        """Print a text."""
        try:
            click.echo(text)
        except OSError:  # the reader of a pipe, or the terminal, is gone
            # The interpreter flushes standard output once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._stopped.set()

    def line(self, source: str, text: str) -> None:
        """Print what happened, now, at ``source``."""
        time = datetime.datetime.now().astimezone().strftime("%H:%M:%S")
        color = _COLORS.get(source) or _COLORS.get(text.partition(" ")[0])
        self.write(f"{click.style(time, dim=True)}  {click.style(f'{source:9}', fg=color)} {text}")

    def log_line(self, text: str) -> None:
        """Print a line of the plugin's log without its time and the name of the only resource."""
        _, separator, message = text.partition("Z ")
        self.line("plugin", (message if separator else text).replace(f" resource={RESOURCE}", ""))

    def event(self, event: Event) -> None:
        """Print an event of the stand-in kubelet, if it is one of those that matter here."""
        fields = dict(event.fields)
        if event.name in _EVENTS:
            self.line("kubelet", _EVENTS[event.name].format(**fields))
        elif event.name in _PODS and self.shows_pods:
            fields["pod"] = f"{self._namespaces.get(str(fields['pod']), 'default')}/{fields['pod']}"
            if isinstance(allocation := fields.get("allocation"), ContainerAllocation):
                fields["devices"] = ", ".join(allocation.device_ids[RESOURCE])
            self.line("pod", " ".join(_PODS[event.name].format(**fields).split()))


class _Demo:
    """A host with phones, their pods, and the faults that a person causes."""

    def __init__(self, directory: str, phones: int, seed: int, port: int, stopped: asyncio.Event) -> None:
        self._host = Host(directory, phones)
        self._seed = seed
        self._address = f"127.0.0.1:{port}"
        self._stopped = stopped
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._faults_rng = random.Random(f"{seed} faults")  # noqa: S311 - as above
        self._namespaces: dict[str, str] = {}
        self._screen = _Screen(stopped, self._namespaces)
        self._pod_resources = os.path.join(directory, "pod-resources.sock")
        # Nearly every cluster of today has a kubelet of these versions.
        self._kubelet = Kubelet(
            self._host.kubelet_dir, version=KubeletVersion.V1_36, seed=seed, on_event=self._screen.event
        )
        self._plugin = PluginProcess(["--config", self._host.configuration], log=self._screen.log_line)
        self._pods: list[Pod] = []
        self._started_pods = 0
        self._caused_faults = 0
        self._missing: dict[str, tuple[str, ...]] = {}
        """The binder devices that each phone lacks."""
        self._faults: Mapping[str, tuple[str, Callable[[], Awaitable[None]]]] = {
            "v": ("a phone vanishes with its three binder devices; again: it returns", self._vanish),
            "i": ("a device set becomes incomplete: hwbinder of a phone vanishes; again: it returns", self._incomplete),
            "p": (f"the plugin is killed, and starts again after {PLUGIN_PAUSE:g} s", self._kill),
            "k": ("the kubelet restarts", self._restart),
        }

    async def run(self) -> None:
        """Run until the event ``stopped``. Raises an ExceptionGroup of DemoError or TimeoutError."""
        started = time.monotonic()
        self._host.create()
        self._host.configure(listen=self._address, pod_resources_socket=self._pod_resources)
        async with (
            self._kubelet,
            PodResources(self._kubelet, self._pod_resources, self._namespaces),
            asyncio.TaskGroup() as group,
        ):
            tasks = [group.create_task(self._run_plugin()), group.create_task(self._run_host())]
            await self._stopped.wait()
            for task in tasks:
                task.cancel()
        duration = time.monotonic() - started
        self._screen.write(f"Ended after {duration:.0f} s, {self._started_pods} pods and {self._caused_faults} faults.")

    async def _run_plugin(self) -> None:
        """Run the plugin, and start it again when it was killed. Raises DemoError if it ends by itself."""
        while True:
            async with self._plugin as plugin:
                code = await plugin.exited()
            if code != -signal.SIGKILL:
                raise DemoError(f"the plugin exited with {code}")
            await asyncio.sleep(PLUGIN_PAUSE)

    async def _run_host(self) -> None:
        """Let pods come and go, and cause the faults that are typed, one after the other."""
        listed = len(self._host.phones)
        await self._kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == listed, START_TIMEOUT)
        for _ in range(int(listed * INITIAL_LOAD)):
            await self._start_pod()
        self._screen.line("pod", f"{self._started_pods} pods run")
        self._screen.shows_pods = True
        pressed: asyncio.Queue[str] = asyncio.Queue()
        with _keys(pressed.put_nowait) as has_keys:
            self._introduce()
            self._screen.write(self._list_of_keys() if has_keys else _NO_KEYS)
            while True:
                try:
                    async with asyncio.timeout(self._rng.expovariate(1 / MEAN_PAUSE)):
                        key = await pressed.get()
                except TimeoutError:
                    await self._change_pods()
                else:
                    await self._obey(key)

    def _introduce(self) -> None:
        self._screen.write(
            f"\nThe plugin, a stand-in kubelet and {len(self._host.phones)} stand-in phones, whose pods come and go "
            f"(--seed {self._seed}).\n"
            f"  page      http://{self._address}/\n"
            f"  terminal  {sys.executable} -m aosp_plugin status --url http://{self._address}\n"
            f"  metrics   http://{self._address}/metrics\n"
            f"  config    {self._host.configuration}"
        )

    def _list_of_keys(self) -> str:
        rows = [(key, text) for key, (text, _) in self._faults.items()]
        rows += [("h", "these keys"), ("q", "end, also Ctrl-C")]
        return "\n" + "\n".join(f"  {click.style(key, bold=True)}  {text}" for key, text in rows) + "\n"

    async def _obey(self, key: str) -> None:
        if key in {"q", _END}:
            self._stopped.set()
        elif key in self._faults:
            self._caused_faults += 1
            await self._faults[key][1]()
        elif not key.isspace():
            self._screen.write(self._list_of_keys())

    async def _change_pods(self) -> None:
        """Start or end a pod. Nothing starts while the kubelet has no free phone."""
        load = len(self._pods) / len(self._host.phones)
        if self._rng.random() < 0.5 + INITIAL_LOAD - load:
            if len(self._pods) < self._kubelet.resource(RESOURCE).allocatable:
                await self._start_pod()
        elif self._pods:
            await self._kubelet.finish(self._pods.pop(self._rng.randrange(len(self._pods))))

    async def _start_pod(self) -> None:
        pod = Pod(f"phone-{self._rng.randrange(16**5):05x}", [Container("android", {RESOURCE: 1})])
        self._namespaces[pod.name] = self._rng.choice(NAMESPACES)
        with contextlib.suppress(AdmissionError):  # which the kubelet has reported
            await self._kubelet.admit(pod)
            await self._kubelet.start_container(pod, "android")
            self._started_pods += 1
            self._pods.append(pod)

    async def _vanish(self) -> None:
        self._toggle(BINDER_DEVICES)

    async def _incomplete(self) -> None:
        self._toggle(("hwbinder",))

    def _toggle(self, devices: tuple[str, ...]) -> None:
        """Remove these binder devices from a phone, or create them again if they are away."""
        what = "all binder devices" if devices == BINDER_DEVICES else devices[0]
        if away := [phone for phone, missing in self._missing.items() if missing == devices]:
            del self._missing[away[0]]
            self._host.add(away[0], devices)
            self._report(f"{away[0]}: {what} created again")
            return
        phone = self._faults_rng.choice([name for name in self._host.phones if name not in self._missing])
        owner = self._kubelet.allocated(RESOURCE).get(phone)
        self._missing[phone] = devices
        self._report(f"{phone}: {what} removed ({f'allocated to {owner[0]}' if owner else 'free'})")
        self._host.remove(phone, devices)

    async def _kill(self) -> None:
        self._report(f"the plugin is killed, and starts again after {PLUGIN_PAUSE:g} s")
        # Without phones.count, nothing tells the plugin how many devices a host should have.
        vanished = [phone for phone, missing in self._missing.items() if missing == BINDER_DEVICES]
        if vanished:
            self._report(f"a new plugin cannot know of {', '.join(vanished)}, which no file of the host names any more")
        self._plugin.kill()

    async def _restart(self) -> None:
        self._report("the kubelet restarts")
        await self._kubelet.restart()

    def _report(self, text: str) -> None:
        self._screen.line("fault", text)


@contextlib.contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[bool]:
    """Call ``press`` with each key that is pressed, and with ``_END`` when the terminal is gone.

    Yields False if there are no keys. They are not echoed meanwhile; at the end the terminal has its previous settings.
    """
    # A background job that changes the settings would be stopped (SIGTTOU).
    if not sys.stdin.isatty() or os.tcgetpgrp(0) != os.getpgrp():
        yield False
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            text = os.read(0, 1024).decode(errors="ignore")
        except OSError:  # EIO: the terminal was closed
            text = ""
        for key in text or [_END]:
            press(key)
        if not text:
            loop.remove_reader(0)

    before = termios.tcgetattr(0)
    tty.setcbreak(0)
    loop.add_reader(0, read)
    try:
        yield True
    finally:
        loop.remove_reader(0)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
