"""Client of the kubelet's podresources API: which pod has which device, and how many devices the kubelet has.

List is to be called rarely: the kubelet then releases the devices of finished pods
(pkg/kubelet/cm/devicemanager/manager.go ``UpdateAllocatedDevices``), with a lock that allocations need. The plugin
works without the API: an old kubelet may not serve it, and its directory may not be mounted. The result then says why
the owners are unknown.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2_grpc as pb_grpc
from aosp_plugin.framework.conditions import ALLOCATIONS_UNKNOWN, Conditions
from aosp_plugin.framework.dra import slices
from aosp_plugin.framework.errors import WorkerTimeoutError
from aosp_plugin.framework.sockets import SocketIdentity, identify, open_channel
from aosp_plugin.framework.worker import Worker

T = TypeVar("T")

POD_RESOURCES_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""The kubelet's socket, in a directory of its own below its root directory."""

RECEIVE_LIMIT = 16 * 1024 * 1024
"""Maximum message size in bytes (pkg/kubelet/apis/podresources/constants.go), four times gRPC's default."""

ANSWER = 2.0
"""Seconds for the kubelet to answer."""

ALLOCATIONS_INTERVAL = 10.0
"""Seconds between two questions which devices pods have: no event reports the end of a pod."""


class Owner(NamedTuple):
    """A container that a device is allocated to."""

    namespace: str
    name: str
    """Name of the pod."""
    container: str


class Allocations(NamedTuple):
    """The owners of all devices."""

    problem: str = ""
    """Why the owners are unknown; empty if they are known."""
    owners: Mapping[str, Mapping[str, tuple[Owner, ...]]] = {}
    """By resource name and device ID, through either API. A device has one owner; two briefly while one pod replaces
    another, and several if it is replicated or its claim is shared."""
    by_plugin: Mapping[str, frozenset[str]] = {}
    """IDs of the devices that pods have through the device plugin API, by resource name."""
    by_claim: Mapping[str, frozenset[str]] = {}
    """IDs of the devices that pods have through ResourceClaims, by the name of the resource that the driver serves."""
    pods_known: bool = True
    """False if this kubelet has listed no pod but static ones since it started: it may have to get the others from the
    API server first, and containers of them may run."""


class Allocatable(NamedTuple):
    """The healthy devices that the kubelet has, whether in use or not."""

    problem: str = ""
    """Why they are unknown; empty if they are known."""
    devices: Mapping[str, Collection[str]] = {}
    """Their IDs by resource name; none for a resource that the kubelet does not have."""


class PodResources:
    """Queries the kubelet of this node. For one event loop."""

    def __init__(
        self,
        socket: str,
        resources: Collection[str],
        *,
        answer: float = ANSWER,
        ids: Callable[[str], Collection[str]] = lambda _resource: (),
        node_name: str = "",
        conditions: Conditions | None = None,
    ) -> None:
        """Query the API at the path ``socket`` for ``resources``; an empty path disables it.

        ``answer`` is how many seconds the kubelet has to answer. ``ids`` returns the known device IDs of a resource, in
        any thread. Without ``node_name``, no pod counts as static.
        """
        self._socket = socket
        self._conditions = conditions or Conditions()
        self._resources = frozenset(resources)
        self._ids = ids
        self._static = f"-{node_name}".lower()
        """The end of the names of static pods (pkg/kubelet/config/common.go ``generatePodName``)."""
        self._answer = answer
        self._worker = Worker("podresources")
        self._listed_by: SocketIdentity | None = None
        self.latest = Allocations("the kubelet has not answered yet")
        """The last result of ``query``. May be read in any thread."""
        self.answered = asyncio.Event()
        """Set when ``latest`` is replaced; its one subscriber clears it."""

    @property
    def enabled(self) -> bool:
        """Whether there is a path to query."""
        return bool(self._socket)

    def close(self) -> None:
        """End the thread. Do not query afterwards."""
        self._worker.close()

    def allocated(self) -> dict[str, int]:
        """Return the number of allocated devices by resource, from ``latest``; empty if unknown. For any thread."""
        return {resource: len(owners) for resource, owners in self.latest.owners.items() if resource in self._resources}

    async def allocatable(self) -> Allocatable:
        """Query the healthy devices of each resource. It has the kubelet's state at the time of the call."""
        try:
            response = await self._call("GetAllocatableResources", pb.AllocatableResourcesRequest())
            # Reading 100,000 devices takes 0.1 s, in which the event loop has to serve Allocate.
            return await self._run(lambda: Allocatable(devices=devices_in(response, self._resources)))
        except _QueryError as error:
            return Allocatable(str(error))

    async def query(self, others: Mapping[str, Collection[str]] = MappingProxyType({})) -> Allocations:
        """Ask the kubelet for the owners. To be called rarely; one call at a time.

        ``others`` are the known device IDs of further resources, by resource.
        """
        self.latest = await self._list(others)
        self._conditions.set(ALLOCATIONS_UNKNOWN, self.latest.problem if self.enabled else "")
        self.answered.set()
        return self.latest

    async def _list(self, others: Mapping[str, Collection[str]]) -> Allocations:
        try:
            kubelet = await self._run(partial(identify, self._socket))
            response = await self._call("List", pb.ListPodResourcesRequest())
            if await self._run(partial(identify, self._socket)) != kubelet:
                return Allocations(f"{self._socket} was replaced: the kubelet has restarted")
            known = {**{name: self._ids(name) for name in self._resources}, **others}
            found = await self._run(partial(allocations_in, response, known))
        except _QueryError as error:
            return Allocations(str(error))
        if not all(pod.name.endswith(self._static) for pod in response.pod_resources):
            self._listed_by = kubelet
        return found._replace(pods_known=kubelet == self._listed_by)

    async def _call(self, method: str, request: Message) -> Any:
        """Call a method over a new connection: one that failed before would wait for its backoff. Raises _QueryError.

        The socket's file is read in a thread, because a file system may hang.
        """
        if not self._socket:
            raise _QueryError(DISABLED.problem)
        socket = await self._run(partial(identify, self._socket))
        if socket is None:
            raise _QueryError(f"{self._socket} does not exist: is the kubelet running, and is the directory mounted?")
        try:
            new_channel = open_channel(self._socket, ("grpc.max_receive_message_length", RECEIVE_LIMIT))
        except OSError as error:
            raise _QueryError(f"cannot connect to {self._socket}: {error}") from None
        async with new_channel as channel:
            try:
                call = getattr(pb_grpc.PodResourcesListerStub(channel), method)
                return await call(request, timeout=self._answer)
            except grpc.aio.AioRpcError as error:
                problem = f"{method} at {self._socket} failed: {_describe(error, self._answer)}"
        raise _QueryError(problem)  # outside the except block: the traceback of the gRPC error refers to the call

    async def _run(self, function: Callable[[], T]) -> T:
        """Run a function in the worker thread. Raises _QueryError if the socket's directory hangs or fails."""
        try:
            return await self._worker.run(function, self._answer)
        except WorkerTimeoutError:
            raise _QueryError(f"reading {self._socket} hangs") from None
        except OSError as error:
            raise _QueryError(f"cannot read {self._socket}: {error.strerror}") from None


