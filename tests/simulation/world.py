"""The node of a simulation: host, kubelet, plugin, pods, and what should be true of them."""

import asyncio
import contextvars
import gc
import random
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.config.keys import Config, Phones, Resource
from aosp_plugin.config.values import Api, Recreate
from aosp_plugin.daemon.generation import Generation
from aosp_plugin.daemon.serve import Daemon
from aosp_plugin.framework.apiserver.protocol import RESOURCE_SLICES
from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin
from tests.simulation.api import ApiServer
from tests.simulation.claims import CDI, ClaimKubelet
from tests.simulation.files import FileSystem
from tests.simulation.host import Host
from tests.simulation.kubelet import DIRECTORY, POD_RESOURCES, Kubelet
from tests.simulation.loop import SimulatedLoop, SimulatedTask
from tests.simulation.processes import CURRENT, Process

FOUND, PHONES, TABLETS = "aosp.io/binder", "aosp.io/phone", "aosp.io/tablet"
DEVICES = 4
COUNT = 3
"""Phones."""
HOST_BINDERFS = "/run/aosp-binderfs/host"
PHONE_DIRECTORY, CLAIM_DIRECTORY = "/run/aosp-binderfs/phones", "/run/aosp-binderfs/claims"
TTL = 30.0
"""Seconds for which a missing or replaced device is remembered."""


def configuration(*, changed: bool) -> Config:
    """Return the configuration; the changed one differs in a key that matters little."""
    found = Resource(
        resource_name=FOUND, verify=Verify.BINDER, missing_device_ttl=TTL, shared_devices=(), recreate=Recreate.NEVER
    )
    phones = Resource(
        resource_name=PHONES,
        phones=Phones(count=COUNT, directory=PHONE_DIRECTORY),
        recreate=Recreate.ON_START,
        shared_devices=(),
        missing_device_ttl=TTL,
    )
    tablets = Resource(
        resource_name=TABLETS,
        api=Api.DRA,
        phones=Phones(count=COUNT, directory=CLAIM_DIRECTORY),
        recreate=Recreate.ON_START,
        shared_devices=(),
        missing_device_ttl=TTL,
    )
    return Config(
        resources=(found, phones, tablets),
        listen="",
        kubelet_dir=DIRECTORY,
        pod_resources_socket=POD_RESOURCES,
        leak_scan_interval=0.0,
        log_level="debug" if changed else "info",
    )


