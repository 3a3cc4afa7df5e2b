"""The kubelet's side of DRA: registration of drivers, claims of pods, and the CDI specs of a runtime."""

import asyncio
import contextlib
import functools
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.api import pluginregistration_pb2 as registration_pb
from aosp_plugin.framework.apiserver.protocol import resource_claims
from tests.simulation.api import ApiServer
from tests.simulation.containers import CDI_DIRECTORIES, Tenant
from tests.simulation.rpc import Server

if TYPE_CHECKING:
    from tests.simulation.host import Host

REGISTRY = "/var/lib/kubelet/plugins_registry"
STATE = "/var/lib/kubelet/plugins"
WIPE = 30.0
"""Seconds after which the slices of a driver that has gone are deleted."""
CLAIMS = resource_claims("default")
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
DEADLINE = 45.0
FORCED = 0.1
"""How probable it is that a pod is deleted by force when it cannot end, because no process serves its driver."""
RETRY = 5.0
"""Seconds between two attempts; a kubelet takes 60 to 90."""


@dataclass
class ClaimPod(Tenant):
    """A pod with a claim of one device."""

    claim: pb.Claim = field(default_factory=pb.Claim)
    driver: str = ""
    pool: str = ""
    device: str = ""
    names: list[str] = field(default_factory=list)
    """The CDI names that the kubelet has got; empty until the claim is prepared."""
    ends: bool = False
    worker: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One worker of the kubelet handles a pod."""
    error: str = ""
    """Why the last attempt has failed, which the kubelet reports."""
    is_damaged: bool = False
    """Whether another program has removed its spec, and no process of the plugin has written it again yet."""


class ClaimKubelet:
    """Prepares and unprepares claims. Pods and what they have got outlive it, as its checkpoint does."""

    def __init__(self, host: "Host", api: ApiServer) -> None:
        self.host, self.api = host, api
        self.pods: dict[str, ClaimPod] = {}
        self.running = False
        self.configured: Callable[[], set[str]] = set
        """Returns the drivers of the configuration. Some pods of others are deleted by force."""
        self._registered: dict[str, tuple[str, Server]] = {}
        """The drivers by the names of their sockets."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._numbers = 0
        host.files.make_directories(REGISTRY)
        host.files.lookup(REGISTRY).watchers.append(self._changed)

    def driver(self, name: str) -> Server | None:
        """Return the process that registered a driver last, of those that are connected."""
        found = (each for driver, each in reversed(self._registered.values()) if driver == name and not each.is_stopped)
        return next(found, None)

    def start(self) -> None:
        """Start: the node's slices are deleted, and sockets registered again."""
        self.running = True
        for each in self.api.slices():
            self.api.delete(f"/apis/resource.k8s.io/v1/resourceslices/{each['metadata']['name']}")
        self._changed()
        for pod in self.pods.values():
            self._spawn(self._lead(pod))

    def stop(self) -> None:
        """End: nothing is forgotten but the registrations."""
        self.running = False
        self._registered.clear()
        for task in self._tasks:
            task.cancel()

    def add(self) -> None:
        """Schedule a pod on a free device that the slices have; without one, it waits elsewhere."""
        taken = {(pod.driver, pod.device) for pod in self.pods.values()}
        free = [
            (each["spec"]["driver"], each["spec"]["pool"]["name"], device["name"])
            for each in self.api.slices()
            for device in each["spec"].get("devices", ())
            if (each["spec"]["driver"], device["name"]) not in taken and not device.get("taints")
        ]
        if not free or not self.running:
            return
        driver, pool, device = self.host.rng.choice(free)
        self._numbers += 1
        name = f"claim-{self._numbers}"
        results = [{"request": "main", "driver": driver, "pool": pool, "device": device}]
        if self.host.rng.random() < 0.3:
            results.append({"request": "other", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"})
        status = {"allocation": {"devices": {"results": results, "config": []}}}
        body = {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"}, "status": status}
        created = self.api.create(CLAIMS, body)
        claim = pb.Claim(namespace="default", name=name, uid=created["metadata"]["uid"])
        pod = self.pods[name] = ClaimPod(name, claim=claim, driver=driver, pool=pool, device=device)
        self.host.log("claim allocated", claim=name, driver=driver, device=device)
        self._spawn(self._lead(pod))

    def end(self, name: str) -> None:
        """End a pod: its containers end, and its claim is unprepared."""
        pod = self.pods[name]
        pod.ends = True
        self.host.containers.release(pod)
        if self.running:
            self._spawn(self._lead(pod))

    def restart(self, name: str) -> None:
        """Restart the container of a pod with the names that the kubelet has, or its sandbox, and prepare again."""
        pod = self.pods[name]
        if pod.names and not pod.ends:
            self.host.containers.end(pod)
            if self.running and self.host.rng.random() < 0.5:
                self._spawn(self._lead(pod))
            else:
                self._start(pod)

    def check_names(self) -> None:
        """Check that each CDI name that the kubelet holds resolves, until its claim ends."""
        for pod in self.pods.values():
            if pod.ends:
                continue
            try:
                for name in pod.names:
                    self.host.containers.by_cdi(name)
                pod.is_damaged = False
            except KeyError as error:
                if not pod.is_damaged:
                    self.host.violated(f"{pod.name} is prepared: {error.args[0]}")

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

    def damaged_records(self) -> list[str]:
        """Return the paths of the damaged records of claims."""
        return [path for path in self.records() if not self.host.files.lookup(path).data]

    def prepared(self) -> list[ClaimPod]:
        """Return the pods whose claims are prepared."""
        return [pod for pod in self.pods.values() if pod.names]

    def missing(self) -> list[str]:
        """Return what is not as it should be when no fault is left."""
        configured = self.configured()
        found = [
            f"{name}: the kubelet has no driver"
            for name in sorted(configured)
            if self.running and self.driver(name) is None
        ]
        found += [f"{pod.driver}: claim {pod.name} ends" for pod in self.pods.values() if pod.ends]
        damaged = [pod for pod in self.pods.values() if pod.is_damaged and not pod.ends]
        found += [f"{pod.driver}: claim {pod.name} has no spec" for pod in damaged]
        return found + [f"{pod.driver}: claim {pod.name} waits" for pod in self._waiting(configured)]

    def _waiting(self, configured: set[str]) -> list[ClaimPod]:
        """Return the pods whose containers should run, and do not."""
        return [
            pod
            for pod in self.pods.values()
            if not (pod.ends or pod.held)
            and (pod.names or (pod.driver in configured and pod.device in self.usable(pod.driver)))
        ]

    def stuck(self) -> list[str]:
        """Return the UIDs of the claims that wait for a device which new pods must not get: another pod has it."""
        pods = [pod for pod in self.pods.values() if not (pod.ends or pod.names)]
        return [pod.claim.uid for pod in pods if pod.device not in self.usable(pod.driver)]

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
        return [(pod.driver, pod.error) for pod in waiting if pod.error]

    def remains(self, directories: Iterable[str], held: set[str]) -> list[str]:
        """Return what is left of claims that have ended, when everything has recovered.

        ``directories`` are those of the phones of the configured drivers; phones at ``held`` may stay.
        """
        containers, below = self.host.containers, tuple(f"{directory}/" for directory in directories)
        mounted = {path for path in self.host.files.mounts if path.startswith(below)} - containers.holders.keys() - held
        for pod in self.pods.values():
            mounted -= containers.places_by_cdi(pod.names)
        known = {pod.claim.uid for pod in self.pods.values()}
        specs = {name for _, name in self.specs() if name.partition("-claim_")[2].removesuffix(".json") not in known}
        own = tuple(f"{STATE}/{driver}/" for driver in self.configured())
        damaged = {path for path in self.damaged_records() if path.startswith(own)}
        return [f"left of an ended claim: {name}" for name in sorted(mounted | specs | damaged)]

    # -- registration

    def _changed(self) -> None:
        if self.running:
            self.host.later(self.host.rng.uniform(0.0, 1.0), self._look)

    def _look(self) -> None:
        """Register new sockets, and forget those that are gone, as the plugin watcher does."""
        if not self.running:
            return
        entries = self.host.files.lookup(REGISTRY).entries
        names = {name for name, inode in entries.items() if stat.S_ISSOCK(inode.mode) and not name.startswith(".")}
        for name in sorted(self._registered.keys() - names):
            driver, _ = self._registered.pop(name)
            self.host.later(WIPE, functools.partial(self._wipe, driver))
        for name in sorted(names - self._registered.keys()):
            self._spawn(self._register(name))

    async def _register(self, name: str) -> None:
        try:
            server = self.host.connected(f"{REGISTRY}/{name}")
            if not isinstance(server, Server):
                return
            info = await server.call("/pluginregistration.Registration/GetInfo", b"", 5.0)
            status = registration_pb.RegistrationStatus(plugin_registered=True)
            self._registered[name] = registration_pb.PluginInfo.FromString(info).name, server
            data = status.SerializeToString()
            await server.call("/pluginregistration.Registration/NotifyRegistrationStatus", data, 5.0)
        except (OSError, grpc.aio.AioRpcError):
            self.host.later(0.5, self._look)

    def _wipe(self, driver: str) -> None:
        """Delete the slices of a driver that has not come back (pkg/kubelet/cm/dra/plugin ``DRAPluginManager``)."""
        if self.running and self.driver(driver) is None:
            for each in self.api.slices():
                if each["spec"]["driver"] == driver:
                    self.api.delete(f"/apis/resource.k8s.io/v1/resourceslices/{each['metadata']['name']}")

    # -- pods

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, pod: ClaimPod) -> None:
        """Prepare or unprepare the claim of a pod until that succeeds."""
        was_ending = pod.ends
        while True:
            try:
                async with pod.worker:
                    if self.pods.get(pod.name) is not pod or pod.ends != was_ending:
                        return
                    if (driver := self.driver(pod.driver)) is None:
                        pod.error = "the driver is not registered"
                        is_deleted_by_force = not pod.names or self.host.rng.random() < FORCED
                        if pod.ends and pod.driver not in self.configured() and is_deleted_by_force:
                            self._forget(pod)
                            return
                    elif await (self._unprepare(pod, driver) if pod.ends else self._prepare(pod, driver)):
                        return
            except grpc.aio.AioRpcError as error:
                pod.error = error.details() or error.code().name
            await asyncio.sleep(self.host.rng.uniform(0.5, RETRY))

    async def _prepare(self, pod: ClaimPod, driver: Server) -> bool:
        if pod.held:
            return True
        request = pb.NodePrepareResourcesRequest(claims=[pod.claim]).SerializeToString()
        answer = await driver.call(f"{SERVICE}NodePrepareResources", request, DEADLINE)
        result = pb.NodePrepareResourcesResponse.FromString(answer).claims[pod.claim.uid]
        pod.error = result.error
        if result.error:
            self.host.log("claim not prepared", claim=pod.name, error=result.error)
            return False
        if pod.ends or self.pods.get(pod.name) is not pod:
            return True
        names = [name for device in result.devices for name in device.cdi_device_ids]
        if pod.names not in ([], names):
            self.host.violated(f"{pod.name} is prepared as {pod.names}, and then as {names}")
        pod.names = names
        return self._start(pod)

    async def _unprepare(self, pod: ClaimPod, driver: Server) -> bool:
        request = pb.NodeUnprepareResourcesRequest(claims=[pod.claim]).SerializeToString()
        answer = await driver.call(f"{SERVICE}NodeUnprepareResources", request, DEADLINE)
        error = pb.NodeUnprepareResourcesResponse.FromString(answer).claims[pod.claim.uid].error
        pod.error = error
        if error:
            self.host.log("claim not unprepared", claim=pod.name, error=error)
            return False
        self._forget(pod)
        return True

    def _forget(self, pod: ClaimPod) -> None:
        """Delete a pod with its claim."""
        self.pods.pop(pod.name, None)
        self.api.delete(f"{CLAIMS}/{pod.name}")
        self.host.log("claim ended", claim=pod.name)

    def _start(self, pod: ClaimPod) -> bool:
        """Start the container with what its CDI names stand for."""
        containers = self.host.containers
        try:
            paths = [path for name in pod.names for path in containers.by_cdi(name)]
            containers.occupy(pod, paths)
            containers.start(pod, paths, fresh=True)
        except (OSError, KeyError) as error:
            self.host.log("container not started", claim=pod.name, error=repr(error))
            self.host.later(2.0, functools.partial(self._again, pod))
            return False
        self.host.log("container started", claim=pod.name)
        return True

    def _again(self, pod: ClaimPod) -> None:
        if self.pods.get(pod.name) is pod and not pod.held and not pod.ends:
            self._start(pod)
