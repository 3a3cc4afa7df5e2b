"""The node of a simulation: host, kubelet, plugin, pods, and what should be true of them."""

import asyncio
import contextvars
import os
import random
import stat
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.binder_driver import KERNEL_DEVICES
from tests.simulation.api import ApiServer
from tests.simulation.claims import ClaimKubelet, ClaimPod
from tests.simulation.containers import CDI_DIRECTORIES, Tenant
from tests.simulation.files import FileSystem, Inode
from tests.simulation.host import Host
from tests.simulation.kubelet import DIRECTORY, Kubelet, Pod
from tests.simulation.loop import SimulatedLoop, SimulatedTask
from tests.simulation.node import Node
from tests.simulation.processes import CURRENT, Process
from tests.simulation.provisioner import Provisioner
from tests.simulation.readers import Readers
from tests.simulation.runbook import Runbook
from tests.simulation.settings import (
    DEVICES,
    FILE,
    HOST_BINDERFS,
    LOOPS,
    MOST,
    SLICE,
    SPREAD,
    Pool,
    Settings,
    driver_of,
)
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.backend.catalog import NO_DEVICES, RESTRICTED, TOO_FEW_DEVICES, UNLINKED
    from aosp_plugin.config.keys import Config
    from aosp_plugin.config.sources import load
    from aosp_plugin.config.values import Api
    from aosp_plugin.daemon.serve import Daemon, NodeService
    from aosp_plugin.framework.apiserver.protocol import RESOURCE_SLICES
    from aosp_plugin.framework.conditions import CLAIMS_UNSERVED, CREDENTIALS_UNAVAILABLE, WITHHELD, Condition
    from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin

ENVIRONMENT = {
    "NODE_NAME": "node-1",
    "AOSP_PLUGIN_SERVICE_HOST": "10.96.0.9",
    "AOSP_PLUGIN_SERVICE_PORT": "9478",
    "AOSP_PLUGIN_SERVICE_PORT_HTTP": "9478",
    "AOSP_PLUGIN_PORT": "tcp://10.96.0.9:9478",
    "AOSP_PLUGIN_PORT_9478_TCP": "tcp://10.96.0.9:9478",
    "AOSP_PLUGIN_PORT_9478_TCP_PROTO": "tcp",
    "AOSP_PLUGIN_PORT_9478_TCP_PORT": "9478",
    "AOSP_PLUGIN_PORT_9478_TCP_ADDR": "10.96.0.9",
}
"""The environment of the plugin's process, with what a kubelet adds for a Service named aosp-plugin."""


OPERATOR = 20.0
"""Seconds between two looks of an operator at a configuration that was changed."""


SLOW = 0.3
"""Seconds that a host call takes, from which on a scan or a repair takes longer than a signal may: it has dozens of
calls, of which each 20th waits for others."""


class Signal(NamedTuple):
    """What an operator sees of a problem."""

    about: str
    """The name of a resource, of a driver or of a pod."""
    text: str
    kind: str = ""
    """The name of a condition's kind; empty for the reason of a device, or an error that a pod has."""

    def __str__(self) -> str:
        return f"{self.about}: {self.text}"


