"""Keeps a device plugin registered: it calls the kubelet.

A kubelet never calls ListAndWatch a second time by itself (pkg/kubelet/cm/devicemanager/endpoint.go ``run``): after the
stream has ended for any reason, the node has no devices until the plugin registers again.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable

import grpc

from aosp_plugin.framework import sockets
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as pb_grpc
from aosp_plugin.framework.backend import file_stem
from aosp_plugin.framework.deviceplugin.servicer import Servicer
from aosp_plugin.framework.errors import RegistrationFailedError
from aosp_plugin.framework.file_events import Subscription
from aosp_plugin.framework.plugin_socket import DirectoryView, Handlers
from aosp_plugin.framework.registration import Loss, Registration
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Stop, background_task, complete_unless

VERSION = "v1beta1"
"""The only version that kubelets support (pkg/apis/deviceplugin/v1beta1/constants.go, SupportedVersions)."""

KUBELET_SOCKET = "kubelet.sock"


class PluginDirectory(sockets.SocketDirectory):
    """The kubelet's directory for device plugins, and the names of one plugin's sockets in it."""

    def __init__(self, path: str, resource_name: str, prefix: str = "") -> None:
        """``resource_name`` is the resource of the plugin; the names of its sockets begin with ``prefix``."""
        super().__init__(path, file_stem(resource_name), prefix)
        self.kubelet_path = os.path.join(path, KUBELET_SOCKET)

    def remove(self, name: str) -> None:
        """Remove a socket of this process, or leave it to a plugin of the resource that started earlier.

        The kubelet drops the devices when the later plugin ends (see ``other_plugins``). If that one lived between two
        scans of the earlier one, nothing but its socket shows it, whose new name wakes the earlier plugin. The next
        registration removes it. Raises OSError.
        """
        created = sockets.creation_time(name)
        if self.was_registered(name) and any(other.created < created for other in self.other_plugins(name)):
            os.rename(os.path.join(self.path, name), os.path.join(self.path, self.left_name(name)))
        else:
            super().remove(name)

    def ended_plugins(self, own_endpoint: str) -> list[str]:
        """Return the sockets of registered plugins of the resource that have ended; ``own_endpoint`` is of none."""
        names = [name for name in self.socket_names() if name != own_endpoint and self.was_registered(name)]
        paths = {name: os.path.join(self.path, name) for name in names}
        return [name for name in names if name == self.left_name(name) or sockets.listener(paths[name]) is None]


class Supervisor(Registration):
    """Keeps one resource registered with the kubelet."""

    def __init__(
        self,
        resource: str,
        new_servicer: Callable[[Callable[[], None]], Servicer],
        *,
        directory: PluginDirectory,
        files: Subscription,
        stop: Stop,
        runtime: Runtime,
    ) -> None:
        """``files`` is used by this object alone; ``stop`` ends ``run``.

        ``new_servicer`` returns the service of a registration, which calls its argument when its streams have changed.
        """
        super().__init__(directory, files, stop, name=f"{resource} kubelet", resource=resource, runtime=runtime)
        self._plugin_directory = directory
        self._new_servicer = new_servicer
        self._kubelet: sockets.SocketIdentity | None = None
        """The kubelet with which the plugin has registered last; None if it had no socket."""
        self._last_kubelet: sockets.SocketIdentity | None = None
        """The last kubelet with a socket with which the plugin has registered."""
        self._failed_with: sockets.SocketIdentity | None = None
        self._requested: Loss | None = None
        self._servicer: Servicer | None = None
        self._response: asyncio.Task[None] | None = None
        self._checked = False
        self.view_due = asyncio.Event()
        """Set after each registration, when the kubelet has also called ListAndWatch, and when another plugin of the
        resource has started or ended. Its one subscriber, a ``KubeletView``, clears it."""

    async def check(self) -> None:
        """Raise KubeletDirectoryError if serving is impossible. Only the first call checks: the directory may go."""
        if not self._checked:
            self._checked = True
            with contextlib.suppress(RegistrationFailedError):  # the first registration reports it
                await self._monitor.run("use", self._directory.check, self._timings.hang)

    def reregister(self, loss: Loss) -> None:
        """End the current registration and register again, with ``loss`` in the log; no effect if not registered.

        To be called when the kubelet has lost the devices although its stream is open.
        """
        if self.registered:
            self._metrics.lost_by_kubelet.labels(self._resource).inc()
            self._requested = loss
            self._files.changed.set()

    def silence(self) -> None:
        """Send no more lists in the current registration, except the first list of a stream."""
        if self._servicer is not None:
            self._servicer.silence()

    async def other_plugins(self) -> tuple[tuple[sockets.OtherPlugin, ...], list[str]] | None:
        """Return the other plugins of the resource on this node, and the sockets of those that have ended.

        None if unknown, or ``stop`` is set first.
        """
        own, directory = self.registered_endpoint, self._plugin_directory

        def find() -> tuple[tuple[sockets.OtherPlugin, ...], list[str]]:
            return directory.other_plugins(own), directory.ended_plugins(own)

        with contextlib.suppress(RegistrationFailedError):
            return await self._monitor.run("read", find)
        return None

    def _services(self, endpoint: str) -> tuple[Handlers, Callable[[], None]]:  # noqa: ARG002 - in the request
        self._kubelet = self._view.kubelet
        self._servicer = servicer = self._new_servicer(self._files.changed.set)
        return [servicer.handler()], servicer.finish

    @contextlib.asynccontextmanager
    async def _begin(self, view: DirectoryView) -> AsyncIterator[None]:
        """Call Register."""
        self._kubelet, self._requested = view.kubelet, None
        if view.kubelet is not None:
            if self._last_kubelet not in {None, view.kubelet}:
                self._metrics.kubelet_restarts.labels(self._resource).inc()
            self._last_kubelet = view.kubelet
        request = pb.RegisterRequest(
            version=VERSION,
            endpoint=self.endpoint,
            resource_name=self._resource,
            options=self._servicer.options if self._servicer is not None else None,
        )
        call = register(self._directory.kubelet_path, request, self._timings.register)
        async with background_task(call) as self._response:
            self._response.add_done_callback(lambda _: self._files.changed.set())
            yield

    async def _drain(self) -> None:
        """Wait for the requests of starting containers.

        A kubelet that runs closes its connection, with the requests on it, when its stream ends
        (pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go ``Disconnect``).
        """
        if self._servicer is not None:
            await complete_unless(self._stop, self._servicer.all_answered(self._timings.pre_start))

    def _progress(self, view: DirectoryView) -> Loss | None:
        servicer, response = self._servicer, self._response
        if servicer is None or response is None:
            return None
        if servicer.stream_ended:
            return Loss.STREAM_ENDED
        if self._restarted(view):
            return Loss.KUBELET_RESTARTED
        if self.registered or not response.done():
            return self._requested
        response.result()
        if servicer.stream_opened:
            self._completed()
            self.view_due.set()
            return None
        self._deadline = self._deadline or self._clock() + self._timings.stream
        return Loss.NO_STREAM if self._clock() >= self._deadline else None

    def _restarted(self, view: DirectoryView) -> bool:
        """Return whether another kubelet has started since the last Register; a missing kubelet.sock does not count."""
        return view.kubelet not in {None, self._kubelet}

    def _starts_over(self, loss: Loss | None) -> bool:  # noqa: ARG002 - each kubelet is tried at once
        before, self._failed_with = self._failed_with, self._kubelet
        return self._kubelet != before


async def register(kubelet_socket: str, request: pb.RegisterRequest, deadline: float) -> None:
    """Register a plugin that already serves, with a deadline in seconds.

    The plugin must serve first: since 1.25 the kubelet dials it and calls GetDevicePluginOptions before it answers
    (pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go ``Register``), without a deadline of its own.

    Errors are raised outside the ``except`` block: the traceback of the original error refers to the call, and would
    keep the connection open even after the channel is closed.

    Raises RegistrationFailedError.
    """
    try:
        new_channel = sockets.open_channel(kubelet_socket)
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
    raise RegistrationFailedError(f"{code}: {text}")
