"""The kubelet's directory for device plugins, and the Register call."""

from __future__ import annotations

import os
import re

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as pb_grpc
from aosp_plugin.framework.errors import RegistrationFailedError, RegistrationRefusedError
from aosp_plugin.framework.resource_names import socket_name
from aosp_plugin.framework.sockets import SocketDirectory, open_channel

VERSION = "v1beta1"
"""The only version that kubelets support (pkg/apis/deviceplugin/v1beta1/constants.go, SupportedVersions)."""

SOCKET = "kubelet.sock"

_PERMANENT = "the ResourceName .* is invalid|requested API version .* is not supported by kubelet"
"""Permanent rejections, in the kubelet's words (pkg/kubelet/cm/devicemanager/types.go,
``errInvalidResourceName`` and ``errUnsupportedVersion``); gRPC reports them with code UNKNOWN."""


class PluginDirectory(SocketDirectory):
    """The kubelet's directory for device plugins, and the names of one plugin's sockets in it."""

    def __init__(self, path: str, resource_name: str) -> None:
        """``resource_name`` is the resource of the plugin; the names of its sockets begin with its ``socket_name``."""
        super().__init__(path, socket_name(resource_name))

    @property
    def kubelet_path(self) -> str:
        """The path of the kubelet's own socket."""
        return os.path.join(self.path, SOCKET)


async def register(kubelet_socket: str, request: pb.RegisterRequest, deadline: float) -> None:
    """Register a plugin that already serves, with a deadline in seconds.

    The plugin must serve first: since 1.25 the kubelet dials it and calls GetDevicePluginOptions before it answers
    (pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go ``Register``), without a deadline of its own.

    Errors are raised outside the ``except`` block: the traceback of the original error refers to the call, and would
    keep the connection open even after the channel is closed.

    Raises RegistrationRefusedError or RegistrationFailedError.
    """
    try:
        new_channel = open_channel(kubelet_socket)
    except OSError as error:
        raise RegistrationFailedError(f"cannot connect to {kubelet_socket}: {error}") from None
    async with new_channel as channel:
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=deadline)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            text = error.details() or code
        else:
            return
    if re.search(_PERMANENT, text, re.DOTALL):
        raise RegistrationRefusedError(f"the kubelet at {kubelet_socket} refuses {request.resource_name}: {text}")
    raise RegistrationFailedError(f"{code}: {text}")