class _QueryError(Exception):
    """The kubelet could not be queried. The text says why."""


DISABLED = Allocations("disabled (pod_resources_socket is empty)")
"""The result if there is no path to query."""


def allocations_in(
    response: pb.ListPodResourcesResponse,
    resources: Mapping[str, Collection[str]],
) -> Allocations:
    """Return the owners of each device of ``resources``, in the kubelet's order, and by which API they have it.

    ``resources`` has the known device IDs by resource.
    """
    owners: dict[str, dict[str, tuple[Owner, ...]]] = {name: {} for name in resources}
    by_plugin: dict[str, set[str]] = {name: set() for name in resources}
    by_claim: dict[str, set[str]] = {name: set() for name in resources}
    drivers = {slices.driver_name(name): name for name in resources}
    known = cache(lambda name: slices.ids_by_name(resources[name]))
    for pod in response.pod_resources:
        for container in pod.containers:
            owner = Owner(pod.namespace, pod.name, container.name)
            for devices in container.devices:
                if devices.resource_name in owners:
                    by_plugin[devices.resource_name].update(devices.device_ids)
                    _add(owners[devices.resource_name], devices.device_ids, owner)
            for claim in container.dynamic_resources:
                for device in claim.claim_resources:
                    if (resource := drivers.get(device.driver_name)) is not None:
                        device_id = slices.device_id(device.device_name, known(resource))
                        by_claim[resource].add(device_id)
                        _add(owners[resource], [device_id], owner)
    return Allocations(owners=owners, by_plugin=_frozen(by_plugin), by_claim=_frozen(by_claim))


def _frozen(sets: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(ids) for name, ids in sets.items()}


def _add(owners: dict[str, tuple[Owner, ...]], device_ids: Iterable[str], owner: Owner) -> None:
    for device_id in device_ids:
        known_owners = owners.get(device_id, ())
        if owner not in known_owners:  # the kubelet lists a device near two NUMA nodes once for each
            owners[device_id] = (*known_owners, owner)


def devices_in(response: pb.AllocatableResourcesResponse, resources: Collection[str]) -> dict[str, set[str]]:
    """Return the IDs of the devices of each of ``resources``. A kubelet may list a device once for each NUMA node."""
    devices: dict[str, set[str]] = {name: set() for name in resources}
    for entry in response.devices:
        if entry.resource_name in devices:
            devices[entry.resource_name].update(entry.device_ids)
    return devices


def _describe(error: grpc.aio.AioRpcError, seconds: float) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {seconds:.0f} s"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED or "disabled" in (error.details() or ""):
        return f"this kubelet is too old ({error.details()})"
    return f"{error.code().name}: {error.details()}"
