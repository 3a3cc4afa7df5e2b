"""The kubelet's podresources API v1 (pkg/kubelet/apis/podresources/server_v1.go) for a stand-in kubelet.

:class:`PodResources` listens on its own unix socket, as the kubelet does, and returns the devices of each pod::

    async with Kubelet(directory) as kubelet, PodResources(kubelet, f"{directory}/pod-resources.sock") as server:
        await kubelet.admit(Pod("game", [Container("main", {GPU: 1})]))
        ...                                                # List at server.path returns the pod and its device

GetAllocatableResources returns the healthy devices. A stopped kubelet answers UNAVAILABLE, as gRPC does for the socket
that a killed kubelet leaves behind.

Not modelled: pods without devices, CPUs, memory, DRA, and the kubelet's rate limit.
"""

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import grpc

from kubelet_standin.api import podresources_pb2 as pb
from kubelet_standin.api import podresources_pb2_grpc as rpc
from kubelet_standin.deviceplugin.kubelet import Kubelet
from kubelet_standin.deviceplugin.resources import HEALTHY
from kubelet_standin.sockets import socket_address


class PodResources(rpc.PodResourcesListerServicer):
    """The podresources API of one kubelet: an async context manager on the kubelet's event loop."""

    def __init__(
        self, kubelet: Kubelet, path: str | os.PathLike[str], namespaces: Mapping[str, str] | None = None
    ) -> None:
        """``namespaces`` maps pod names to namespaces, now and later; other pods are in ``default``."""
        self.path = str(path)
        self.requests = 0
        """The number of requests so far."""
        self._kubelet = kubelet
        self._namespaces = {} if namespaces is None else namespaces
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        """Start listening."""
        self._server = self._kubelet.plugin_directory.server()
        rpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(socket_address(self.path))
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening, and remove the socket."""
        if self._server is not None:
            await self._server.stop(None)

    async def List(self, _request: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:  # noqa: N802
        """Return all active pods that have devices."""
        await self._start(context)
        return pb.ListPodResourcesResponse(pod_resources=self._pods().values())

    async def GetAllocatableResources(  # noqa: N802
        self, _request: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        """Return the healthy devices, in use or not, each in an entry of its own (server_v1.go of 1.34)."""
        await self._start(context)
        response = pb.AllocatableResourcesResponse()
        for resource in self._kubelet.resources:
            for device, health in self._kubelet.resource(resource).devices.items():
                if health == HEALTHY:
                    response.devices.add(resource_name=resource, device_ids=[device])
        return response

    async def Get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:  # noqa: N802
        """Return one pod; NOT_FOUND if it has no devices."""
        await self._start(context)
        pod = self._pods().get((request.pod_namespace, request.pod_name))
        if pod is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.pod_name} in {request.pod_namespace}")
        return pb.GetPodResourcesResponse(pod_resources=pod)

    async def _start(self, context: Any) -> None:
        """Count a request; fail it if the kubelet is stopped."""
        self.requests += 1
        if not self._kubelet.running:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet is stopped")

    def _pods(self) -> dict[tuple[str, str], pb.PodResources]:
        """Return the current pods by namespace and name."""
        pods: dict[tuple[str, str], pb.PodResources] = {}
        containers: dict[tuple[str, str], pb.ContainerResources] = {}
        for name, entry in self._kubelet.allocations():
            if not self._kubelet.is_listed(name, entry.container):
                continue
            namespace = self._namespaces.get(name, "default")
            pod_resources = pods.setdefault((namespace, name), pb.PodResources(name=name, namespace=namespace))
            if (name, entry.container) not in containers:
                containers[name, entry.container] = pod_resources.containers.add(name=entry.container)
            containers[name, entry.container].devices.add(resource_name=entry.resource, device_ids=entry.device_ids)
        return pods
