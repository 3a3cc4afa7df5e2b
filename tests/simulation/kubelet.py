"""A simulated kubelet: its device manager, as pkg/kubelet/cm/devicemanager works, and its podresources API."""

import asyncio
import collections
import contextlib
import stat
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2 as resources_pb
from aosp_plugin.framework.sockets import socket_number
from tests.simulation.files import Inode
from tests.simulation.rpc import Peer, Server, failure

if TYPE_CHECKING:
    from tests.simulation.host import Host

DIRECTORY = "/var/lib/kubelet/device-plugins"
SOCKET = f"{DIRECTORY}/kubelet.sock"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
SERVICE = "/v1beta1.DevicePlugin/"
VERSION = "v1beta1"
UNNOTICED = 2.0
"""Seconds in which a plugin can register and end without being noticed by another one."""


@dataclass
class Pod:
    """A pod with one container that has devices."""

    name: str
    resource: str
    ids: list[str]
    answer: pb.ContainerAllocateResponse
    held: list[Inode] = field(default_factory=list)
    """The devices that the running container has; empty if it does not run."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One worker of the kubelet handles a pod."""


class Kubelet:
    """The kubelet of the node. Pods and their allocations outlive it, as its checkpoint does."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self.pods: dict[str, Pod] = {}
        self.devices: dict[str, dict[str, bool]] = {}
        """By resource: the devices, and whether they are healthy."""
        self.lost: set[str] = set()
        """The resources whose devices it has lost although the stream is open, until the next list."""
        self.running = False
        self.register_time = 0.0
        """Seconds that Register takes."""
        self.refuses = False
        """Whether Register fails."""
        self.answers_late = 0.0
        """Seconds that podresources takes."""
        self.answers_wrongly = False
        self.changed = asyncio.Event()
        self.registered: set[int] = set()
        """The processes that have registered."""
        self._admission = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._endpoints: dict[str, Server] = {}
        self._names: dict[str, str] = {}
        """The socket of each resource. A kubelet tells registrations apart by it alone."""
        self._streams: collections.defaultdict[str, list[str]] = collections.defaultdict(list)
        self._peers: list[Peer] = []

    def start(self) -> None:
        """Start: the sockets of plugins are removed, and the kubelet's are created."""
        files = self.host.files
        with contextlib.suppress(FileExistsError):
            files.make_directories(DIRECTORY)
        for name, inode in [*files.lookup(DIRECTORY).entries.items()]:
            if stat.S_ISSOCK(inode.mode):
                files.remove(f"{DIRECTORY}/{name}")
        self._peers = [
            Peer({"/v1beta1.Registration/Register": self._register}),
            Peer(
                {
                    "/v1.PodResourcesLister/List": self._list,
                    "/v1.PodResourcesLister/GetAllocatableResources": self._allocatable,
                }
            ),
        ]
        with contextlib.suppress(FileNotFoundError):
            files.remove(POD_RESOURCES)
        self.host.bind(SOCKET, self._peers[0])
        self.host.bind(POD_RESOURCES, self._peers[1])
        self.running = True
        self.host.log("kubelet started")

    def stop(self) -> None:
        """End: connections break, sockets stay, devices are forgotten."""
        self.running = False
        self.drop_streams()
        self._tasks.clear()
        for peer in self._peers:
            self.host.close_listener(peer)
        self.devices.clear()
        self.lost.clear()
        self._endpoints.clear()
        self._names.clear()
        self.host.log("kubelet stopped")

    def drop_streams(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()

    def lose_devices(self) -> None:
        """Mark all devices unhealthy although streams are open, as after the end of another plugin of the resource."""
        for resource, devices in self.devices.items():
            self.devices[resource] = dict.fromkeys(devices, False)
            self.lost.add(resource)

    def healthy(self, resource: str) -> set[str]:
        """Return the healthy devices."""
        return {device for device, is_healthy in self.devices.get(resource, {}).items() if is_healthy}

    async def _register(self, data: bytes) -> bytes:
        request = pb.RegisterRequest.FromString(data)
        waited = 0.0
        while waited < self.register_time:  # which may end meanwhile
            waited += 0.25
            await asyncio.sleep(0.25)
        if self.refuses or not self.running:
            raise failure(grpc.StatusCode.UNKNOWN, "registration failed")
        if request.version != VERSION:
            text = f'requested API version "{request.version}" is not supported by kubelet. '
            raise failure(grpc.StatusCode.UNKNOWN, f'{text}Supported version is ["{VERSION}"]')
        try:
            server = self.host.connected(f"{DIRECTORY}/{request.endpoint}")
        except OSError:
            server = None
        if not isinstance(server, Server):
            raise failure(grpc.StatusCode.UNKNOWN, "failed to dial device plugin")
        try:
            await server.call(f"{SERVICE}GetDevicePluginOptions", b"")
        except grpc.aio.AioRpcError as error:
            # The kubelet forgets whose stream it has, and will not notice its end (plugin/v1beta1/handler.go).
            self._names.pop(request.resource_name, None)
            text = f"rpc error: code = {error.code().name.capitalize()} desc = {error.details()}"
            raise failure(grpc.StatusCode.UNKNOWN, f"failed to get device plugin options: {text}") from None
        self.host.log("registered", endpoint_of=request.resource_name)
        self._endpoints[request.resource_name] = server
        self._names[request.resource_name] = request.endpoint
        self.registered.add(server.pid)
        task = asyncio.get_running_loop().create_task(self._watch(request.resource_name, request.endpoint, server))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pb.Empty().SerializeToString()

    async def _watch(self, resource: str, name: str, server: Server) -> None:
        """Take the lists of a plugin; its devices are unhealthy when the stream ends."""
        self._streams[resource].append(name)
        began = self.host.monotonic()
        try:
            async with contextlib.aclosing(server.stream(f"{SERVICE}ListAndWatch", b"")) as messages:  # type: ignore[type-var]
                async for message in messages:
                    found = pb.ListAndWatchResponse.FromString(message).devices
                    self.devices[resource] = {device.ID: device.health == "Healthy" for device in found}
                    self.lost.discard(resource)
                    self.changed.set()
        except grpc.aio.AioRpcError as error:
            self.host.log("stream failed", error=error.details())
        finally:
            self._streams[resource].remove(name)
            is_short = self.host.monotonic() - began < UNNOTICED
            self.host.later(self.host.rng.uniform(0.0, 0.3), partial(self._ended, resource, name, is_short=is_short))

    def _ended(self, resource: str, name: str, *, is_short: bool) -> None:
        """Process the end of a stream, some time after it."""
        if self._names.get(resource) == name:
            self._endpoints.pop(resource, None)
            self.devices[resource] = dict.fromkeys(self.devices.get(resource, {}), False)
            others = [socket_number(other) for other in self._streams[resource]]
            # The other plugin notices no end of one that was short, or that seems earlier since the clock jumped.
            if others and (is_short or socket_number(name) < max(others)):
                self.lost.add(resource)
            self.changed.set()

    async def _list(self, _data: bytes) -> bytes:
        await asyncio.sleep(self.answers_late)
        response = resources_pb.ListPodResourcesResponse()
        for pod in self.pods.values():
            container = response.pod_resources.add(name=pod.name, namespace="default").containers.add(name="main")
            container.devices.add(resource_name=pod.resource, device_ids=pod.ids)
        return response.SerializeToString()

    async def _allocatable(self, _data: bytes) -> bytes:
        await asyncio.sleep(self.answers_late)
        response = resources_pb.AllocatableResourcesResponse()
        for resource in () if self.answers_wrongly else self.devices:
            response.devices.add(resource_name=resource, device_ids=sorted(self.healthy(resource)))
        return response.SerializeToString()

    # -- pods

    async def admit(self, name: str, resource: str) -> Pod | None:
        """Give a free device to a pod; None if it is rejected. Pods are admitted one after another."""
        async with self._admission:
            pod = await self._admit(name, resource)
        if pod is not None:
            await self.start_container(pod)
        return pod

    async def _admit(self, name: str, resource: str) -> Pod | None:
        used = {device for pod in self.pods.values() for device in pod.ids}
        free = sorted(self.healthy(resource) - used)
        server = self._endpoints.get(resource)
        if not free or server is None:
            return None
        ids = [self.host.rng.choice(free)]
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            answer = await server.call(f"{SERVICE}Allocate", request.SerializeToString())
        except grpc.aio.AioRpcError as error:
            self.host.log("pod rejected", pod=name, error=error.details())
            return None
        found = pb.AllocateResponse.FromString(answer).container_responses[0]
        pod = self.pods[name] = Pod(name, resource, ids, found)
        self.host.log("pod admitted", pod=name, device=ids[0])
        return pod

    async def start_container(self, pod: Pod) -> bool:
        """Start the container of a pod, if the plugin prepares its devices, and if they exist."""
        async with pod.starting:
            return await self._start_container(pod)

    async def _start_container(self, pod: Pod) -> bool:
        self.end_container(pod)
        server = self._endpoints.get(pod.resource)
        if server is None:
            return False
        self.host.may_replace.add(pod.name)
        try:
            options = pb.DevicePluginOptions.FromString(await server.call(f"{SERVICE}GetDevicePluginOptions", b""))
            if options.pre_start_required:
                request = pb.PreStartContainerRequest(devices_ids=pod.ids)
                await server.call(f"{SERVICE}PreStartContainer", request.SerializeToString(), 30.0)
            found = [self.host.files.lookup(node.host_path) for node in pod.answer.devices]
        except (grpc.aio.AioRpcError, OSError) as error:
            self.host.log("container not started", pod=pod.name, error=str(error).replace("\n", " ")[:80])
            return False
        finally:
            self.host.may_replace.discard(pod.name)
        if self.pods.get(pod.name) is not pod:
            return False
        for inode in found:
            if inode.mode & 0o666 != 0o666:
                self.host.violated(f"{pod.name} got a device that Android's users cannot open")
            if self.host.held.get(inode, pod.name) != pod.name:
                self.host.violated(f"{pod.name} got a device that {self.host.held[inode]} has")
            self.host.held[inode] = pod.name
        pod.held = found
        self.host.log("container started", pod=pod.name)
        return True

    def end_container(self, pod: Pod) -> None:
        """End the container of a pod."""
        for inode in pod.held:
            self.host.held.pop(inode, None)
        pod.held = []

    def remove(self, name: str) -> None:
        """End a pod."""
        if (pod := self.pods.pop(name, None)) is not None:
            self.end_container(pod)
            self.host.log("pod removed", pod=name)
