"""The stand-in kubelet on a simulated host: its directory there, its pods with their containers, and its podresources.

The kubelet of the node is ``kubelet_standin.Kubelet``; here is what that does not model: containers, and pods that try
again until theirs run.
"""

import asyncio
import collections
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kubelet_standin
from kubelet_standin import AdmissionError, Container, ContainerAllocation, Event, KubeletVersion
from kubelet_standin.api import podresources_pb2 as pb
from kubelet_standin.deviceplugin.admission import UNEXPECTED
from kubelet_standin.deviceplugin.checkpoint import Checkpoint
from kubelet_standin.deviceplugin.directory import PluginDirectory
from tests.simulation.containers import Tenant
from tests.simulation.rpc import Channel, Server
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.framework.sockets import creation_time

if TYPE_CHECKING:
    from kubelet_standin.dra.claims import ClaimDevice
    from tests.simulation.host import Host

DIRECTORY = "/var/lib/kubelet/device-plugins"
SOCKET = f"{DIRECTORY}/kubelet.sock"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
RETRY = (1.0, 8.0)
"""Seconds between two attempts to start a container, shorter than a kubelet's."""
UNNOTICED = 2.0
"""Seconds in which a plugin can register and end without being noticed by another one, if no call hangs."""
LOGGED = {"plugin-registered", "plugin-refused", "stream-ended"}
"""The events of the stand-in that are in the log of the run."""


class _Directory(PluginDirectory):
    """The directory of device plugins on a simulated host. The checkpoint is not lost with it."""

    def __init__(self, host: "Host", called: Callable[[str], None]) -> None:
        super().__init__(DIRECTORY)
        self._host, self._called = host, called
        self._checkpoint = Checkpoint()

    def channel(self, path: str, *_: object) -> Any:
        return Channel(self._host, path, self._called)

    def server(self) -> Any:
        return Server(self._host)

    def alias(self) -> contextlib.AbstractContextManager[str]:
        return contextlib.nullcontext(self.path)

    def prepare(self, version: KubeletVersion, *, keep_sockets: bool = False) -> None:  # noqa: ARG002 - as there
        files = self._host.files
        files.make_directories(DIRECTORY)
        for name, inode in [*files.lookup(DIRECTORY).entries.items()]:
            if version.sweeps(inode.mode):
                files.remove(f"{DIRECTORY}/{name}")

    def read_checkpoint(self) -> Checkpoint:
        return self._checkpoint

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint


