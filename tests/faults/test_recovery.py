"""``aosp-plugin serve`` recovers from each fault of its node, and from several at a time, which a seed selects.

Each fault is a context: it begins at the entry, and one that lasts ends at the exit. Afterwards everything must be
right again, by checks that use none of the plugin's code.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import AdmissionError, Container, Kubelet, KubeletVersion, Pod, PodResources
from tests.served_node import ServedNode
from tests.support import PATIENCE, RESOURCE, Serve, free_port, http_get, sockets

MORE_DESCRIPTORS, MORE_THREADS, SHARE = 8, 12, 0.2
"""What a process that leaks nothing may have more than at first, and the share of a processor that an idle one uses."""
QUEUE = min(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()), 100_000)


class Node(ServedNode):
    """A device directory, a kubelet and the plugin's process."""

    def __init__(self, root: Path, kubelet_dir: str, rng: random.Random) -> None:
        pods, cdi = {"pod_resources_socket": str(root / "pods.sock")}, {"cdi_dir": str(root / "cdi")}
        kubelet = Kubelet(kubelet_dir, version=rng.choice(list(KubeletVersion)))
        super().__init__(root, kubelet, port=free_port(), device_list=["envvar", "cdi-cri"], **pods, **cdi)
        self.root, self.kubelet_dir, self.rng = root, kubelet_dir, rng
        self.dev = self.devices.directory
        self.devices.add(*range(24))
        self.targets = root / "targets"
        self.targets.mkdir()
        self.link(*range(100, 108))
        self.kubelet_runs = False
        self.pod_resources = PodResources(self.kubelet, root / "pods.sock")
        self.configure()
        self.plugin = self._process()
        self.pod: Pod | None = None
        self.pods = 0
        self.in_use: set[str] = set()
        """The devices of the pod."""
        self.is_stopped = False
        self.first = (0, 0)
        """The descriptors and threads of the process when nothing was wrong for the first time."""

    def _process(self) -> Serve:
        return self.process(stderr=os.open(self.root / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY))

    def link(self, *numbers: int) -> None:
        """Create links to devices in another directory."""
        for number in numbers:
            (self.targets / str(number)).touch()
            (self.dev / f"aosp_binder{number}").symlink_to(self.targets / str(number))

    def some(self) -> list[Path]:
        """Return some of the devices that no pod has."""
        free = sorted({*os.listdir(self.dev)} - self.in_use)
        return [self.dev / name for name in self.rng.sample(free, min(5, len(free)))]

    async def start_kubelet(self) -> None:
        """Start the kubelet if it does not run."""
        if not self.kubelet_runs:
            await self.kubelet.start()
            self.kubelet_runs = True

    async def stop_kubelet(self) -> None:
        """Kill the kubelet, whose socket stays."""
        self.kubelet_runs = False
        await self.kubelet.stop()

    async def restart_kubelet(self) -> None:
        """Kill the kubelet and start it again."""
        await self.stop_kubelet()
        await self.start_kubelet()

    async def start(self) -> None:
        """Start a process of the plugin."""
        self.plugin = self._process()
        await self.plugin.__aenter__()
        self.first = (0, 0)

    async def end(self, number: signal.Signals) -> None:
        """End the process of the plugin."""
        self.plugin.signal(number)
        await self.plugin.finish()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self.plugin.process.returncode is None:
            self.plugin.signal(number)

    def reload(self) -> None:
        """Send SIGHUP, unless it would end the process, which has just started."""
        status = Path(f"/proc/{self.plugin.process.pid}/status").read_text()
        blocked = next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
        if int(blocked, 16) & 1 << signal.SIGHUP - 1:
            self.plugin.signal(signal.SIGHUP)

    async def use(self, *, must: bool) -> None:
        """Start a pod, which the kubelet may refuse unless it must not, and end the one before.

        There is always a pod: a kubelet without any is not believed.
        """
        view = self.kubelet.resource(RESOURCE)
        if self.is_stopped or not self.kubelet_runs or not view.known or self.plugin.process.returncode is not None:
            return
        self.pods += 1
        pod = Pod(f"phone-{self.pods}", [Container("main", {RESOURCE: 2})])
        try:
            async with asyncio.timeout(PATIENCE):
                admitted = await self.kubelet.admit(pod)
        except AdmissionError:
            assert not must or view.allocatable < 2
            return
        (container,) = admitted.containers.values()
        ids = container.device_ids[RESOURCE]
        assert set(container.envs["BINDER_VISIBLE_DEVICES"].split(",")) == set(ids)
        assert set(container.cdi_devices) == {f"{RESOURCE}={each}" for each in ids}
        assert not must or all((self.dev / each).exists() for each in ids)
        if self.pod is not None:
            await self.kubelet.finish(self.pod)
        self.pod, self.in_use = pod, set(ids)

    async def wrong(self) -> str:
        """Return what is wrong now, or an empty text."""
        assert self.plugin.process.returncode is None
        view, found = self.kubelet.resource(RESOURCE), sockets(self.kubelet_dir)
        if not view.connected or view.streams != 1 or [self.kubelet.registrations[-1].endpoint] != found:
            return f"{view.streams} streams, connected: {view.connected}, sockets: {found}"
        present = {path.name for path in self.dev.glob("aosp_binder*") if path.exists()}
        if different := present ^ {each for each, health in view.devices.items() if health == "Healthy"}:
            return f"the kubelet differs in {sorted(different)[:5]}"
        if different := present ^ self._in_spec():
            return f"the CDI spec differs in {sorted(different)[:5]}"
        for path, text in (("/healthz", "ok"), ("/readyz", "ok"), ("/metrics", "\naosp_plugin_polling 0.0\n")):
            with contextlib.suppress(OSError):
                status, _, body = await http_get(self.port, path)
                if status == 200 and text in body:
                    continue
            return f"{path} is not 200 with {text!r}"
        return await self._usage()

    def _in_spec(self) -> set[str]:
        try:
            spec = json.loads((self.root / "cdi" / "aosp.io_binder.json").read_bytes())
        except FileNotFoundError:
            return set()
        return {device["name"] for device in spec["devices"]}

    async def _usage(self) -> str:
        process = psutil.Process(self.plugin.process.pid)
        before = sum(process.cpu_times()[:2])
        await asyncio.sleep(0.25)
        share = (sum(process.cpu_times()[:2]) - before) / 0.25
        now = process.num_fds(), process.num_threads()
        self.first = self.first if any(self.first) else now
        leaks = now[0] > self.first[0] + MORE_DESCRIPTORS or now[1] > self.first[1] + MORE_THREADS
        return (
            f"{now} descriptors and threads, {self.first} at first, {share:.0%} CPU" if leaks or share > SHARE else ""
        )

    async def settle(self) -> None:
        """Wait until nothing is wrong, and start a pod."""
        wrong = ""
        try:
            async with asyncio.timeout(PATIENCE):
                while wrong := await self.wrong():
                    await self.use(must=False)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            log = "".join((self.root / "log").read_text().splitlines(keepends=True)[-40:])
            pytest.fail(f"{wrong}\n{self.kubelet.describe()}\n{log}")
        await self.use(must=True)


