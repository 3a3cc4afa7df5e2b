"""A registered plugin that property tests and fuzzers send arbitrary requests to."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

import grpc

from kubelet_standin import Kubelet
from tests.support import PATIENCE, RESOURCE, DeviceDirectory, listed, make_plugin, names, sockets

DOCUMENTED: Final = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}
"""The gRPC codes that the plugin returns unless the plugin or the host is at fault."""

HEALTHY: Final = names(range(8))
UNHEALTHY: Final = "aosp_binder8"
"""A missing device that the plugin still lists."""


class ServedPlugin:
    """A plugin, the kubelet it is registered with, and the event loop of both, which runs only inside ``run``."""

    def __init__(self, runner: asyncio.Runner, devices: DeviceDirectory, kubelet_dir: str) -> None:
        """Start both, and wait until the kubelet lists all devices, one of them Unhealthy."""
        self.run = runner.run
        self.devices = devices
        self._kubelet_dir = kubelet_dir
        self.run(self._start())

    async def _start(self) -> None:
        self.devices.add(*range(9))
        self.kubelet = Kubelet(self._kubelet_dir)
        await self.kubelet.start()
        self.plugin = make_plugin(self.devices, self._kubelet_dir)
        self.task = asyncio.create_task(self.plugin.run())
        await listed(self.kubelet, 9)
        self.devices.remove(8)
        await listed(self.kubelet, 8)
        self.path = os.path.join(self._kubelet_dir, sockets(self._kubelet_dir)[0])
        self.channel = grpc.aio.insecure_channel(f"unix:{self.path}")

    async def call(self, method: str, data: bytes) -> tuple[str, bytes, str]:
        """Send bytes as a request; return the gRPC code, the response and the error's text."""
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        try:
            return "OK", await rpc(data, timeout=PATIENCE), ""
        except grpc.aio.AioRpcError as error:
            return error.code().name, b"", error.details() or ""

    async def send_raw(self, data: bytes) -> None:
        """Send bytes that are not gRPC on a new connection, and read until the plugin closes it."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            writer.write_eof()
            await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()

    def check_stream(self) -> None:
        """Assert that the kubelet's first stream is still open and reports changes."""
        self.run(self._change_devices())
        view = self.kubelet.resource(RESOURCE)
        assert (len(self.kubelet.registrations), view.streams, view.streams_opened) == (1, 1, 1)
        assert not self.task.done()

    async def _change_devices(self) -> None:
        self.devices.add(9)
        await listed(self.kubelet, 9)
        self.devices.remove(9)
        await listed(self.kubelet, 8)

    async def close(self) -> None:
        """Stop both."""
        await self.channel.close(None)
        self.plugin.stop()
        await self.task
        await self.kubelet.stop()
