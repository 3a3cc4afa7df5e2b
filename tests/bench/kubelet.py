"""The kubelet's side of v1beta1, as plain as it can be, with the time at which everything arrived.

As kubelets from 1.25 to 1.36 do, Register dials back, has ListAndWatch called and only then answers
(pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go ``Register``, ``handler.go``). Times are of
``time.perf_counter``, taken before a message is decoded.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SOCKET = "kubelet.sock"
OPTIONS = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
"""A kubelet dials anew; grpcio otherwise shares a connection, and its pauses after a failure, within the process."""

PATIENCE = 30.0
"""Seconds for whatever a plugin is waited for."""


class Listed(NamedTuple):
    """A message of ListAndWatch."""

    at: float
    data: bytes

    @property
    def devices(self) -> list[pb.Device]:
        """The devices."""
        return list(pb.ListAndWatchResponse.FromString(self.data).devices)


class Kubelet:
    """Takes whatever plugin registers, and keeps its newest stream."""

    def __init__(self, directory: str) -> None:
        """``directory`` is the plugin directory, and is there."""
        self.directory = directory
        self._changed = threading.Condition()
        self._messages: list[Listed] = []
        self._registered_at = 0.0
        self._channel: grpc.Channel | None = None
        self._server: grpc.Server | None = None

    @property
    def path(self) -> str:
        """The socket on which plugins register."""
        return os.path.join(self.directory, SOCKET)

    def start(self) -> float:
        """Listen; return when the socket was there."""
        server = grpc.server(ThreadPoolExecutor(4))
        register = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),)
        )
        self._forget()
        server.add_insecure_port(f"unix:{self.path}")
        made = time.perf_counter()
        server.start()
        self._server = server
        return made

    def stop(self) -> None:
        """End as a kubelet that is killed does: connections are cut, the sockets of plugins stay."""
        if self._server is not None:
            self._server.stop(None).wait()
        if self._channel is not None:
            self._channel.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def clean(self) -> None:
        """Remove all sockets, as a kubelet that starts does (manager.go ``Start``)."""
        for name in os.listdir(self.directory):
            with contextlib.suppress(FileNotFoundError):  # a plugin removes its own at the same time
                os.unlink(os.path.join(self.directory, name))

    def _forget(self) -> None:
        with self._changed:
            self._messages, self._registered_at = [], 0.0

    def _register(self, request: pb.RegisterRequest, _context: grpc.ServicerContext) -> pb.Empty:
        arrived = time.perf_counter()
        channel = grpc.insecure_channel(f"unix:{os.path.join(self.directory, request.endpoint)}", OPTIONS)
        grpc.channel_ready_future(channel).result(10)
        self._channel = channel
        threading.Thread(target=self._list_and_watch, args=(channel,), daemon=True).start()
        with self._changed:
            self._registered_at = arrived
            self._changed.notify_all()
        return pb.Empty()

    def _list_and_watch(self, channel: grpc.Channel) -> None:
        stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch", None, None)(b"")
        with contextlib.suppress(grpc.RpcError):
            for data in stream:
                with self._changed:
                    self._messages.append(Listed(time.perf_counter(), data))
                    self._changed.notify_all()

    @property
    def messages(self) -> list[Listed]:
        """All messages since the start."""
        with self._changed:
            return list(self._messages)

    def registered(self) -> float:
        """Wait until a plugin has registered; return when. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._registered_at, PATIENCE):
                raise TimeoutError("no plugin has registered")
            return self._registered_at

    def listed(self, fits: Callable[[Sequence[pb.Device]], bool]) -> Listed:
        """Wait for a message whose devices fit; return the first from now on, or the newest. Raises TimeoutError."""
        deadline = time.perf_counter() + PATIENCE
        seen = max(len(self.messages) - 1, 0)
        while time.perf_counter() < deadline:
            fresh = self._after(seen)
            for message in fresh:
                if fits(message.devices):
                    return message
            seen += len(fresh)
        raise TimeoutError(f"the devices that are waited for were not listed within {PATIENCE:.0f} s")

    def _after(self, seen: int) -> list[Listed]:
        """Return the messages after so many; waits for a second where there is none."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._messages) > seen, 1)
            return self._messages[seen:]

    def has(self, count: int) -> Listed:
        """Wait until ``count`` healthy devices are listed. Raises TimeoutError."""
        return self.listed(lambda devices: sum(device.health == "Healthy" for device in devices) == count)

    @contextlib.contextmanager
    def calling(self, rpc: str) -> Iterator[Callable[[bytes], bytes]]:
        """Yield a function that calls ``rpc`` of the plugin, with bytes that are not looked at."""
        if self._channel is None:
            raise TimeoutError("no plugin has registered")
        call = self._channel.unary_unary(f"/v1beta1.DevicePlugin/{rpc}", None, None)
        yield lambda data: call(data, timeout=PATIENCE)


def allocate(ids: Sequence[str]) -> bytes:
    """Return the request of a pod with one container for these devices."""
    container = pb.ContainerAllocateRequest(devices_ids=ids)
    return pb.AllocateRequest(container_requests=[container]).SerializeToString()


def prefer(ids: Sequence[str], size: int) -> bytes:
    """Return the question which ``size`` of the free ``ids`` a container should get."""
    container = pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=size)
    return pb.PreferredAllocationRequest(container_requests=[container]).SerializeToString()
