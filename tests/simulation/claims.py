"""The kubelet's side of DRA: registration of drivers, claims of pods, and the CDI specs of a runtime."""

import asyncio
import contextlib
import json
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kubelet_standin import ClaimsError, DraClaim, DraKubelet, DraPod, Event, KubeletVersion
from kubelet_standin.apiserver.node_api import NodeApi
from kubelet_standin.dra.claims import ClaimDevice
from kubelet_standin.dra.watcher import Registry
from tests.simulation.api import NODE, ApiServer
from tests.simulation.containers import CDI_DIRECTORIES, Tenant
from tests.simulation.kubelet import Startable
from tests.simulation.rpc import Channel
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.framework.apiserver.protocol import resource_claims

if TYPE_CHECKING:
    from tests.simulation.host import Host

REGISTRY = "/var/lib/kubelet/plugins_registry"
STATE = "/var/lib/kubelet/plugins"
CLAIMS = resource_claims("default")
FORCED = 0.1
"""How probable it is that a pod is deleted by force when it cannot end, because no process serves its driver."""
BOTH = 0.8
"""How probable it is that a claim is also of a second driver, if that has a free device."""
RETRY = 5.0
"""Seconds between two attempts; a kubelet takes 60 to 90."""


@dataclass
class ClaimPod(Tenant):
    """A pod with a claim of one device, or of one of each of two drivers."""

    spec: DraPod = field(default_factory=lambda: DraPod("", ()))
    uid: str = ""
    """That of the claim."""
    devices: dict[str, str] = field(default_factory=dict)
    """The names of the devices by driver."""
    names: list[str] = field(default_factory=list)
    """The CDI names that the kubelet has got; empty until the claim is prepared."""
    ends: bool = False
    worker: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One worker of the kubelet handles a pod."""
    error: str = ""
    """Why the last attempt has failed, which the kubelet reports."""
    is_untried: bool = False
    """Whether the kubelet was away, and will do what is to be done only seconds after its start."""
    damaged: set[str] = field(default_factory=set)
    """The drivers whose specs another program has removed, and no process of the plugin has written again yet."""


class _Registry(Registry):
    """The directory of DRA drivers on a simulated host."""

    def __init__(self, host: "Host") -> None:
        super().__init__(REGISTRY)
        self._host = host

    def channel(self, path: str) -> Any:
        return Channel(self._host, path)

    def watch(self, appeared: Callable[[str], None], disappeared: Callable[[str], None]) -> Callable[[], None]:
        self._host.files.make_directories(REGISTRY)
        directory, known = self._host.files.lookup(REGISTRY), set[str]()

        def changed() -> None:
            nonlocal known
            files = directory.entries.items()
            names = {name for name, file in files if stat.S_ISSOCK(file.mode) and not name.startswith(".")}
            for name in sorted(known - names):
                disappeared(f"{REGISTRY}/{name}")
            for name in sorted(names - known):
                appeared(f"{REGISTRY}/{name}")
            known = names

        directory.watchers.append(changed)
        changed()
        return partial(directory.watchers.remove, changed)


class ClaimKubelet(Startable):
    """The DRA half of the node's kubelet, and the pods with claims. Pods and what they have got outlive it."""

    def __init__(self, host: "Host", api: ApiServer, version: KubeletVersion) -> None:
        super().__init__(host)
        self.api = api
        self.pods: dict[str, ClaimPod] = {}
        self.configured: Callable[[], set[str]] = set
        """Returns the drivers of the configuration. Some pods of others are deleted by force."""
        self._standin = DraKubelet(
            _Registry(host),
            version=version,
            seed=host.rng.getrandbits(32),
            wipe=NodeApi(api, NODE).wipe,
            clock=host.monotonic,
            on_event=self._on_event,
        )
        self._connected: set[str] = set()
        """The drivers that are registered and connected."""
        self._numbers = 0

    async def _start(self) -> None:
        """Start: the node's slices are deleted, and sockets registered again."""
        await self._standin.start()

    async def _stop(self) -> None:
        """End: nothing is forgotten but the registrations, and which claims are prepared."""
        await self._standin.stop()
        self._connected.clear()

    def is_connected(self, driver: str) -> bool:
        """Return whether a driver is registered and connected."""
        return self.running and driver in self._connected

    def _on_event(self, event: Event) -> None:
        """Follow the stand-in."""
        self.events += 1
        if event.name.startswith("driver-") and event.name != "driver-called":
            self._connected = {name for name in self._standin.drivers if self._standin.connected(name)}

    def add(self) -> None:
        """Schedule a pod on a free device that the slices have; without one, it waits elsewhere."""
        taken = {each for pod in self.pods.values() for each in pod.devices.items()}
        free = [
            (each["spec"]["driver"], each["spec"]["pool"]["name"], device["name"])
            for each in self.api.slices()
            for device in each["spec"].get("devices", ())
            if (each["spec"]["driver"], device["name"]) not in taken and not device.get("taints")
        ]
        if not free or not self.running:
            return
        chosen = [self.host.rng.choice(free)]
        others = [each for each in free if each[0] != chosen[0][0]]
        if others and self.host.rng.random() < BOTH:
            chosen.append(self.host.rng.choice(others))
        self._numbers += 1
        name = f"claim-{self._numbers}"
        results = [
            {"request": driver.partition(".")[0], "driver": driver, "pool": pool, "device": device}
            for driver, pool, device in chosen
        ]
        if self.host.rng.random() < 0.3:
            results.append({"request": "other", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"})
        status = {"allocation": {"devices": {"results": results, "config": []}}}
        body = {"metadata": {"name": name, "namespace": "default"}, "status": status}
        created = self.api.objects.create(CLAIMS, body)
        uid = created["metadata"]["uid"]
        devices = {driver: device for driver, _, device in chosen}
        spec = DraPod(name, (DraClaim(name, uid, tuple(devices)),))
        pod = self.pods[name] = ClaimPod(name, spec=spec, uid=uid, devices=devices)
        for driver, device in devices.items():
            self.host.log("claim allocated", claim=name, driver=driver, device=device)
        self._spawn(self._lead(pod))

    def end(self, name: str) -> None:
        """End a pod: its containers end, and its claim is unprepared."""
        pod = self.pods[name]
        pod.ends = True
        self.host.containers.release(pod)
        self._spawn(self._lead(pod))

    def restart(self, name: str) -> None:
        """Restart the container of a pod with the names that the kubelet has, or its sandbox, and prepare again."""
        pod = self.pods[name]
        if pod.names and not pod.ends:
            self.host.containers.end(pod)
            if self.running and self.host.rng.random() < 0.5:
                self._spawn(self._lead(pod))
            else:
                self._start_container(pod)

    def check_names(self) -> None:
        """Check that each CDI name that the kubelet holds resolves, until its claim ends."""
        for pod in self.pods.values():
            if pod.ends:
                continue
            lacking = {}
            for name in pod.names:
                try:
                    self.host.containers.by_cdi(name)
                except KeyError as error:
                    lacking[driver_of_cdi(name)] = error.args[0]
            for driver in sorted(lacking.keys() - pod.damaged):
                self.host.violated(f"{pod.name} is prepared: {lacking[driver]}")
            # Of a claim of two drivers, the spec of the first one may be lost before the kubelet has any name.
            pod.damaged -= {driver_of_cdi(name) for name in pod.names} - lacking.keys()

    def specs(self) -> list[tuple[str, str]]:
        """Return the directory and the name of each CDI spec of a claim."""
        found = []
        for directory in CDI_DIRECTORIES:
            with contextlib.suppress(FileNotFoundError):
                entries = self.host.files.lookup(directory).entries
                found += [
                    (directory, name)
                    for name in entries
                    if "-claim_" in name and name.endswith(".json") and not name.startswith(".")
                ]
        return sorted(found)

    def records(self) -> list[str]:
        """Return the paths of the records of claims."""
        files = self.host.files
        return [
            f"{STATE}/{driver}/{name}"
            for driver, directory in sorted(files.lookup(STATE).entries.items())
            for name in sorted(directory.entries)
            if name.startswith("claim_")
        ]

    def recorded_directories(self) -> set[str]:
        """Return the directories of CDI specs in the records that are not damaged."""
        contents = [self.host.files.lookup(path).data for path in self.records()]
        return {json.loads(content)["cdi_directory"] for content in contents if content}

    def damaged_records(self) -> list[str]:
        """Return the paths of the damaged records of claims."""
        return [path for path in self.records() if not self.host.files.lookup(path).data]

    def of(self, driver: str) -> set[str]:
        """Return the IDs of the devices of a driver that are allocated to pods."""
        return {pod.devices[driver].replace("-", "_") for pod in self.pods.values() if driver in pod.devices}

    def listed(self) -> list[tuple[str, Sequence[ClaimDevice]]]:
        """Return the names of the pods with what the kubelet has got of their drivers, maybe not yet of all."""
        return [(pod.name, self._standin.devices(pod.spec)) for pod in self.pods.values()]

    def given(self, driver: str) -> dict[str, str]:
        """Return the IDs of the devices of a driver that the kubelet has got, with the names of the pods."""
        listed = [(pod, each) for pod, devices in self.listed() for each in devices if each.driver == driver]
        return {each.device.replace("-", "_"): pod for pod, each in listed}

    def missing(self) -> list[str]:
        """Return what is not as it should be when no fault is left."""
        configured = self.configured()
        found = [
            f"{name}: the kubelet has no driver"
            for name in sorted(configured)
            if self.running and name not in self._connected
        ]
        found += [f"{self._blamed(pod)}: claim {pod.name} ends" for pod in self.pods.values() if pod.ends]
        found += [
            f"{driver}: claim {pod.name} has no spec"
            for pod in self.pods.values()
            for driver in sorted(pod.damaged)
            if pod.names and not pod.ends
        ]
        return found + [f"{self._blamed(pod)}: claim {pod.name} waits" for pod in self._waiting(configured)]

    def _blamed(self, pod: ClaimPod) -> str:
        """Return the driver that a pod waits for: one without the device, without registration, or any of them."""
        containers, configured = self.host.containers, self.configured()
        for name in () if pod.ends else pod.names:
            try:
                is_there = containers.is_there(containers.by_cdi(name))
            except KeyError:
                is_there = False
            if not is_there:
                return driver_of_cdi(name)
        return min(pod.devices, key=lambda name: (name in configured, name in self._connected))

    def _waiting(self, configured: set[str]) -> list[ClaimPod]:
        """Return the pods whose containers should run, and do not."""
        return [
            pod
            for pod in self.pods.values()
            if not (pod.ends or pod.held)
            and (pod.names or (configured.issuperset(pod.devices) and self._is_usable(pod)))
        ]

    def untried(self) -> list[str]:
        """Return what is missing that the kubelet has not asked any driver to do since it was away."""
        pods = [pod for pod in self.pods.values() if pod.is_untried]
        return [f"{self._blamed(pod)}: claim {pod.name} {'ends' if pod.ends else 'waits'}" for pod in pods]

    def stuck(self) -> list[str]:
        """Return the UIDs of the claims that wait for a device which new pods must not get: another pod has it."""
        pods = [pod for pod in self.pods.values() if not (pod.ends or pod.names)]
        return [pod.uid for pod in pods if not self._is_usable(pod)]

    def _is_usable(self, pod: ClaimPod) -> bool:
        """Return whether new pods may get all devices of a pod."""
        return all(device in self.usable(driver) for driver, device in pod.devices.items())

    def usable(self, driver: str) -> list[str]:
        """Return the devices of a driver that the scheduler may give to new pods."""
        return [
            device["name"]
            for each in self.api.slices()
            if each["spec"]["driver"] == driver
            for device in each["spec"].get("devices", ())
            if not device.get("taints")
        ]

    def errors(self) -> list[tuple[str, str]]:
        """Return drivers, and what the kubelet reports of their claims that are not as they should be."""
        waiting = [pod for pod in self.pods.values() if pod.ends] + self._waiting(self.configured())
        return [(driver, pod.error) for pod in waiting if pod.error for driver in pod.devices]

    def remains(self, directories: Iterable[str], held: set[str]) -> list[str]:
        """Return what is left of claims that have ended, when everything has recovered.

        ``directories`` are those of the phones of the configured drivers; phones at ``held`` may stay.
        """
        containers, below = self.host.containers, tuple(f"{directory}/" for directory in directories)
        mounted = {path for path in self.host.files.mounts if path.startswith(below)} - containers.holders.keys() - held
        for pod in self.pods.values():
            mounted -= containers.places_by_cdi(pod.names)
        known = {pod.uid for pod in self.pods.values()}
        specs = {name for _, name in self.specs() if name.partition("-claim_")[2].removesuffix(".json") not in known}
        own = tuple(f"{STATE}/{driver}/" for driver in self.configured())
        damaged = {path for path in self.damaged_records() if path.startswith(own)}
        return [f"left of an ended claim: {name}" for name in sorted(mounted | specs | damaged)]

    async def _lead(self, pod: ClaimPod) -> None:
        """Prepare or unprepare the claim of a pod until that succeeds."""
        was_ending = pod.ends
        while pod.ends == was_ending and (pod.ends or self.pods.get(pod.name) is pod):
            async with pod.worker:
                pod.is_untried = not self.running
                if self.running and await (self._unprepared(pod) if was_ending else self._prepared(pod)):
                    return
            await asyncio.sleep(self.host.rng.uniform(0.5, RETRY))

    async def _prepared(self, pod: ClaimPod) -> bool:
        """Prepare the claim of a pod, and start its container; return whether that was done, or nothing is to do."""
        if pod.held or not self._is_wanted(pod):
            return True
        try:
            await self._standin.prepare(pod.spec)
        except (ClaimsError, RuntimeError) as error:
            pod.error = str(error)
            self.host.log("claim not prepared", claim=pod.name, error=error)
            return False
        pod.error = ""
        if not self._is_wanted(pod):
            return True
        names = sorted({*self._standin.cdi_devices(pod.spec)})  # older kubelets repeat them
        if not names or pod.names not in ([], names):
            self.host.violated(f"{pod.name} is prepared as {pod.names}, and then as {names}")
        pod.names = names
        return self._start_container(pod)

    def _is_wanted(self, pod: ClaimPod) -> bool:
        return self.pods.get(pod.name) is pod and not pod.ends

    async def _unprepared(self, pod: ClaimPod) -> bool:
        """Unprepare the claim of a pod; return whether that was done, or is not tried again.

        A kubelet goes on with a pod that was deleted by force, unless no driver of it is there.
        """
        try:
            await self._standin.unprepare(pod.spec)
        except (ClaimsError, RuntimeError) as error:
            present = {*self._connected, *self.configured()}.intersection(pod.devices)
            if pod.name not in self.pods:
                return not present
            pod.error = str(error)
            self.host.log("claim not unprepared", claim=pod.name, error=error)
            if len(present) < len(pod.devices) and (not pod.names or self.host.rng.random() < FORCED):
                self._forget(pod)
                return not present
            return False
        if pod.name in self.pods:
            self._forget(pod)
        return True

    def _forget(self, pod: ClaimPod) -> None:
        """Delete a pod with its claim."""
        self.pods.pop(pod.name, None)
        self.api.objects.delete(f"{CLAIMS}/{pod.name}")
        self.host.log("claim ended", claim=pod.name)

    def _start_container(self, pod: ClaimPod) -> bool:
        """Start the container with what its CDI names stand for."""
        containers = self.host.containers
        try:
            paths = [path for name in pod.names for path in containers.by_cdi(name)]
            containers.occupy(pod, paths)
            containers.start(pod, paths, fresh=True)
        except (OSError, KeyError) as error:
            self.host.log("container not started", claim=pod.name, error=repr(error))
            self.host.later(2.0, partial(self._again, pod))
            return False
        self.host.log("container started", claim=pod.name)
        return True

    def _again(self, pod: ClaimPod) -> None:
        if self._is_wanted(pod) and not pod.held:
            self._start_container(pod)


def driver_of_cdi(name: str) -> str:
    """Return the driver of a qualified CDI name."""
    return name.partition("/")[0]
