"""A device plugin with the behaviour that a scenario sets, right or wrong, which records the order of its calls."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import grpc

from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.api import deviceplugin_pb2_grpc as rpc
from kubelet_standin.tests.stub import StubPlugin

_REGISTER = 20.0
"""Seconds; the kubelet dials for 10."""


class Probe(StubPlugin):
    """A plugin for one resource. As an async context manager it serves; :meth:`register` registers it."""

    def __init__(self, directory: str, resource: str, devices: Sequence[pb.Device] = (), *, socket: str = "") -> None:
        """Prepare the plugin; its attributes set the answers."""
        name = socket or f"probe-{resource.replace('/', '-')}.sock"
        super().__init__(directory, name=name, resource=resource)
        self.variable = "DEVICES"
        self.devices = list(devices)
        self.calls: list[str] = []
        """The names of the RPCs in order, and ``registered`` for each answered Register."""
        self.open_streams = 0
        """The number of open ListAndWatch streams."""
        self._kubelet = f"unix:{directory}/kubelet.sock"

    async def __aenter__(self) -> Self:
        """Start serving."""
        await self.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop serving, as a process that ends."""
        await self.server.stop(None)

    async def register(self, *, version: str = "v1beta1") -> str:
        """Register, and return the kubelet's error or ""."""
        request = pb.RegisterRequest(
            version=version, endpoint=self.name, resource_name=self.resource, options=self.options
        )
        async with grpc.aio.insecure_channel(self._kubelet, [("grpc.default_authority", "localhost")]) as channel:
            try:
                await rpc.RegistrationStub(channel).Register(request, timeout=_REGISTER, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
        self.calls.append("registered")
        return ""

    async def _start(self, method: str, context: Any) -> None:
        self.calls.append(method)
        await super()._start(method, context)

    async def ListAndWatch(self, _request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: N802
        """Send the devices, and then each list that ``send`` queues."""
        self.open_streams += 1
        try:
            async for message in super().ListAndWatch(_request, context):
                yield message
        finally:
            self.open_streams -= 1