def remove(directory: str) -> None:
    """Remove a directory that a process changes."""
    while os.path.exists(directory):
        shutil.rmtree(directory, ignore_errors=True)


Fault = Callable[[Node], AsyncIterator[None]]


async def devices_change(node: Node) -> AsyncIterator[None]:
    """Remove and rename devices, and create some again at once."""
    for path in node.some():
        path.unlink()
    for path in node.some():
        path.rename(node.dev / f"aosp_binder{node.rng.randrange(200, 300)}")
    for path in node.some():
        path.unlink()
        path.touch()
    yield


async def targets_vanish(node: Node) -> AsyncIterator[None]:
    """Remove the targets of links, and create some again."""
    for path in node.targets.iterdir():
        path.unlink()
    yield
    for number in (100, 104):
        (node.targets / str(number)).touch()


async def thousands_of_devices(node: Node) -> AsyncIterator[None]:
    """Create devices as fast as possible, and remove them."""
    for number in range(1000, 3000):
        (node.dev / f"aosp_binder{number}").touch()
    yield
    for path in node.dev.glob("aosp_binder[12]???"):
        path.unlink()


async def events_are_lost(node: Node) -> AsyncIterator[None]:
    """Let the queue of inotify overflow while the process is stopped, before devices change."""
    node.signal(signal.SIGSTOP)
    for _ in range(QUEUE // 2 + 10):
        (node.dev / "noise").touch()
        (node.dev / "noise").unlink()
    async with contextlib.asynccontextmanager(devices_change)(node):
        node.signal(signal.SIGCONT)
        yield


async def device_directory_is_replaced(node: Node) -> AsyncIterator[None]:
    """Have an empty directory in its place for a while."""
    aside = node.dev.rename(node.root / "aside")
    node.dev.mkdir()
    yield
    remove(str(node.dev))
    aside.rename(node.dev)


async def kubelet_directory_is_away(node: Node) -> AsyncIterator[None]:
    """Move the directory away while the kubelet runs, and back before the kubelet restarts."""
    os.rename(node.kubelet_dir, f"{node.kubelet_dir}.aside")
    yield
    os.rename(f"{node.kubelet_dir}.aside", node.kubelet_dir)
    await node.restart_kubelet()


async def kubelet_directory_is_made_again(node: Node) -> AsyncIterator[None]:
    """Delete it while no kubelet runs."""
    await node.stop_kubelet()
    remove(node.kubelet_dir)
    yield
    await node.start_kubelet()


async def kubelet_loses_its_socket(node: Node) -> AsyncIterator[None]:
    """Delete it and all other files, with their directory, while the kubelet runs."""
    remove(node.kubelet_dir)
    os.mkdir(node.kubelet_dir)
    yield
    await node.restart_kubelet()


async def kubelet_of_another_version(node: Node) -> AsyncIterator[None]:
    """Start another kubelet without the state of the first one."""
    await node.stop_kubelet()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(node.kubelet.checkpoint_path)
    await node.pod_resources.__aexit__(None, None, None)
    node.pod = None
    node.kubelet = Kubelet(node.kubelet_dir, version=node.rng.choice(list(KubeletVersion)))
    node.pod_resources = PodResources(node.kubelet, node.root / "pods.sock")
    await node.pod_resources.__aenter__()
    yield
    await node.start_kubelet()


async def kubelet_keeps_sockets(node: Node) -> AsyncIterator[None]:
    """Restart the kubelet, which removes no socket of a plugin."""
    await node.stop_kubelet()
    node.kubelet.faults.keep_sockets = True
    await node.start_kubelet()
    node.kubelet.faults.keep_sockets = False
    yield


async def registration_fails(fault: str, value: object, node: Node) -> AsyncIterator[None]:
    """Restart the kubelet, which does not register the plugin as it should."""
    usual = getattr(node.kubelet.faults, fault)
    setattr(node.kubelet.faults, fault, value)
    await node.restart_kubelet()
    yield
    node.kubelet.faults.release_register()
    setattr(node.kubelet.faults, fault, usual)
    if fault == "garbage_register":  # what is no kubelet has to be replaced by one
        await node.restart_kubelet()


async def streams_are_dropped(node: Node) -> AsyncIterator[None]:
    """Let the kubelet close the stream, and open no other one."""
    await node.kubelet.drop_streams()
    yield


async def own_socket_is_deleted(node: Node) -> AsyncIterator[None]:
    """Delete the plugin's socket; the stream stays open."""
    for name in sockets(node.kubelet_dir):
        os.unlink(f"{node.kubelet_dir}/{name}")
    yield


async def foreign_streams(node: Node) -> AsyncIterator[None]:
    """Let another client open streams, and not read them."""
    endpoint = next(iter(sockets(node.kubelet_dir)), "none")
    async with grpc.aio.insecure_channel(f"unix:{node.kubelet_dir}/{endpoint}") as channel:
        streams = [DevicePluginStub(channel).ListAndWatch(pb.Empty()) for _ in range(5)]
        yield
        streams[0].cancel()


async def plugin_ends(number: signal.Signals, node: Node) -> AsyncIterator[None]:
    """End the process by a signal, and start it again."""
    await node.end(number)
    yield
    await node.start()


async def plugin_is_stopped(node: Node) -> AsyncIterator[None]:
    """Give the process no time (SIGSTOP)."""
    node.is_stopped = True
    node.signal(signal.SIGSTOP)
    yield
    node.signal(signal.SIGCONT)
    node.is_stopped = False


async def plugin_reloads(node: Node) -> AsyncIterator[None]:
    """Send SIGHUP, several times, at last with another configuration."""
    node.reload()
    node.configure(log_level="debug")
    node.reload()
    yield
    node.configure()
    node.reload()


OF_DEVICES: list[Fault] = [
    *(devices_change, targets_vanish, thousands_of_devices, events_are_lost, device_directory_is_replaced)
]
OF_DIRECTORY: list[Fault] = [kubelet_directory_is_away, kubelet_directory_is_made_again, kubelet_loses_its_socket]
"""Faults during which no process of the plugin can start."""
OF_KUBELET: list[Fault] = [
    *(kubelet_of_another_version, kubelet_keeps_sockets, streams_are_dropped, own_socket_is_deleted, foreign_streams),
    partial(registration_fails, "garbage_register", True),  # noqa: FBT003 - a value
    partial(registration_fails, "hang_register", True),  # noqa: FBT003 - a value
    partial(registration_fails, "refuse_register", "not now"),
    partial(registration_fails, "slow_register", 2.0),
    partial(registration_fails, "never_open_stream", True),  # noqa: FBT003 - a value
]
OF_PLUGIN: list[Fault] = [
    *(partial(plugin_ends, number) for number in (signal.SIGKILL, signal.SIGTERM)),
    *(plugin_is_stopped, plugin_reloads),
]


@contextlib.asynccontextmanager
async def healthy(tmp_path: Path, kubelet_dir: str, seed: int | str) -> AsyncIterator[Node]:
    """Run kubelet and plugin, and wait until nothing is wrong."""
    node = Node(tmp_path, kubelet_dir, random.Random(seed))  # noqa: S311 - repeatable, not secret
    await node.start_kubelet()
    await node.pod_resources.__aenter__()
    await node.start()
    try:
        await node.settle()
        yield node
    finally:
        node.signal(signal.SIGKILL)
        await node.plugin.finish()
        await node.pod_resources.__aexit__(None, None, None)
        await node.stop_kubelet()


async def recovers(node: Node, *faults: Fault) -> None:
    """Let faults happen, the later ones during the earlier ones, and wait until nothing is wrong."""
    async with contextlib.AsyncExitStack() as during:
        for fault in faults:
            await during.enter_async_context(contextlib.asynccontextmanager(fault)(node))
            await node.use(must=False)
        await asyncio.sleep(node.rng.uniform(0.0, 1.0))
        await node.use(must=False)
    await node.use(must=False)
    await node.settle()


def name_of(fault: Fault) -> str:
    if isinstance(fault, partial):
        return f"{fault.func.__name__}-{fault.args[0]}"
    return fault.__name__


@pytest.mark.parametrize("fault", [*OF_DEVICES, *OF_DIRECTORY, *OF_KUBELET, *OF_PLUGIN], ids=name_of)
async def test_plugin_recovers_from_a_fault(tmp_path: Path, kubelet_dir: str, fault: Fault) -> None:
    async with healthy(tmp_path, kubelet_dir, name_of(fault)) as node:
        await recovers(node, fault)


@pytest.mark.parametrize("seed", range(3))
async def test_plugin_recovers_from_faults_of_all_parts_at_a_time(tmp_path: Path, kubelet_dir: str, seed: int) -> None:
    """Again and again, in one process or its successors."""
    async with healthy(tmp_path, kubelet_dir, seed) as node:
        for _ in range(4):
            await recovers(node, *(node.rng.choice(faults) for faults in (OF_PLUGIN, OF_KUBELET, OF_DEVICES)))
