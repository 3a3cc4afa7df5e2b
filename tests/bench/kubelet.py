"""A minimal kubelet's side of v1beta1, which records the arrival times, and its podresources API, without pods.

As in kubelets from 1.25 to 1.36, Register dials the plugin and calls ListAndWatch before it responds
(pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go ``Register``, ``handler.go``). Times are of
``time.perf_counter``, taken before a message is decoded.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2

SOCKET = "kubelet.sock"
OPTIONS = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
"""A kubelet opens new connections; grpcio shares connections and their backoff within a process by default."""

PATIENCE = 30.0
"""The limit for waiting for a plugin, in seconds."""


class Listed(NamedTuple):
    """A message of ListAndWatch."""

    at: float
    data: bytes

    @property
    def devices(self) -> list[pb.Device]:
        """The devices."""
        return list(pb.ListAndWatchResponse.FromString(self.data).devices)


class Kubelet:
    """Accepts any plugin, and keeps its newest stream."""

    def __init__(self, directory: str, pod_resources: str) -> None:
        """Use the plugin directory ``directory``, which exists, and the socket ``pod_resources``."""
        self.directory = directory
        self.pod_resources = pod_resources
        self._changed = threading.Condition()
        self._messages: list[Listed] = []
        self._resource = self._endpoint = ""
        self._queries = 0
        self._channel: grpc.Channel | None = None
        self._server: grpc.Server | None = None

    @property
    def path(self) -> str:
        """The socket on which plugins register."""
        return os.path.join(self.directory, SOCKET)

    def start(self) -> float:
        """Listen; return the time at which the socket existed."""
        server = grpc.server(ThreadPoolExecutor(4))
        register = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        pod_resources = {
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._allocatable),
            "List": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
        }
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),
                grpc.method_handlers_generic_handler("v1.PodResourcesLister", pod_resources),
            )
        )
        self._reset()
        server.add_insecure_port(f"unix:{self.pod_resources}")
        server.add_insecure_port(f"unix:{self.path}")
        created = time.perf_counter()
        server.start()
        self._server = server
        return created

    def stop(self) -> None:
        """End as a killed kubelet does: close connections, and keep the plugins' sockets."""
        if self._server is not None:
            self._server.stop(None).wait()
        if self._channel is not None:
            self._channel.close()
        for path in (self.path, self.pod_resources):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def clean(self) -> None:
        """Remove all sockets, as a kubelet that starts does (manager.go ``Start``)."""
        for path in Path(self.directory).glob("*.sock"):
            path.unlink(missing_ok=True)  # the plugin may remove its socket at the same time

    def _reset(self) -> None:
        with self._changed:
            self._messages, self._queries = [], 0

    def _register(self, request: pb.RegisterRequest, _context: grpc.ServicerContext) -> pb.Empty:
        channel = grpc.insecure_channel(f"unix:{os.path.join(self.directory, request.endpoint)}", OPTIONS)
        grpc.channel_ready_future(channel).result(10)
        self._channel = channel
        threading.Thread(target=self._list_and_watch, args=(channel,), daemon=True).start()
        with self._changed:
            self._resource = request.resource_name
            self._endpoint = os.path.join(self.directory, request.endpoint)
            self._changed.notify_all()
        return pb.Empty()

    def _allocatable(self, _request: bytes, _context: grpc.ServicerContext) -> bytes:
        """Return the healthy devices, each in an entry of its own (pkg/kubelet/apis/podresources/server_v1.go)."""
        with self._changed:
            listed = self._messages[-1].devices if self._messages else []
        healthy = [device.ID for device in listed if device.health == "Healthy"]
        entries = [podresources_pb2.ContainerDevices(resource_name=self._resource, device_ids=[ID]) for ID in healthy]
        response = podresources_pb2.AllocatableResourcesResponse(devices=entries).SerializeToString()
        with self._changed:
            self._queries += 1
            self._changed.notify_all()
        return bytes(response)

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

    def listed(self, matches: Callable[[Sequence[pb.Device]], bool]) -> Listed:
        """Wait for a message whose devices match, from the newest one on. Raises TimeoutError."""
        deadline = time.perf_counter() + PATIENCE
        received = max(len(self.messages) - 1, 0)
        while time.perf_counter() < deadline:
            messages = self._after(received)
            for message in messages:
                if matches(message.devices):
                    return message
            received += len(messages)
        raise TimeoutError(f"the expected devices were not listed within {PATIENCE:.0f} s")

    def _after(self, received: int) -> list[Listed]:
        """Return the messages after the first ``received``; wait up to a second for one."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._messages) > received, 1)
            return self._messages[received:]

    def has(self, count: int) -> Listed:
        """Wait until ``count`` healthy devices are listed. Raises TimeoutError."""
        return self.listed(lambda devices: sum(device.health == "Healthy" for device in devices) == count)

    def queried(self) -> None:
        """Wait until the plugin has queried its allocatable devices since the start. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._queries, PATIENCE):
                raise TimeoutError("the podresources API was not queried")

    @property
    def plugin_socket(self) -> str:
        """The socket of the plugin that registered last. Raises TimeoutError before the first registration."""
        with self._changed:
            if not self._endpoint:
                raise TimeoutError("no plugin has registered")
            return self._endpoint


def allocate(ids: Sequence[str]) -> bytes:
    """Return the Allocate request for a container with these devices."""
    container = pb.ContainerAllocateRequest(devices_ids=ids)
    return pb.AllocateRequest(container_requests=[container]).SerializeToString()
