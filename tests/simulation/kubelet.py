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
from aosp_plugin.framework.sockets import creation_time
from tests.simulation.containers import Tenant
from tests.simulation.rpc import Peer, Server, failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.simulation.claims import ClaimPod
    from tests.simulation.host import Host

DIRECTORY = "/var/lib/kubelet/device-plugins"
SOCKET = f"{DIRECTORY}/kubelet.sock"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
SERVICE = "/v1beta1.DevicePlugin/"
VERSION = "v1beta1"
RETRY = (1.0, 8.0)
"""Seconds between two attempts to start a container, shorter than a kubelet's."""
UNNOTICED = 2.0
"""Seconds in which a plugin can register and end without being noticed by another one, if no call hangs."""


@dataclass
class Pod(Tenant):
    """A pod that has a device of a device plugin."""

    resource: str = ""
    ids: list[str] = field(default_factory=list)
    answer: pb.ContainerAllocateResponse = field(default_factory=pb.ContainerAllocateResponse)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One worker of the kubelet handles a pod."""
    error: str = ""
    """Why its container does not start, which the kubelet reports."""


class Kubelet:
    """The kubelet of the node. Pods and their allocations outlive it, as its checkpoint does."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self.pods: dict[str, Pod] = {}
        self.devices: dict[str, dict[str, bool]] = {}
        """By resource: the devices, and whether they are healthy."""
        self.lost: set[str] = set()
        """The resources whose devices it has lost although the stream is open, until the next list."""
        self.is_former: Callable[[str], bool] = bool
        """Returns whether a path is of a phone in a former directory, which no plugin makes fresh."""
        self.running = False
        self.register_time = 0.0
        """Seconds that Register takes."""
        self.refuses = False
        """Whether Register fails."""
        self.answers_late = 0.0
        """Seconds that podresources takes."""
        self.answers_wrongly = False
        self.claims: Callable[[], Iterable[ClaimPod]] = tuple
        """Returns the pods with prepared claims."""
        self.changed = asyncio.Event()
        self.registered: set[int] = set()
        """The processes that have registered."""
        self._admission = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._endpoints: dict[str, Server] = {}
        self._options: dict[str, pb.DevicePluginOptions] = {}
        """What the plugins have said that registered since the kubelet's start, whether they are connected or not."""
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
        for pod in self.pods.values():
            if not pod.held:
                self._lead(pod)

    def stop(self) -> None:
        """End: connections break, sockets stay, devices are forgotten."""
        self.running = False
        self.drop_streams()
        self._tasks.clear()
        for task in self._starts:
            task.cancel()
        for peer in self._peers:
            self.host.close_listener(peer)
        self.devices.clear()
        self.lost.clear()
        self._endpoints.clear()
        self._options.clear()
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
            options = await server.call(f"{SERVICE}GetDevicePluginOptions", b"")
        except grpc.aio.AioRpcError as error:
            # The kubelet forgets whose stream it has, and will not notice its end (plugin/v1beta1/handler.go).
            self._names.pop(request.resource_name, None)
            text = f"rpc error: code = {error.code().name.capitalize()} desc = {error.details()}"
            raise failure(grpc.StatusCode.UNKNOWN, f"failed to get device plugin options: {text}") from None
        self.host.log("registered", endpoint_of=request.resource_name)
        self._endpoints[request.resource_name] = server
        self._options[request.resource_name] = pb.DevicePluginOptions.FromString(options)
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
            is_short = self.host.monotonic() - max(began, self.host.hung_at) < UNNOTICED
            self.host.later(self.host.rng.uniform(0.0, 0.3), partial(self._ended, resource, name, is_short=is_short))

    def _ended(self, resource: str, name: str, *, is_short: bool) -> None:
        """Process the end of a stream, some time after it."""
        if self._names.get(resource) == name:
            self._endpoints.pop(resource, None)
            self.devices[resource] = dict.fromkeys(self.devices.get(resource, {}), False)
            others = [creation_time(other) for other in self._streams[resource]]
            # The other plugin notices no end of one that was short, or that seems earlier since the clock jumped.
            if others and (is_short or creation_time(name) < max(others)):
                self.lost.add(resource)
            self.changed.set()

    async def _list(self, _data: bytes) -> bytes:
        await asyncio.sleep(self.answers_late)
        response = resources_pb.ListPodResourcesResponse()
        response.pod_resources.add(name="aosp-plugin-x7k2p", namespace="kube-system")
        for pod in self.pods.values():
            container = response.pod_resources.add(name=pod.name, namespace="default").containers.add(name="main")
            container.devices.add(resource_name=pod.resource, device_ids=pod.ids)
        for claim in self.claims():
            self._add_claim(response.pod_resources.add(name=claim.name, namespace="default"), claim)
        return response.SerializeToString()

    @staticmethod
    def _add_claim(found: resources_pb.PodResources, pod: "ClaimPod") -> None:
        claim = found.containers.add(name="main").dynamic_resources.add(claim_name=pod.name, claim_namespace="default")
        device = claim.claim_resources.add(driver_name=pod.driver, pool_name=pod.pool, device_name=pod.device)
        for name in pod.names:
            device.cdi_devices.add(name=name)

    async def _allocatable(self, _data: bytes) -> bytes:
        await asyncio.sleep(self.answers_late)
        response = resources_pb.AllocatableResourcesResponse()
        for resource in () if self.answers_wrongly else self.devices:
            response.devices.add(resource_name=resource, device_ids=sorted(self.healthy(resource)))
        return response.SerializeToString()

    # -- pods

    async def admit(self, name: str, resource: str) -> None:
        """Give a free device to a pod, unless it is rejected. Pods are admitted one after another."""
        async with self._admission:
            await self._admit(name, resource)

    async def _admit(self, name: str, resource: str) -> None:
        used = {device for pod in self.pods.values() if pod.resource == resource for device in pod.ids}
        free = sorted(self.healthy(resource) - used)
        server = self._endpoints.get(resource)
        if not free or server is None:
            return
        ids = [self.host.rng.choice(free)]
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            answer = await server.call(f"{SERVICE}Allocate", request.SerializeToString())
        except grpc.aio.AioRpcError as error:
            self.host.log("pod rejected", pod=name, error=error.details())
            return
        found = pb.AllocateResponse.FromString(answer).container_responses[0]
        pod = self.pods[name] = Pod(name, shares="::" in ids[0], resource=resource, ids=ids, answer=found)
        pod.may_replace = True
        self.host.log("pod admitted", pod=name, resource=resource, device=ids[0])
        with contextlib.suppress(KeyError):  # its CDI spec may come later
            self.host.containers.occupy(pod, self._paths(pod))
        self._lead(pod)

    def restart(self, pod: Pod) -> None:
        """End the container of a pod, as after a crash, and start it again."""
        self.host.containers.end(pod)
        if self.running:
            self._lead(pod)

    def _lead(self, pod: Pod) -> None:
        task = asyncio.get_running_loop().create_task(self._start(pod))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    async def _start(self, pod: Pod) -> None:
        """Start the container of a pod, again and again until it runs."""
        while self.pods.get(pod.name) is pod and not pod.held:
            async with pod.starting:
                if not pod.held:
                    await self._start_container(pod)
            if not pod.held:
                await asyncio.sleep(self.host.rng.uniform(*RETRY))

    async def _start_container(self, pod: Pod) -> None:
        """Start a container, if the plugin prepares its devices, and if they exist.

        A kubelet that has started since the plugin registered does not call it (pkg/kubelet/cm/devicemanager/manager.go
        ``readCheckpoint``, ``callPreStartContainerIfNeeded``): the container gets what is at the paths.
        """
        server, options = self._endpoints.get(pod.resource), self._options.get(pod.resource)
        is_prepared = options is not None and options.pre_start_required
        try:
            if is_prepared:
                if server is None:
                    raise failure(grpc.StatusCode.UNAVAILABLE, f"endpoint of {pod.resource} has been stopped")
                pod.may_replace = True
                request = pb.PreStartContainerRequest(devices_ids=pod.ids)
                await server.call(f"{SERVICE}PreStartContainer", request.SerializeToString(), 30.0)
            if self.pods.get(pod.name) is not pod:
                return
            paths = self._paths(pod)
            if not pod.places:
                self.host.containers.occupy(pod, paths)
            self.host.containers.start(pod, paths, fresh=is_prepared and not any(map(self.is_former, paths)))
        except (grpc.aio.AioRpcError, OSError, KeyError) as error:
            pod.error = (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error)
            self.host.log("container not started", pod=pod.name, error=pod.error.replace("\n", " ")[:160])
        else:
            pod.error = ""
            # A call that failed may still be repeated by the plugin, which knows nothing of a start without one.
            pod.may_replace &= not is_prepared
            self.host.log("container started", pod=pod.name)

    def _paths(self, pod: Pod) -> list[str]:
        """Return the device nodes of a container. Raises KeyError if its CDI names are not resolvable."""
        names = [device.name for device in pod.answer.cdi_devices]
        names += [name for value in pod.answer.annotations.values() for name in value.split(",")]
        by_cdi = [path for name in names for path in self.host.containers.by_cdi(name)]
        return [*(node.host_path for node in pod.answer.devices), *by_cdi]

    def waiting(self) -> list[Pod]:
        """Return the pods whose containers do not run although their devices are there, and their plugins as well."""

        def can_start(pod: Pod) -> bool:
            try:
                paths = self._paths(pod)
            except KeyError:
                return self.host.containers.exist(pod.places)
            return self.host.containers.is_there(paths)

        if not self.running:
            return []
        stopped = self._options.keys() - self._endpoints.keys()
        return [pod for pod in self.pods.values() if not pod.held and pod.resource not in stopped and can_start(pod)]

    def remove(self, name: str) -> None:
        """End a pod."""
        if (pod := self.pods.pop(name, None)) is not None:
            self.host.containers.release(pod)
            self.host.log("pod removed", pod=name)
