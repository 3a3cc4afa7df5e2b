"""The kubelet's podresources API v1 (pkg/kubelet/apis/podresources/server_v1.go), from a stand-in kubelet's books.

:class:`PodResources` listens on a unix socket of its own, as the kubelet does beside the plugins' directory, and tells
whoever asks which pod has which device::

    async with Kubelet(directory) as kubelet, PodResources(kubelet, f"{directory}/pod-resources.sock") as told:
        await kubelet.admit(Pod("game", [Container("main", {GPU: 1})]))
        ...                                                # a List at told.path has the pod and its device

Not modelled: a kubelet that is stopped (it tells of no pod), pods without a device, CPUs, memory, what DRA gives, and
the kubelet's limit of requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import grpc

from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2_grpc as rpc
from aosp_plugin.framework.deviceplugin.kubelet_client import socket_address
from aosp_plugin.testing.resources import HEALTHY

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType

    from aosp_plugin.testing.kubelet import Kubelet


class PodResources(rpc.PodResourcesListerServicer):
    """The podresources API of one kubelet. An async context manager; belongs to the kubelet's event loop."""

    def __init__(
        self, kubelet: Kubelet, path: str | os.PathLike[str], namespaces: Mapping[str, str] | None = None
    ) -> None:
        """``namespaces`` are those of pods by their names; a pod that is not in it is in ``default``."""
        self.path = str(path)
        self.asked = 0
        """How many requests have come."""
        self._kubelet = kubelet
        self._namespaces = namespaces or {}
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = grpc.aio.server()
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(socket_address(self.path))
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Listen no longer; the socket is removed."""
        if self._server is not None:
            await self._server.stop(None)

    async def List(self, _request: pb.ListPodResourcesRequest, _context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802
        """Tell of every pod that has a device and is not over."""
        return pb.ListPodResourcesResponse(pod_resources=self._pods().values())

    async def GetAllocatableResources(  # noqa: N802
        self, _request: pb.AllocatableResourcesRequest, _context: Any
    ) -> pb.AllocatableResourcesResponse:
        """Tell of the healthy devices, in use or not."""
        self.asked += 1
        answer = pb.AllocatableResourcesResponse()
        for resource in self._kubelet.resources:
            devices = self._kubelet.resource(resource).devices
            healthy = [device for device, health in devices.items() if health == HEALTHY]
            answer.devices.add(resource_name=resource, device_ids=healthy)
        return answer

    async def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:  # noqa: N802
        """Tell of one pod."""
        pod = self._pods().get((request.pod_namespace, request.pod_name))
        if pod is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.pod_name} in {request.pod_namespace}")
        return pb.GetPodResourcesResponse(pod_resources=pod)

    def _pods(self) -> dict[tuple[str, str], pb.PodResources]:
        """Return the pods by namespace and name, as they are now."""
        self.asked += 1
        given: dict[tuple[str, str, str], list[str]] = {}
        for resource in self._kubelet.resources:
            for device, (pod, container) in self._kubelet.allocated(resource).items():
                given.setdefault((pod, container, resource), []).append(device)
        pods: dict[tuple[str, str], pb.PodResources] = {}
        containers: dict[tuple[str, str], pb.ContainerResources] = {}
        for (name, container, resource), devices in given.items():
            namespace = self._namespaces.get(name, "default")
            pod_resources = pods.setdefault((namespace, name), pb.PodResources(name=name, namespace=namespace))
            if (name, container) not in containers:
                containers[name, container] = pod_resources.containers.add(name=container)
            containers[name, container].devices.add(resource_name=resource, device_ids=devices)
        return pods