class World:
    """One node with one plugin, which is started again whenever it ends."""

    def __init__(self, seed: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        self.host = Host(seed, loop.time)
        self.rng = random.Random(f"world {seed}")  # noqa: S311 - a simulation
        self.kubelet = Kubelet(self.host)
        self.api = self.host.api = ApiServer(self.host)
        self.claims = ClaimKubelet(self.host, self.api)
        self.process = self.host.new_process()
        self._others: set[Process] = set()
        self._daemon: Daemon | None = None
        self.generations: weakref.WeakSet[Generation] = weakref.WeakSet()
        """Those of the process that something still refers to."""
        self._changed = False
        self._pods = 0
        self._stopping = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.devices = [f"aosp_binder{number}" for number in range(DEVICES)]

    # -- start and end

    def set_up(self) -> None:
        """Prepare the host, and start everything."""
        self._loop.set_task_factory(_task_factory)
        files = self.host.files
        files.make_directories(HOST_BINDERFS)
        self._mount_devices()
        for name in self.devices:
            files.add(f"/dev/{name}", 0o120777).target = f"{HOST_BINDERFS}/{name}"
        self.start_kubelet()
        self.spawn(self._keep_plugin())

    def spawn(self, work: Any) -> None:
        """Run a task of the world."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        """End the plugin orderly."""
        self._stopping = True
        process = self.process
        process.stop()
        await asyncio.sleep(10.0)
        if process.alive and process.descriptors:
            self.host.violated(f"descriptors are left open: {sorted(process.descriptors)}")
        process.kill()
        self.stop_kubelet()
        for task in self.tasks:
            task.cancel()
        await asyncio.sleep(1.0)

    async def _keep_plugin(self) -> None:
        while not self._stopping:
            await self._run_plugin()
            await asyncio.sleep(self.rng.uniform(0.05, 1.5))

    async def _run_plugin(self) -> None:
        """Run a process of the plugin until it ends."""
        self.process = process = self.host.new_process()
        self.generations = weakref.WeakSet()
        changed = self._changed
        self._daemon = process.run(partial(Daemon, lambda: configuration(changed=self._changed)))
        self.host.log("plugin started", pid=process.pid, changed=changed)
        await self._until_ended(process, self._daemon)

    async def _until_ended(self, process: Process, daemon: Daemon) -> None:
        def start() -> asyncio.Task[None]:
            return self._loop.create_task(daemon.run())

        task = process.run(start)
        await asyncio.wait({task})
        if process.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.host.log("plugin failed", error=_leaves(error))
            if not _passed(error, "_start_first"):  # if it cannot start, its supervisor starts it again
                self.host.violated(f"the plugin ended: {_leaves(error)}")
        self.host.log("plugin ended", pid=process.pid)
        process.kill()

    # -- what faults do

    def start_kubelet(self) -> None:
        """Start the kubelet, unless it runs; containers go on."""
        if not self.kubelet.running and not self._stopping:
            self.kubelet.start()
            self.claims.start()

    def stop_kubelet(self) -> None:
        """Stop the kubelet; containers go on."""
        self.kubelet.stop()
        self.claims.stop()

    def kill_plugin_at_await(self) -> None:
        """Kill the plugin at one of the next steps of the event loop: each task of it goes on after an await."""
        process, left = self.process, 1 + int(self.rng.expovariate(1 / 60))

        def before_step(context: contextvars.Context) -> None:
            nonlocal left
            if context.get(CURRENT) is process:
                left -= 1
            if left <= 0 or not process.alive:
                process.kill()
                self._loop.before_step = None

        self._loop.before_step = before_step

    def replace_version(self) -> None:
        """Kill the plugin; the next one finds what an earlier version has left, as after a downgrade and an upgrade."""
        if not self._others:
            self.process.kill()
            self.claims.become_earlier()

    def reload_plugin(self) -> None:
        """Send SIGHUP."""
        self._changed ^= self.rng.random() < 0.5
        self.process.reload()

    def start_second_plugin(self) -> Callable[[], None]:
        """Start another process of the plugin; return what ends it."""
        process = self.host.new_process()
        daemon = process.run(partial(Daemon, lambda: configuration(changed=self._changed)))
        self.host.log("second plugin started", pid=process.pid)
        self._others.add(process)
        process.at_death.append(partial(self._others.discard, process))
        self.spawn(self._until_ended(process, daemon))
        return process.stop

    def start_pod(self) -> None:
        """Let a pod arrive."""
        self._pods += 1
        name, resource = f"pod-{self._pods}", self.rng.choice((FOUND, PHONES))
        if self.kubelet.running:
            self.spawn(self.kubelet.admit(name, resource))

    def end_pod(self) -> None:
        """End a pod."""
        if self.kubelet.pods:
            self.kubelet.remove(self.rng.choice(sorted(self.kubelet.pods)))

    def restart_container(self) -> None:
        """Restart a container, as the kubelet does after a crash."""
        if self.kubelet.pods and self.kubelet.running:
            pod = self.kubelet.pods[self.rng.choice(sorted(self.kubelet.pods))]
            self.spawn(self.kubelet.start_container(pod))

    def lose_device(self) -> None:
        """Remove a device, and create it again later."""
        system = self.host.files.mounted(HOST_BINDERFS)
        name = self.rng.choice(self.devices)
        if system is None or name not in system.root.entries or system.root.entries[name] in self.host.held:
            return
        del system.root.entries[name]
        self.host.files.changed(system.root)

        def create() -> None:
            if name not in system.root.entries and self.host.files.mounted(HOST_BINDERFS) is system:
                self.host.files.add_device(system, name).mode = 0o20666

        self.host.later(self.rng.uniform(0.0, 5.0), create)

    def mount_devices_again(self) -> None:
        """Mount another binderfs with the found devices."""
        if self.host.files.mounted(HOST_BINDERFS) is not None:
            self.host.files.detach(HOST_BINDERFS)
        self.host.later(self.rng.uniform(0.0, 1.0), self._mount_devices)

    def _mount_devices(self) -> None:
        if self.host.files.mounted(HOST_BINDERFS) is None:
            system = self.host.files.new_system("binder", "host")
            self.host.files.attach(system, HOST_BINDERFS)
            for name in self.devices:
                self.host.files.add_device(system, name).mode = 0o20666

    def damage_slice(self, *, delete: bool) -> None:
        """Let another client delete or change a slice."""
        if slices := self.api.slices():
            each = self.rng.choice(slices)
            path = f"{RESOURCE_SLICES}/{each['metadata']['name']}"
            if delete:
                self.api.delete(path)
            else:
                self.api.replace(path, {**each, "spec": {**each["spec"], "devices": []}})

    def remove_specs(self, *, directory: bool = False) -> None:
        """Remove the CDI spec of a claim, or the directory with all specs, and create that again."""
        files = self.host.files
        names = sorted(name for name in files.lookup(CDI).entries if "claim_" in name and name.endswith(".json"))
        removed = names if directory else names and [self.rng.choice(names)]
        for pod in self.claims.pods.values():
            if any(name.endswith(f"_{pod.claim.uid}.json") for name in removed):
                pod.is_damaged = True
                self.host.may_replace.add(pod.name)
        for name in removed:
            files.remove(f"{CDI}/{name}")
        if directory:
            files.remove_tree(CDI)
            files.make_directories(CDI)

    def end_claim(self) -> None:
        """End a pod with a claim."""
        if names := sorted(name for name, pod in self.claims.pods.items() if not pod.ends):
            self.claims.end(self.rng.choice(names))

    def restart_claim(self) -> None:
        """Restart a container with a claim."""
        if names := sorted(self.claims.pods):
            self.claims.restart(self.rng.choice(names))

    def unmount_phone(self, *, of_claims: bool = False) -> None:
        """Unmount a phone's binderfs."""
        path = f"{CLAIM_DIRECTORY if of_claims else PHONE_DIRECTORY}/phone{self.rng.randrange(COUNT)}"
        if self.host.files.mounted(path) is not None:
            self.host.files.detach(path)

    def cover_phone(self) -> Callable[[], None] | None:
        """Mount another file system over a phone; return what unmounts it."""
        path = f"{PHONE_DIRECTORY}/phone{self.rng.randrange(COUNT)}"
        files = self.host.files
        try:
            system: FileSystem = files.new_system("tmpfs", "foreign")
            files.attach(system, path)
        except OSError:
            return None

        def uncover() -> None:
            files.unmount(system)

        return uncover

    # -- what should be

    def missing(self) -> list[str]:
        """Return what is not as it should be when no fault is left: nothing, some time later."""
        expected = ((FOUND, self.devices), (PHONES, [f"phone{number}" for number in range(COUNT)]))
        found = [
            f"{resource}: the kubelet lacks {device}"
            for resource, devices in expected
            for device in sorted({*devices} - self.kubelet.healthy(resource))
        ]
        return found + [f"{TABLETS}: {each}" for each in self.claims.missing()]

    def vanished(self) -> list[str]:
        """Return the devices that the kubelet may give away although the host does not have them."""
        return [
            f"{resource}: there is no {path}"
            for resource, directory in ((FOUND, "/dev"), (PHONES, PHONE_DIRECTORY))
            for path in (f"{directory}/{name}" for name in sorted(self.kubelet.healthy(resource)))
            if not self.host.files.exists(path)
        ]

    def is_blind(self) -> bool:
        """Return whether the plugin may not know yet what is wrong."""
        without_events = self.host.is_without_events() or self.api.loses_events or not self.api.open_watches
        return self.host.hanging or without_events or bool(self.kubelet.lost)

    def outdated(self) -> list[str]:
        """Return the devices that the kubelet may give away although the plugin knows better.

        A plugin that another one has overridden sends no lists until it has made sure that the other one has ended.
        """
        generation = self._generation()
        servers = [] if generation is None else generation.servers
        found = []
        for server in servers:
            devices = server.inventory.snapshot.devices
            usable = {device.id for device in devices.values() if device.healthy}
            if (
                isinstance(server, DevicePlugin)
                and server.registered
                and not server.overridden
                and (more := sorted(self.kubelet.healthy(server.resource_name) - usable))
            ):
                found.append(f"{server.resource_name}: the kubelet has {', '.join(more)}")
        return found

    def _generation(self) -> Generation | None:
        """Return what the plugin runs now; None if it does not run."""
        if self._daemon is None or self._daemon._generation is None or not self.process.alive:
            return None
        self.generations.add(self._daemon._generation)
        return self._daemon._generation

    def former_generations(self) -> list[str]:
        """Return how many generations of before reloads are in memory: none, when their servers have stopped."""
        if len(self.generations) > 1:
            gc.collect()
        return [f"{len(self.generations) - 1} former generations"] if len(self.generations) > 1 else []

    def signals(self) -> list[str]:
        """Return what an operator sees of a problem now."""
        generation = self._generation()
        if generation is None:
            return [f"{resource}: the plugin does not run" for resource in (FOUND, PHONES, TABLETS)]
        return [f"{TABLETS}: {error}" for error in self.claims.errors()] + [
            f"{server.resource_name}: {text}"
            for server in generation.servers
            for text in (server.unready, server.notice, *(device.why for device in server.inventory.snapshot.unhealthy))
            if text
        ]


def _passed(error: BaseException, function: str) -> bool:
    """Return whether an error, or one of its group, was raised in a function or in what that called."""
    names = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return function in names or any(_passed(each, function) for each in members)


def _leaves(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_leaves, error.exceptions))
    return repr(error)


def _task_factory(loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
    """Create a task that belongs to the process that creates it."""
    process = CURRENT.get()
    task = SimulatedTask(work, loop=loop, **options)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(partial(_done, process))
        if not process.alive:
            task.cancel()
    return task


def _done(process: Process, task: asyncio.Task[Any]) -> None:
    process.tasks.discard(task)
    if not task.cancelled():
        task.exception()  # mark it as retrieved: nobody awaits the tasks of a process that was killed
