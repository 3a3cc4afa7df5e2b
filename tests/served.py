"""A plugin that a kubelet listens to, for whoever sends it what no kubelet would: property tests and fuzzers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

import grpc

from aosp_plugin.testing import Kubelet
from tests.support import PATIENCE, RESOURCE, Nodes, listed, make_plugin, names, sockets

DOCUMENTED: Final = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
"""The codes that the plugin answers with where neither itself nor the host is at fault."""

HEALTHY: Final = names(range(8))
ILL: Final = "aosp_binder8"
"""Missing, and not forgotten yet."""


class ResourceRuntime:
    """A plugin that a kubelet listens to, and both's event loop, which turns while something is asked of it."""

    def __init__(self, runner: asyncio.Runner, nodes: Nodes, kubelet_dir: str) -> None:
        """Start both, and wait until all devices are listed, one of them Unhealthy."""
        self.run = runner.run
        self.nodes = nodes
        self._directory = kubelet_dir
        self.run(self._start())

    async def _start(self) -> None:
        self.nodes.make(*range(9))
        self.kubelet = Kubelet(self._directory)
        await self.kubelet.start()
        self.plugin = make_plugin(self.nodes, self._directory)
        self.task = asyncio.create_task(self.plugin.run())
        await listed(self.kubelet, 9)
        self.nodes.remove(8)
        await listed(self.kubelet, 8)
        self.path = os.path.join(self._directory, sockets(self._directory)[0])
        self.channel = grpc.aio.insecure_channel(f"unix:{self.path}")

    async def call(self, method: str, data: bytes) -> tuple[str, bytes, str]:
        """Send bytes as a request; return the code, the answer and the error's text."""
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        try:
            return "OK", await rpc(data, timeout=PATIENCE), ""
        except grpc.aio.AioRpcError as error:
            return error.code().name, b"", error.details() or ""

    async def say(self, data: bytes) -> None:
        """Send bytes that are no gRPC, and take what comes, until the plugin has closed the connection or we do."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()

    def goes_on(self) -> None:
        """Check that the kubelet has the stream that it had at first, and is told of a change on it."""
        self.run(self._is_told())
        view = self.kubelet.resource(RESOURCE)
        assert (len(self.kubelet.registrations), view.streams, view.streams_opened) == (1, 1, 1)
        assert not self.task.done()

    async def _is_told(self) -> None:
        self.nodes.make(9)
        await listed(self.kubelet, 9)
        self.nodes.remove(9)
        await listed(self.kubelet, 8)

    async def end(self) -> None:
        """End both."""
        await self.channel.close(None)
        self.plugin.stop()
        await self.task
        await self.kubelet.stop()
