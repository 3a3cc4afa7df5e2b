"""Keeps a device plugin registered: it calls the kubelet, also after another plugin of the resource has ended.

A kubelet never calls ListAndWatch a second time by itself (pkg/kubelet/cm/devicemanager/endpoint.go ``run``): after the
stream has ended for any reason, the node has no devices until the plugin registers again.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable

import grpc

from aosp_plugin.framework import sockets
from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api import deviceplugin_pb2_grpc as pb_grpc
from aosp_plugin.framework.conditions import OVERRIDDEN, SECOND_PLUGIN, Condition
from aosp_plugin.framework.deviceplugin.servicer import Servicer
from aosp_plugin.framework.errors import RegistrationFailedError
from aosp_plugin.framework.file_events import Subscription
from aosp_plugin.framework.plugin_socket import DirectoryView, Handlers
from aosp_plugin.framework.registration import Loss, Registration
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Stop, background_task, complete_unless

VERSION = "v1beta1"
"""The only version that kubelets support (pkg/apis/deviceplugin/v1beta1/constants.go, SupportedVersions)."""


class Supervisor(Registration):
    """Keeps one resource registered with the kubelet."""

    def __init__(
        self,
        resource: str,
        new_servicer: Callable[[Callable[[], None]], Servicer],
        *,
        directory: sockets.PluginDirectory,
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


class OtherPlugins:
    """Keeps track of the other plugins of one resource, by their sockets in the kubelet's directory.

    Two plugins of one resource override each other, and the end of one may take the devices of the other. Before 1.37,
    a kubelet keeps one current plugin per resource, the last one that registered; when that one ends, it marks the
    devices unhealthy, although the stream of the remaining plugin stays open
    (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go ``runClient``; manager.go ``runEndpoint`` in 1.20). The
    remaining plugin therefore registers again. It does so even if it has already sent another list: the kubelet then
    counts the devices as healthy, but rejects each pod. A plugin that ends leaves its socket for the earlier one, which
    may not have seen it run.

    A rolling update with maxSurge runs two plugins of a resource on purpose, perhaps with different configurations. The
    kubelet calls the plugin that registered later, but takes the list of whichever plugin sent one last. The earlier
    plugin is therefore overridden: it sends no more lists, changes nothing on the host, and does not compete for the
    registration. The numbers in the names of the sockets decide which is later, so that the plugins always agree; a
    plugin that the kubelet has not registered overrides none. When the overridden plugin registers again, it sends
    lists and changes the host again: the later plugin may only be registering again, or hang. If the clock was set back
    between their starts, the kubelet has the plugin that counts as overridden, until the other one ends.

    For the event loop.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        resource: str,
        runtime: Runtime,
        *,
        pause_updates: Callable[[bool], None],
        earlier_ended: Callable[[], None],
    ) -> None:
        """Scan the kubelet's directory whenever ``supervisor`` notices a change of it.

        ``pause_updates`` is called with True when a later plugin has taken over kubelet and host, and with False when
        that has gone and the present registration has ended. ``earlier_ended`` is called when an earlier plugin has
        ended: the kubelet may have its list, and it may have changed the host.
        """
        self._supervisor = supervisor
        self._resource = resource
        self._conditions = runtime.conditions
        self._pause_updates = pause_updates
        self._earlier_ended = earlier_ended
        self._count = runtime.metrics.other_plugins.labels(resource)
        self._timings = runtime.timings
        self._clock = runtime.clock
        self._own_endpoint = ""
        """The registration that the last scan was made for."""
        self.found: tuple[sockets.OtherPlugin, ...] = ()
        self._has_followers = self.overridden = False
        """Whether there are plugins that started later, or sockets of such plugins, and whether one of them has
        registered and taken over. It may have registered just before its end."""
        self._silent = False
        """Whether the plugin sends no lists in its present registration, because a later plugin had taken over."""

    async def run(self) -> None:
        """Scan after each change of the directory, and at intervals while there is another plugin, until cancelled."""
        while True:
            await self._scan()
            # The kubelet writes its checkpoint into the directory with each allocation.
            await self._clock.sleep(min(self._timings.retry, self._timings.recheck))
            is_due = self._has_followers and not (self.overridden and self.found)  # it may end
            timeout = self._timings.retry if is_due else self._timings.recheck if self.found else None
            await self._clock.wait(self._supervisor.directory_changed, timeout=timeout)

    async def _scan(self) -> None:
        self._supervisor.directory_changed.clear()
        own_endpoint = self._supervisor.registered_endpoint
        answer = await self._supervisor.other_plugins()
        if answer is None:
            return
        found, stale = answer
        if own_endpoint != self._supervisor.registered_endpoint:  # they may be later than the former endpoint
            self._supervisor.directory_changed.set()
            return
        before, self.found = self.found, found
        if [other.created for other in found] != [other.created for other in before]:
            self._supervisor.view_due.set()
            self._count.set(len(found))
        # A plugin that registers again changes its socket: it has ended when two scans in a row do not find it.
        own_creation = sockets.creation_time(own_endpoint) if own_endpoint else math.inf
        followers = [other for other in (*found, *before) if other.created > own_creation]
        same, self._own_endpoint = own_endpoint == self._own_endpoint, own_endpoint
        ended = same and self._has_followers and not followers
        self._has_followers = bool(followers) or any(sockets.creation_time(name) > own_creation for name in stale)
        later = any(other.registered for other in followers)
        self.overridden = later
        self._report()
        was_silent, self._silent = self._silent, later or (same and self._silent)
        if self._silent != was_silent or (later and not same):
            if later:
                self._supervisor.silence()
            self._pause_updates(later)
        if ended:
            self._supervisor.reregister(Loss.LATER_PLUGIN_ENDED)
        elif len(found) < len(before) and not later:
            self._earlier_ended()

    def _report(self) -> None:
        """Report the other plugins, and whether one of them has taken over."""
        conditions = []
        if self.found:
            names = [str(plugin) for plugin in self.found]
            text = f"another plugin of this resource runs on this node: {', '.join(names)}"
            conditions.append(Condition(SECOND_PLUGIN, text, fields={"endpoint": ",".join(names)}))
        if self.overridden:
            conditions.append(Condition(OVERRIDDEN, "a plugin of this resource that registered later has taken over"))
        self._conditions.replace("other plugins", self._resource, conditions)