class _PodResources(kubelet_standin.PodResources):
    """The podresources API, with the pods that have claims or nothing, and with faults."""

    def __init__(self, kubelet: "Kubelet", standin: kubelet_standin.Kubelet) -> None:
        super().__init__(standin, POD_RESOURCES)
        self._owner = kubelet

    async def List(  # noqa: N802 - the RPC's name
        self, request: pb.ListPodResourcesRequest, context: Any
    ) -> pb.ListPodResourcesResponse:
        await asyncio.sleep(self._owner.answers_late)
        response = await super().List(request, context)
        response.pod_resources.add(name="aosp-plugin-x7k2p", namespace="kube-system")
        for pod, devices in self._owner.claims():
            found = response.pod_resources.add(name=pod, namespace="default").containers.add(name="main")
            claim = found.dynamic_resources.add(claim_name=pod, claim_namespace="default")
            for each in devices:
                device = claim.claim_resources.add(
                    driver_name=each.driver, pool_name=each.pool, device_name=each.device
                )
                for name in each.cdi_devices:
                    device.cdi_devices.add(name=name)
        return response

    async def GetAllocatableResources(  # noqa: N802 - the RPC's name
        self, request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        await asyncio.sleep(self._owner.answers_late)
        if self._owner.answers_wrongly:
            return pb.AllocatableResourcesResponse()
        return await super().GetAllocatableResources(request, context)


@dataclass
class Pod(Tenant):
    """A pod that has a device of a device plugin."""

    spec: kubelet_standin.Pod = field(default_factory=lambda: kubelet_standin.Pod("", ()))
    resource: str = ""
    ids: tuple[str, ...] = ()
    allocation: ContainerAllocation | None = None
    is_prepared: bool = False
    """Whether the plugin was called when its container started last."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One worker of the kubelet handles a pod."""
    error: str = ""
    """Why its container does not start, which the kubelet reports."""


class Startable:
    """What starts and stops a stand-in, in the order in which it was told to."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self.running = False
        """Whether it is to run."""
        self.events = 0
        """The number of events of the stand-in."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()

    def start(self) -> None:
        """Start."""
        self.running = True
        self._spawn(self._change(self._start))

    def stop(self) -> None:
        """Stop, as if it was killed."""
        if self.running:
            self.running = False
            self._spawn(self._change(self._stop))

    async def _change(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self._changing:
            await work()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Kubelet(Startable):
    """The kubelet of the node. Pods outlive it."""

    def __init__(self, host: "Host", version: KubeletVersion) -> None:
        super().__init__(host)
        self.pods: dict[str, Pod] = {}
        self.is_former: Callable[[str], bool] = bool
        """Returns whether a path is of a phone in a former directory, which no plugin makes fresh."""
        self.answers_late = 0.0
        """Seconds that podresources takes."""
        self.answers_wrongly = False
        self.claims: Callable[[], Iterable[tuple[str, Sequence[ClaimDevice]]]] = tuple
        """Returns the pods with claims, and what the kubelet has got of their drivers."""
        self._standin = kubelet_standin.Kubelet(
            _Directory(host, self._called),
            version=version,
            seed=host.rng.getrandbits(32),
            clock=host.monotonic,
            on_event=self._on_event,
        )
        self.faults = self._standin.faults
        self._pod_resources = _PodResources(self, self._standin)
        self._healthy: dict[str, set[str]] = {}
        """By resource: the healthy devices."""
        self._streams: collections.defaultdict[str, dict[str, float]] = collections.defaultdict(dict)
        """The names of the sockets of each resource with an open stream, and when that began."""
        self._unnoticed: set[str] = set()
        """The resources whose devices it has lost, and whose plugins get no sign of that, until the next list."""
        self._ended = ""
        """The resource whose stream has just ended, if plugins get no sign of it should its devices be lost now."""
        self._starting: dict[asyncio.Task[Any] | None, Pod] = {}
        """The pod whose container each task starts now."""

    async def _start(self) -> None:
        """Start: the sockets of plugins are removed, and the kubelet's are created."""
        await self._standin.start()
        with contextlib.suppress(FileNotFoundError):
            self.host.files.remove(POD_RESOURCES)
        await self._pod_resources.__aenter__()
        self.host.log("kubelet started")

    async def _stop(self) -> None:
        """End: connections break, sockets stay, devices are forgotten."""
        await self._pod_resources.__aexit__(None, None, None)
        await self._standin.stop()
        self._healthy.clear()
        self._streams.clear()
        self._unnoticed.clear()
        self.host.log("kubelet stopped")

    def drop_streams(self) -> None:
        """End all streams."""
        if self._standin.running:
            self._spawn(self._standin.drop_streams())

    def lose_devices(self) -> None:
        """Mark all devices unhealthy although streams are open, as after the end of another plugin of the resource."""
        if self._standin.running:
            self._standin.lose_devices()
            self._unnoticed |= self._healthy.keys()

    @property
    def resources(self) -> list[str]:
        """The names of the resources of the node."""
        return sorted(self._standin.resources)

    @property
    def lost(self) -> list[str]:
        """The resources whose devices it has lost although a stream is open, and no plugin can know it."""
        return [each for each in sorted(self._unnoticed) if self._streams[each] and not self._healthy.get(each)]

    @property
    def forgetting(self) -> list[str]:
        """The resources that it forgets minutes after their loss, although a stream has told it of devices since."""
        return [
            name for name, streams in self._streams.items() if streams and not self._standin.resource(name).connected
        ]

    def is_connected(self, resource: str) -> bool:
        """Return whether the stream of a plugin of the resource is open."""
        return self.running and bool(self._streams[resource])

    def healthy(self, resource: str) -> set[str]:
        """Return the healthy devices, which nobody changes."""
        return self._healthy.get(resource, set()) if self.running else set()

    def _on_event(self, event: Event) -> None:
        """Follow the stand-in."""
        self.events += 1
        fields: dict[str, Any] = {**event.fields}
        if event.name in LOGGED:
            self.host.log(event.name, **fields)
        resource = fields.get("resource", "")
        match event.name:
            case "stream-opened":
                self._streams[resource][fields["endpoint"]] = self.host.monotonic()
            case "stream-ended":
                self._stream_ended(resource, fields["endpoint"])
            case "devices-changed" | "resource-forgotten":
                view = self._standin.resource(resource)
                self._healthy[resource] = {name for name, health in view.devices.items() if health == "Healthy"}
                if self._healthy[resource]:
                    self._unnoticed.discard(resource)
                elif self._ended == resource or event.name == "resource-forgotten":
                    self._unnoticed.add(resource)
        if event.name != "stream-ended":
            self._ended = ""

    def _stream_ended(self, resource: str, name: str) -> None:
        began = self._streams[resource].pop(name, 0.0)
        is_short = self.host.monotonic() - max(began, self.host.hung_at) < UNNOTICED
        others = [creation_time(other) for other in self._streams[resource]]
        # The other plugin notices no end of one that was short, or that seems earlier since the clock jumped.
        self._ended = resource if others and (is_short or creation_time(name) < max(others)) else ""

    # -- pods

    async def admit(self, name: str, resource: str) -> None:
        """Give a free device to a pod, unless it is rejected."""
        spec = kubelet_standin.Pod(name, [Container("main", {resource: 1})])
        try:
            allocation = (await self._standin.admit(spec)).containers["main"]
        except (AdmissionError, RuntimeError) as error:
            self.host.log("pod rejected", pod=name, error=error)
            return
        ids = allocation.device_ids[resource]
        pod = Pod(name, shares="::" in ids[0], spec=spec, resource=resource, ids=ids, allocation=allocation)
        self.pods[name] = pod
        pod.may_replace = True
        self.host.log("pod admitted", pod=name, resource=resource, device=ids[0])
        with contextlib.suppress(KeyError):  # its CDI spec may come later
            self.host.containers.occupy(pod, self._paths(pod))
        self._spawn(self._lead(pod))

    def restart(self, pod: Pod) -> None:
        """End the container of a pod, as after a crash, and start it again."""
        if pod.held:
            self.host.containers.end(pod)
            self._spawn(self._lead(pod))

    async def _lead(self, pod: Pod) -> None:
        """Start the container of a pod, again and again until it runs."""
        while self.pods.get(pod.name) is pod and not pod.held:
            async with pod.starting:
                if self.running and not pod.held:
                    await self._start_container(pod)
            if not pod.held:
                await asyncio.sleep(self.host.rng.uniform(*RETRY))

    async def _start_container(self, pod: Pod) -> None:
        """Start a container, if the plugin prepares its devices, and if they exist.

        A kubelet that has started since the plugin registered does not call it (pkg/kubelet/cm/devicemanager/manager.go
        ``readCheckpoint``, ``callPreStartContainerIfNeeded``): the container gets what is at the paths. It has admitted
        its pods again, and rejects one whose container has not run and whose device is not healthy.
        """
        task = asyncio.current_task()
        pod.is_prepared = False
        self._starting[task] = pod
        try:
            pod.allocation = await self._standin.start_container(pod.spec, "main")
            if self.pods.get(pod.name) is not pod:
                return
            paths = self._paths(pod)
            if not pod.places:
                self.host.containers.occupy(pod, paths)
            fresh = pod.is_prepared and not any(map(self.is_former, paths))
            self.host.containers.start(pod, paths, fresh=fresh)
        except (AdmissionError, RuntimeError, OSError, KeyError) as error:
            pod.error = error.message if isinstance(error, AdmissionError) else str(error)
            self.host.log("container not started", pod=pod.name, error=pod.error.replace("\n", " ")[:160])
            if isinstance(error, AdmissionError) and error.reason == UNEXPECTED:
                self.remove(pod.name)
        else:
            pod.error = ""
            # A call that failed may still be repeated by the plugin, which knows nothing of a start without one.
            pod.may_replace &= not pod.is_prepared
            self.host.log("container started", pod=pod.name)
        finally:
            del self._starting[task]

    def _called(self, method: str) -> None:
        """Note that a plugin is called: it may replace the devices of the container that starts."""
        pod = self._starting.get(asyncio.current_task())
        if pod is not None and method.endswith("/PreStartContainer"):
            pod.may_replace = pod.is_prepared = True

    def _paths(self, pod: Pod) -> list[str]:
        """Return the device nodes of a container. Raises KeyError if its CDI names are not resolvable."""
        assert pod.allocation is not None
        names = [*pod.allocation.cdi_devices]
        names += [name for value in pod.allocation.annotations.values() for name in value.split(",")]
        by_cdi = [path for name in names for path in self.host.containers.by_cdi(name)]
        return [*(node.host_path for node in pod.allocation.devices), *by_cdi]

    def waiting(self) -> list[Pod]:
        """Return the pods whose containers do not run although their devices are there, and their plugins as well."""

        def can_start(pod: Pod) -> bool:
            view = self._standin.resource(pod.resource)
            if view.pre_start_required and not view.connected:
                return False
            try:
                paths = self._paths(pod)
            except KeyError:
                return self.host.containers.exist(pod.places)
            return self.host.containers.is_there(paths)

        return [pod for pod in self.pods.values() if not pod.held and can_start(pod)] if self.running else []

    def remove(self, name: str) -> None:
        """End a pod."""
        if (pod := self.pods.pop(name, None)) is not None:
            self.host.containers.release(pod)
            self._spawn(self._standin.finish(pod.spec))
            self.host.log("pod removed", pod=name)
