"""The kubelet's side of DRA: registration of drivers, claims of pods, and the CDI specs of a runtime."""

import asyncio
import functools
import hashlib
import json
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.api import pluginregistration_pb2 as registration_pb
from aosp_plugin.framework.apiserver.protocol import resource_claims
from tests.simulation.api import ApiServer
from tests.simulation.files import Inode
from tests.simulation.rpc import Server

if TYPE_CHECKING:
    from tests.simulation.host import Host

REGISTRY = "/var/lib/kubelet/plugins_registry"
CDI = "/var/run/cdi"
DRIVER = "tablet.aosp.io"
STATE = f"/var/lib/kubelet/plugins/{DRIVER}"
CLAIMS = resource_claims("default")
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
DEADLINE = 45.0
RETRY = 5.0
"""Seconds between two attempts; a kubelet takes 60 to 90."""


@dataclass
class ClaimPod:
    """A pod with a claim of one device."""

    name: str
    claim: pb.Claim
    device: str
    names: list[str] = field(default_factory=list)
    """The CDI names that the kubelet has got; empty until the claim is prepared."""
    held: list[Inode] = field(default_factory=list)
    ends: bool = False
    worker: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One worker of the kubelet handles a pod."""
    error: str = ""
    """Why the last attempt has failed, which the kubelet reports."""
    is_damaged: bool = False
    """Whether another program has removed its spec, which is the record of the claim: a process of the plugin that did
    not see it before cannot know of the claim."""


class ClaimKubelet:
    """Prepares and unprepares claims. Pods and what they have got outlive it, as its checkpoint does."""

    def __init__(self, host: "Host", api: ApiServer) -> None:
        self.host, self.api = host, api
        self.pods: dict[str, ClaimPod] = {}
        self.running = False
        self._registered: dict[str, Server] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._numbers = 0
        host.files.make_directories(REGISTRY)
        host.files.lookup(REGISTRY).watchers.append(self._changed)

    @property
    def driver(self) -> Server | None:
        """The driver that registered last, of those that are connected."""
        return next((each for each in reversed(self._registered.values()) if not each.is_stopped), None)

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
        taken = {pod.device for pod in self.pods.values()}
        free = [
            (each["spec"]["pool"]["name"], device["name"])
            for each in self.api.slices()
            for device in each["spec"].get("devices", ())
            if device["name"] not in taken and not device.get("taints")
        ]
        if not free or not self.running:
            return
        pool, device = self.host.rng.choice(free)
        self._numbers += 1
        name = f"claim-{self._numbers}"
        results = [{"request": "main", "driver": DRIVER, "pool": pool, "device": device}]
        status = {"allocation": {"devices": {"results": results, "config": []}}}
        body = {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "default"}, "status": status}
        created = self.api.create(CLAIMS, body)
        pod = ClaimPod(name, pb.Claim(namespace="default", name=name, uid=created["metadata"]["uid"]), device)
        self.pods[name] = pod
        self.host.log("claim allocated", claim=name, device=device)
        self._spawn(self._lead(pod))

    def end(self, name: str) -> None:
        """End a pod: its containers end, and its claim is unprepared."""
        pod = self.pods[name]
        pod.ends = True
        self._release(pod)
        if self.running:
            self._spawn(self._lead(pod))

    def restart(self, name: str) -> None:
        """Restart the container of a pod with the names that the kubelet has, or its sandbox, and prepare again."""
        pod = self.pods[name]
        if pod.names and not pod.ends:
            self._release(pod)
            if self.running and self.host.rng.random() < 0.5:
                self._spawn(self._lead(pod))
            else:
                self._start(pod)

    def check_names(self) -> None:
        """Check that each CDI name that the kubelet holds resolves, until its claim ends."""
        for pod in self.pods.values():
            if not (pod.ends or pod.is_damaged):
                for name in pod.names:
                    try:
                        self._paths(name)
                    except KeyError as error:
                        self.host.violated(f"{pod.name} is prepared: {error.args[0]}")

    def become_earlier(self) -> None:
        """Give the records of claims the form in which earlier versions have left them.

        The last one had them in a checkpoint as well as in the specs, and those before it in a checkpoint alone.
        """
        files, claims = self.host.files, []
        if files.exists(f"{STATE}/checkpoint.json"):
            return
        is_recorded = self.host.rng.random() < 0.5
        for name, inode in [*files.lookup(CDI).entries.items()]:
            if not name.startswith(f"{DRIVER}-claim_") or not name.endswith(".json"):
                continue
            spec = json.loads(inode.data)
            claims.append(json.loads(spec["annotations"][f"{DRIVER}/claim"])["claim"])
            if not is_recorded:
                files.remove(f"{CDI}/{name}")
                files.write(f"{CDI}/{name}", json.dumps({**spec, "annotations": {}}).encode())
        boot = self.host.read("/proc/sys/kernel/random/boot_id").decode().strip()
        data = json.dumps({"boot": boot, "claims": claims})
        checksum = hashlib.sha256(data.encode()).hexdigest()
        files.make_directories(STATE)
        content = f'{{"format":1,"checksum":"{checksum}","data":{data}}}'
        files.write(f"{STATE}/checkpoint.json", content.encode())
        self.host.log("earlier version", claims=len(claims), is_recorded=is_recorded)

    def missing(self) -> list[str]:
        """Return what is not as it should be when no fault is left."""
        found = ["the kubelet has no driver"] if self.running and self.driver is None else []
        found += [f"claim {pod.name} ends" for pod in self.pods.values() if pod.ends]
        found += [
            f"claim {pod.name} waits" for pod in self.pods.values() if not (pod.ends or pod.held or pod.is_damaged)
        ]
        devices = [device for each in self.api.slices() for device in each["spec"].get("devices", ())]
        usable = [device["name"] for device in devices if not device.get("taints")]
        names = ("phone0", "phone1", "phone2")
        found += [f"the API server has {count} {name}" for name in names if (count := usable.count(name)) != 1]
        return found

    def errors(self) -> list[str]:
        """Return what the kubelet reports of claims that are not as they should be."""
        waiting = [pod for pod in self.pods.values() if pod.ends or not (pod.held or pod.is_damaged)]
        return [pod.error for pod in waiting if pod.error]

    def remains(self, directory: str) -> list[str]:
        """Return what is left of claims that have ended, when everything has recovered."""
        used = {pod.device for pod in self.pods.values()}
        mounted = {path.rpartition("/")[2] for path in self.host.files.mounts if path.startswith(f"{directory}/")}
        specs = {name for name in self.host.files.lookup(CDI).entries if "claim_" in name}
        known = {f"{DRIVER}-claim_{pod.claim.uid}.json" for pod in self.pods.values()}
        return [f"left of an ended claim: {name}" for name in sorted((mounted - used) | (specs - known))]

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
        for name in self._registered.keys() - names:
            del self._registered[name]
        for name in sorted(names - self._registered.keys()):
            self._spawn(self._register(name))

    async def _register(self, name: str) -> None:
        try:
            server = self.host.connected(f"{REGISTRY}/{name}")
            if not isinstance(server, Server):
                return
            info = await server.call("/pluginregistration.Registration/GetInfo", b"", 5.0)
            assert registration_pb.PluginInfo.FromString(info).name == DRIVER
            status = registration_pb.RegistrationStatus(plugin_registered=True)
            self._registered[name] = server
            data = status.SerializeToString()
            await server.call("/pluginregistration.Registration/NotifyRegistrationStatus", data, 5.0)
        except (OSError, grpc.aio.AioRpcError):
            self.host.later(0.5, self._look)

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
                    if (driver := self.driver) is None:
                        pod.error = "the driver is not registered"
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
        self.pods.pop(pod.name, None)
        self.host.may_replace.discard(pod.name)
        self.api.delete(f"{CLAIMS}/{pod.name}")
        self.host.log("claim ended", claim=pod.name)
        return True

    def _start(self, pod: ClaimPod) -> bool:
        """Start the container with what its CDI names stand for."""
        try:
            found = [self.host.files.lookup(path) for name in pod.names for path in self._paths(name)]
        except (OSError, KeyError, ValueError) as error:
            self.host.log("container not started", claim=pod.name, error=repr(error))
            self.host.later(2.0, functools.partial(self._again, pod))
            return False
        for inode in found:
            if self.host.held.get(inode, pod.name) != pod.name:
                self.host.violated(f"{pod.name} got a device that {self.host.held[inode]} has")
            self.host.held[inode] = pod.name
        pod.held = found
        self.host.log("container started", claim=pod.name)
        return True

    def _again(self, pod: ClaimPod) -> None:
        if self.pods.get(pod.name) is pod and not pod.held and not pod.ends:
            self._start(pod)

    def _release(self, pod: ClaimPod) -> None:
        for inode in pod.held:
            self.host.held.pop(inode, None)
        pod.held = []

    def _paths(self, name: str) -> list[str]:
        """Return the device nodes of a qualified CDI name. Raises KeyError, as a runtime does."""
        for file, inode in self.host.files.lookup(CDI).entries.items():
            if file.endswith(".json") and name in (nodes := _device_nodes(inode.data)):
                return nodes[name]
        raise KeyError(f"unresolvable CDI device {name}")


@functools.lru_cache(maxsize=64)
def _device_nodes(data: bytes) -> dict[str, list[str]]:
    """Return the device nodes of the qualified names in a CDI spec."""
    spec = json.loads(data)
    return {
        f"{spec['kind']}={each['name']}": [node["hostPath"] for node in each["containerEdits"].get("deviceNodes", ())]
        for each in spec["devices"]
    }