class World:
    """One node with one plugin, which is started again whenever it ends."""

    def __init__(self, seed: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        self.host = Host(seed, loop.time)
        self.rng = random.Random(f"world {seed}")  # noqa: S311 - a simulation
        self.settings = Settings(random.Random(f"settings {seed}"))  # noqa: S311 - a simulation
        self.reconfigured = ""
        """How the last change of the configuration was applied, if a fault was one; read and cleared by the run."""
        self.kept_directories: dict[str, Inode] = {}
        """Those of the kubelet's directory, by name, until a kubelet starts."""
        self._looked = 0.0
        self.runbook = Runbook(self)
        self._served = ("", Config())
        """The text of the configuration that was read last, and what it means."""
        self._configurations: dict[str, Config] = {}
        """What each text means that was read."""
        self.kubelet = Kubelet(self.host, self.settings.kubelet)
        self.api = self.host.api = ApiServer(self.host)
        self.claims = ClaimKubelet(self.host, self.api, self.settings.kubelet)
        self.kubelet.claims = self.claims.listed
        self.kubelet.is_former = lambda path: any(
            pool.directory and path.startswith(f"{pool.other_directory}/") for pool in self.settings.pools
        )
        self.claims.configured = lambda: {pool.driver for pool in self.settings.of(Api.DRA)}
        self.process = self.host.new_process()
        self.provisioner = Provisioner(self.host, self.settings)
        self._others: set[Process] = set()
        self._daemon: Daemon | None = None
        self.daemons: dict[Process, Daemon] = {}
        """What runs in each process of the plugin."""
        self.witnesses = random.Random(f"witnesses {seed}")  # noqa: S311 - a simulation
        """Decides what is looked at, and when."""
        self.node = Node(self)
        self.readers = Readers(self)
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
        loops = [f"/dev/{kind}{number}" for kind in sorted({*LOOPS.values()}) for number in range(MOST * SLICE)]
        for number, path in enumerate([*SPREAD, *loops]):
            files.add(path, stat.S_IFCHR | 0o666, exclusive=False).rdev = os.makedev(226, number)
        self._write_configuration()
        self.start_kubelet()
        self.spawn(self._keep_plugin())
        self.spawn(self.node.run())

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
        process = process.now
        if process.alive and process.descriptors:
            self.host.violated(f"descriptors are left open: {sorted(process.descriptors)}")
        process.kill()
        self.provisioner.end()
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
        following: Process | None = self.host.new_process()
        while following is not None and following.alive:
            self.process = process = following
            process.request = self.provisioner.exchange
            self._daemon = process.run(partial(Daemon, self._load))
            self.host.log("plugin started", pid=process.pid)
            await self._until_ended(process, self._daemon)
            if following := process.successor:
                await asyncio.sleep(self.rng.uniform(0.1, 0.6))  # it loads its modules

    def _write_configuration(self) -> None:
        """Write the configuration file."""
        self.host.files.write(FILE, self.settings.text().encode())

    def _load(self) -> Config:
        """Read the configuration. What the same text meant before is not computed again, which takes milliseconds."""
        text = self.settings.text()
        if (config := self._configurations.get(text)) is None or self.host.no_descriptors:
            config, _ = load({}, ENVIRONMENT, FILE)
            if text != self.settings.text():  # it was changed meanwhile, before or after the file was read
                self._served = "", config
                return config
            self._configurations[text] = config
        self._served = text, config
        return config

    async def _until_ended(self, process: Process, daemon: Daemon) -> None:
        def start() -> asyncio.Task[None]:
            return self._loop.create_task(daemon.run())

        self.daemons[process] = daemon
        task = process.run(start)
        await asyncio.wait({task})
        del self.daemons[process]
        if process.alive and not task.cancelled() and (error := task.exception()) is not None:
            self.host.log("plugin failed", error=_leaves(error))
            if daemon._service is not None:  # if it cannot start, its supervisor starts it again
                self.host.violated(f"the plugin ended: {_leaves(error)}")
        self.host.log("plugin ended", pid=process.pid)
        process.kill()

    # -- what faults do

    def start_kubelet(self) -> None:
        """Start the kubelet, unless it runs; containers go on."""
        if not self.kubelet.running and not self._stopping:
            self.kubelet.start()
            self.host.files.make_directories(DIRECTORY)
            self.host.files.lookup(DIRECTORY).entries.update(self.kept_directories)
            self.kept_directories.clear()
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

    def reload_plugin(self) -> None:
        """Send SIGHUP."""
        if self.rng.random() < 0.5:
            self.settings.log_level = "debug" if self.settings.log_level == "info" else "info"
            self._write_configuration()
        self.process.reload()

    def reconfigure(self, fits: Callable[[Pool], bool], change: Callable[[Pool], None]) -> None:
        """Change one of the resources that fit, and let the plugin use the new configuration."""
        pools = [pool for pool in self.settings.pools if fits(pool)]
        if pools and not self.claims.damaged_records():  # an operator repairs first
            change(self.rng.choice(pools))
            self.apply()

    def apply(self) -> None:
        """Write the configuration, and send SIGHUP or restart the plugin."""
        self._write_configuration()
        self.provisioner.process.kill()  # it starts again with this configuration
        self.reconfigured = self.rng.choice(("reload", "restart"))
        self.host.log("configuration", by=self.reconfigured, text=self.settings.text())
        if self.reconfigured == "reload":
            self.process.reload()
        else:
            self.process.stop()

    def is_served(self) -> bool:
        """Return whether the plugin serves the configuration of the file."""
        service, (text, config) = self._service(), self._served
        return service is not None and text == self.settings.text() and service.config == config

    def look_as_operator(self) -> list[str]:
        """Send SIGHUP if the plugin does not serve the configuration: it may have been rejected because of a fault.

        If it serves it, follow the runbook about claims of a former one.

        Delete the pods whose CDI specs are gone for good: of former resources, or of a phone that is nowhere in the
        present directory. No process knows any more how to write them.
        """
        pools = {pool.name: pool for pool in self.settings.of(Api.DEVICE_PLUGIN)}
        for pod in self.kubelet.waiting():
            pool = pools.get(pod.resource)
            is_known = pool is not None and (
                not pool.directory or self.host.files.mounted(f"{pool.directory}/{pod.ids[0].partition('::')[0]}")
            )
            if not is_known and "unresolvable CDI device" in pod.error:
                self.kubelet.remove(pod.name)
        if self._service() is None:
            return []
        if self.is_served():
            return self.runbook.follow()
        if self._loop.time() > self._looked + OPERATOR:
            self._looked = self._loop.time()
            self.process.reload()
        return ["the configuration is not served"]

    def start_second_plugin(self) -> Callable[[], None]:
        """Start another process of the plugin, with a provisioner of its own; return what ends it."""
        process, provisioner = self.host.new_process(), Provisioner(self.host, self.settings)
        process.request = provisioner.exchange
        process.at_death.append(provisioner.end)
        daemon = process.run(partial(Daemon, self._load))
        self.host.log("second plugin started", pid=process.pid)
        self._others.add(process)
        process.at_death.append(partial(self._others.discard, process))
        self.spawn(self._until_ended(process, daemon))
        return process.stop

    def has_second_plugin(self) -> bool:
        """Return whether another plugin runs beside."""
        return bool(self._others)

    def start_pod(self) -> None:
        """Let a pod arrive."""
        self._pods += 1
        resources = self.kubelet.resources
        if self.kubelet.running and resources:
            self.spawn(self.kubelet.admit(f"pod-{self._pods}", self.rng.choice(resources)))

    def end_pod(self) -> None:
        """End a pod."""
        if self.kubelet.pods:
            self.kubelet.remove(self.rng.choice(sorted(self.kubelet.pods)))

    def restart_container(self) -> None:
        """Restart a container, as the kubelet does after a crash."""
        if self.kubelet.pods and self.kubelet.running:
            self.kubelet.restart(self.kubelet.pods[self.rng.choice(sorted(self.kubelet.pods))])

    def lose_device(self) -> None:
        """Remove a device, and create it again later."""
        system = self.host.files.mounted(HOST_BINDERFS)
        name = self.rng.choice(self.devices)
        if system is None or name not in system.root.entries or system.root.entries[name].users:
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
                self.api.objects.delete(path)
            else:
                self.api.objects.update(path, {**each, "spec": {**each["spec"], "devices": []}})

    def remove_specs(self, *, directory: bool = False) -> None:
        """Remove the CDI spec of a claim, or the directory with all specs, and create that again."""
        files, specs = self.host.files, self.claims.specs()
        removed = specs if directory else specs and [self.rng.choice(specs)]
        for pod in self.claims.pods.values():
            pod.damaged |= {
                driver for driver in pod.devices for _, name in removed if name == f"{driver}-claim_{pod.uid}.json"
            }
        for place, name in removed:
            files.remove(f"{place}/{name}")
        if directory:
            for place in filter(files.exists, CDI_DIRECTORIES):
                files.remove_tree(place)
                files.make_directories(place)

    def damage_record(self) -> None:
        """Truncate the record of a claim of the present configuration, as which the driver restores it."""
        if records := self.runbook.configured():
            path = self.rng.choice(records)
            self.host.files.remove(path)
            self.host.files.write(path, b"")

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
        path = self._phone(Api.DRA if of_claims else Api.DEVICE_PLUGIN)
        if self.host.files.mounted(path) is not None:
            self.host.files.detach(path)

    def _phone(self, api: Api) -> str:
        """Return the place of a phone, of an API if there is one; it may not exist."""
        pools = [pool for pool in self.settings.pools if pool.directory]
        pool = self.rng.choice([pool for pool in pools if pool.api is api] or pools)
        return f"{pool.directory}/phone{self.rng.randrange(pool.count)}"

    def cover_phone(self) -> Callable[[], None] | None:
        """Mount another file system over a phone; return what unmounts it."""
        path = self._phone(Api.DEVICE_PLUGIN)
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

    def changes(self) -> tuple[int, ...]:
        """Return numbers of which one differs after whatever can make something wrong."""
        kubelets = self.kubelet.events, self.claims.events
        return len(self.host.lines), self.host.files.changes, self.api.store.revision, *kubelets

    def missing(self) -> list[str]:
        """Return what is not as it should be when no fault is left: nothing, some time later."""
        found = [
            f"{pool.name if plugin else pool.driver}: {'the kubelet' if plugin else 'the API server'} lacks {device}"
            for pool in self.settings.pools
            for plugin in [pool.api is Api.DEVICE_PLUGIN]
            if (lacking := self._wanted(pool) - self._given(pool))
            for device in sorted(lacking - self._of_former_tenants(pool))
        ]
        waiting = [f"{pod.name}: the container does not start: {pod.error}" for pod in self.kubelet.waiting()]
        return [*found, *waiting, *self.claims.missing()]

    def excess(self) -> list[str]:
        """Return the devices that new pods may get although they must not, when no fault is left: none, later."""
        return [
            f"{pool.name}: new pods may get {device}"
            for pool in self.settings.pools
            for device in sorted(self._given(pool) - self._wanted(pool))
        ]

    def _wanted(self, pool: Pool) -> set[str]:
        """Return the IDs of the devices that new pods may get: those that no pod has under another name.

        A kubelet that has not noticed the end of a device plugin offers its devices; the DRA driver then offers none.
        """
        if pool.api is Api.DRA and self.kubelet.healthy(pool.name):
            return set()
        holders = self.host.containers.holders
        return {
            name
            for device, places in pool.offered().items()
            if all(self._is_of(holders[place], pool) for place in places if place in holders)
            for name in pool.advertised(device)
        }

    def _of_former_tenants(self, pool: Pool) -> set[str]:
        """Return the IDs by which pods have devices from another API, or from another directory: they may be held."""
        names, drivers = {pool.name, pool.other_name}, {pool.driver, driver_of(pool.other_name)}
        if pool.api is Api.DEVICE_PLUGIN:
            names.remove(pool.name)
        else:
            drivers.remove(pool.driver)
        found = {name for pod in self.kubelet.pods.values() if pod.resource in names for name in pod.ids}
        found = found.union(*map(self.claims.of, drivers))
        found |= self._of_unknown_files(pool)
        return {name for each in found for name in pool.advertised(each.partition("::")[0])}

    def _of_unknown_files(self, pool: Pool) -> set[str]:
        """Return the IDs of the devices that are held because a record of a former resource could not be written."""
        service = self._service()
        servers = [] if service is None else [each for each in service.servers if each.resource_name == pool.name]
        devices = [device for server in servers for device in server.inventory.snapshot.unhealthy]
        return {device.id for device in devices if "no record says which file that is" in device.detail}

    @staticmethod
    def _is_of(tenant: Tenant, pool: Pool) -> bool:
        """Return whether a tenant has its devices from this resource with its present name and API."""
        if isinstance(tenant, Pod):
            return pool.api is Api.DEVICE_PLUGIN and tenant.resource == pool.name
        return pool.api is Api.DRA and isinstance(tenant, ClaimPod) and pool.driver in tenant.devices

    def _given(self, pool: Pool) -> set[str]:
        """Return the IDs of the devices that new pods get."""
        if pool.api is Api.DEVICE_PLUGIN:
            return self.kubelet.healthy(pool.name)
        names = {name.replace("_", "-"): name for name in pool.devices()}
        usable = self.claims.usable(pool.driver)
        return {names.get(name, name) for name in usable if usable.count(name) == 1}

    def vanished(self) -> list[str]:
        """Return the devices that the kubelet may give away although the host does not have them."""
        return [
            f"{pool.name}: there is no {path}"
            for pool in self.settings.of(Api.DEVICE_PLUGIN)
            for device in sorted({name.partition("::")[0] for name in self.kubelet.healthy(pool.name)})
            for path in sorted(pool.devices().get(device, ()))
            if not self.host.containers.exist([path])
        ]

    def left(self) -> list[str]:
        """Return what is left of pods that have ended, and what new pods may get although they must not."""
        pools = [pool for pool in self.settings.of(Api.DRA) if pool.directory]
        held = {f"{pool.directory}/{name}" for pool in pools for name in self._of_former_tenants(pool)}
        held |= {
            f"{pool.directory}/{device}"  # its spec may be of another plugin, with another directory
            for pool in pools
            for device in self.claims.of(pool.driver)
        }
        return [*self.excess(), *self.claims.remains([pool.directory for pool in pools], held)]

    def wrong_links(self) -> list[str]:
        """Return the links to binder devices by number that are missing, or lead elsewhere: none, some time later."""
        files = self.host.files
        below = tuple(f"{pool.directory}/" for pool in self.settings.pools if pool.directory)
        former = tuple(f"{pool.other_directory}/" for pool in self.settings.pools if pool.directory)
        devices = [f"{HOST_BINDERFS}/{name}" for name in self.devices]
        for mount in files.all_mounts():
            if mount.path.startswith(below):
                devices += [f"{mount.path}/{name}" for name in KERNEL_DEVICES]
        links = files.lookup("/dev/char").entries if files.exists("/dev/char") else {}
        found = {(name, link.target) for name, link in links.items() if not link.target.startswith(former)}
        return [f"link {name} -> {target}" for name, target in sorted(found ^ self._links(devices))]

    def misreported(self) -> list[str]:
        """Return the metrics that say something else than what is true: none, some time later."""
        service = self._service()
        if service is None:
            return ["there are no metrics"]
        metrics = service.observation.metrics
        gauges = [metrics.devices, metrics.kubelet_allocatable, metrics.registered]
        gauges += [metrics.claims_prepared, metrics.slices_wanted, metrics.slices_confirmed]
        families = [*service.observation.collect(), *(family for gauge in gauges for family in gauge.collect())]
        samples = [sample for family in families for sample in family.samples]
        total = [each for each in samples if not each.labels.get("reason")]
        told = {(each.labels.get("resource"), each.name): each.value for each in total}
        return [
            f"{pool.name}: {name} is {told.get((pool.name, f'aosp_plugin_{name}'))}, not {value}"
            for pool in self.settings.pools
            for name, value in self._facts(pool).items()
            if told.get((pool.name, f"aosp_plugin_{name}")) != value
        ]

    def _facts(self, pool: Pool) -> dict[str, int]:
        """Return what metrics should say of a resource at rest, by name."""
        claims = self.claims.given(pool.driver)
        pods = [pod for pod in self.kubelet.pods.values() if pod.resource == pool.name]
        used = {name for pod in pods for name in pod.ids} | claims.keys()
        if pool.api is Api.DEVICE_PLUGIN:
            healthy = len(self.kubelet.healthy(pool.name))
            return {"devices": healthy, "kubelet_allocatable": healthy, "devices_allocated": len(used), "registered": 1}
        slices = sum(each["spec"]["driver"] == pool.driver for each in self.api.slices())
        count = {"slices_wanted": slices, "slices_confirmed": slices, "claims_prepared": len(claims)}
        return {**count, "devices_allocated": len(used), "registered": 1}

    def _links(self, devices: list[str]) -> set[tuple[str, str]]:
        files = self.host.files
        numbers = {path: files.lookup(path).rdev for path in devices if files.exists(path)}
        return {(f"{os.major(number)}:{os.minor(number)}", path) for path, number in numbers.items()}

    def is_blind(self) -> bool:
        """Return whether the plugin may not know yet what is wrong."""
        if not self.is_served():
            return True
        without_events = self.host.is_without_events() or self.api.loses_events or not self.api.open_watches
        is_slow = self.host.hanging or self.host.slow > SLOW
        return is_slow or without_events or bool(self.kubelet.lost)

    def is_of_former_driver(self, wrong: str) -> bool:
        """Return whether what is wrong is of a driver that is not configured: the records say so every 10 s."""
        names = {each for pool in self.settings.pools for each in (pool.driver, driver_of(pool.other_name))}
        return wrong.partition(":")[0] in names - self.claims.configured()

    def is_unknown(self, wrong: str) -> bool:
        """Return whether the plugin may not know yet that this is wrong.

        The event of a slice says only that it may have changed: the list that tells takes as long as other requests.
        So does the claim that the kubelet reads before it asks the driver. A driver may notice after 10 s that the
        kubelet was killed, and nobody tells it which claims have ended meanwhile.
        """
        takes_long = self.api.is_slow > 0 and ("the API server lacks" in wrong or wrong.endswith("waits"))
        return self.is_of_former_driver(wrong) or takes_long or wrong in self.claims.untried()

    def outdated(self) -> list[str]:
        """Return the devices that the kubelet may give away although the plugin knows better.

        A plugin that another one has overridden sends no lists until it has made sure that the other one has ended.
        """
        service = self._service()
        servers = [] if service is None else service.servers
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

    def _service(self) -> NodeService | None:
        """Return what the plugin runs now; None if it does not run."""
        return self._daemon._service if self._daemon is not None and self.process.alive else None

    def signals(self, *, is_recovered: bool = False) -> list[Signal]:
        """Return what an operator sees of a problem now; ``is_recovered``: but for claims that have to wait longer."""
        service = self._service()
        if service is None:
            pools = self.settings.pools
            names = [name for pool in pools for name in (pool.name, pool.driver, driver_of(pool.other_name))]
            return [Signal(name, "the plugin does not run") for name in names]
        drivers = {pool.name: pool.driver for pool in self.settings.of(Api.DRA)}
        found = []
        for server in service.servers:
            name = drivers.get(server.resource_name, server.resource_name)
            found += [Signal(name, each.detail, each.kind.name) for each in self._conditions(server, is_recovered)]
            found += [Signal(name, text) for text in self._reasons(server)]
        unserved = [each for each in service._conditions.of("") if each.kind is CLAIMS_UNSERVED]
        found += [Signal(each.subject, each.detail, each.kind.name) for each in unserved]
        waiting = [Signal(pod.name, pod.error) for pod in self.kubelet.waiting() if pod.error]
        return [*found, *waiting, *(Signal(driver, error) for driver, error in self.claims.errors())]

    def reports_unserved_claims(self) -> bool:
        """Return whether the plugin reports claims of a former configuration."""
        return any(signal.kind == CLAIMS_UNSERVED.name for signal in self.signals())

    def _conditions(self, server: Any, is_recovered: bool) -> list[Condition]:  # noqa: FBT001 - private
        """Return what is wrong with a resource, but for what follows from the configuration, or is read rarely."""
        expected = {kind.name for kind in (NO_DEVICES, TOO_FEW_DEVICES, UNLINKED, RESTRICTED, CREDENTIALS_UNAVAILABLE)}
        if self.kubelet.healthy(server.resource_name):
            expected.add(WITHHELD.name)
        stuck = {f"claim {uid}" for uid in self.claims.stuck()} if is_recovered else set()
        return [each for each in server.conditions() if each.kind.name not in expected and each.subject not in stuck]

    def _reasons(self, server: Any) -> list[str]:
        """Return why devices are unhealthy that new pods should get, and would get without a fault."""
        pool = next((pool for pool in self.settings.pools if pool.name == server.resource_name), None)
        unhealthy = server.inventory.snapshot.unhealthy
        if pool is None or not unhealthy:
            return []
        wanted = self._wanted(pool) - self._of_former_tenants(pool)
        return [device.detail or device.reason for device in unhealthy if device.id in wanted]


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
