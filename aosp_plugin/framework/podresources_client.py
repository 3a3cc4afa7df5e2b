"""Which pod has which device, as the kubelet's podresources API tells it.

The kubelet is asked only when somebody wants to know, and not each time: its List takes stock of the pods that are
over (pkg/kubelet/cm/devicemanager/manager.go ``UpdateAllocatedDevices``), which it had better not do while it hands
devices out. The plugin works without it: the socket's directory may not be mounted, and an old kubelet may not have
one. Then it is not known who has what, and why.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import grpc

from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2_grpc as pb_grpc
from aosp_plugin.framework.deviceplugin.kubelet_client import identify, socket_address

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

FRESH = 3.0
"""Seconds for which an answer is not asked for again."""

VALID = 10.0
"""Seconds for which it is told, where there is no newer one yet."""

DEADLINE = 2.0
"""Seconds that the kubelet has to answer."""

PATIENCE = 0.3
"""Seconds of these that whoever wants to know is kept waiting."""

RECEIVE_LIMIT = 16 * 1024 * 1024
"""Bytes: what the kubelet may send (pkg/kubelet/apis/podresources/constants.go), four times gRPC's default."""


class Owner(NamedTuple):
    """A container."""

    namespace: str
    name: str
    """Of its pod."""
    container: str


class Allocations(NamedTuple):
    """Who has which device."""

    problem: str = ""
    """Why that is not known; empty where it is."""
    owners: Mapping[str, Mapping[str, tuple[Owner, ...]]] = {}
    """By resource and device ID. Replicas aside, a device has one owner, or while a pod follows another, two."""


class PodResources:
    """Asks the kubelet of this node. Belongs to one event loop."""

    def __init__(self, socket: str, resources: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        """``socket`` is the path of the kubelet's; empty: it is never asked. Other ``resources`` are passed over."""
        self._socket = socket
        self._resources = frozenset(resources)
        self._clock = clock
        self._asking: asyncio.Task[Allocations] | None = None
        self._asked = -math.inf
        self._latest = Allocations()
        self._answered = -math.inf

    async def current(self) -> Allocations:
        """Return who has what, as of a few seconds ago at most. Two answers that are equal are the same object."""
        if not self._socket:
            return _OFF
        if self._asking is None and self._clock() - self._asked >= FRESH:
            self._asked = self._clock()
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=PATIENCE)
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            answer = asked.result()
            self._latest = self._latest if answer == self._latest else answer
            self._answered = self._clock()
        return self._latest if self._clock() - self._answered <= VALID else _WAITING

    async def _ask(self) -> Allocations:
        """Ask once, over a connection of its own: one that failed before would go on waiting out its backoff."""
        if identify(self._socket) is None:
            return Allocations(f"there is no {self._socket}: the kubelet makes it, and a container needs it mounted")
        options = [
            ("grpc.default_authority", "localhost"),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", RECEIVE_LIMIT),
        ]
        async with grpc.aio.insecure_channel(socket_address(self._socket), options=options) as channel:
            stub = pb_grpc.PodResourcesListerStub(channel)
            try:
                answer = await stub.List(pb.ListPodResourcesRequest(), timeout=DEADLINE)
            except grpc.aio.AioRpcError as error:
                return Allocations(f"the kubelet at {self._socket} does not tell: {_reason(error)}")
        return Allocations(owners=owners_in(answer, self._resources))


_OFF = Allocations("the kubelet is not asked: pod_resources_socket is empty")
_WAITING = Allocations("the kubelet has not answered yet")


def owners_in(
    answer: pb.ListPodResourcesResponse, resources: Collection[str]
) -> dict[str, dict[str, tuple[Owner, ...]]]:
    """Return the owners of each device of ``resources`` by resource and ID; each once, in the kubelet's order."""
    owners: dict[str, dict[str, tuple[Owner, ...]]] = {name: {} for name in resources}
    for pod in answer.pod_resources:
        for container in pod.containers:
            owner = Owner(pod.namespace, pod.name, container.name)
            for devices in container.devices:
                if devices.resource_name in owners:
                    _add(owners[devices.resource_name], devices.device_ids, owner)
    return owners


def _add(owners: dict[str, tuple[Owner, ...]], device_ids: Iterable[str], owner: Owner) -> None:
    for device_id in device_ids:
        known = owners.get(device_id, ())
        if owner not in known:  # a device near two NUMA nodes comes with each of them
            owners[device_id] = (*known, owner)


def _reason(error: grpc.aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {DEADLINE:.0f} s"
    return f"{error.code().name}: {error.details()}"
