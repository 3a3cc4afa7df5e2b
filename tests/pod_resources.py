"""A podresources API whose answers are those of a function of the test."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2_grpc as rpc


class Answering(rpc.PodResourcesListerServicer):
    """Answers List and GetAllocatableResources with the result of a function, which gets the context of the call."""

    def __init__(self, answer: Callable[[Any], Awaitable[Any]]) -> None:
        self.requests = 0
        """The number of requests so far."""
        self._answer = answer

    async def List(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """Call the function."""
        self.requests += 1
        return await self._answer(context)

    async def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Fail: the plugin does not call this method."""
        raise NotImplementedError

    GetAllocatableResources = List


@contextlib.asynccontextmanager
async def answering(path: str, answer: Callable[[Any], Awaitable[Any]]) -> AsyncIterator[Answering]:
    """Serve the API on a socket."""
    server, answers = grpc.aio.server(), Answering(answer)
    rpc.add_PodResourcesListerServicer_to_server(answers, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield answers
    finally:
        await server.stop(None)


def response(*containers: tuple[str, str, str, str, list[str]]) -> pb.ListPodResourcesResponse:
    """Return a response with a pod for each tuple of namespace, pod, container, resource and device IDs."""
    result = pb.ListPodResourcesResponse()
    for namespace, name, container, resource, ids in containers:
        pod = result.pod_resources.add(name=name, namespace=namespace)
        pod.containers.add(name=container).devices.add(resource_name=resource, device_ids=ids)
    return result
