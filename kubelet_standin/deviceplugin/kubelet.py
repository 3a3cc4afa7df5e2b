"""The stand-in kubelet: a device manager on real unix sockets."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubelet_standin.deviceplugin.admission import Admission
from kubelet_standin.deviceplugin.checkpoint import CheckpointEntry
from kubelet_standin.deviceplugin.directory import PluginDirectory
from kubelet_standin.deviceplugin.faults import Faults
from kubelet_standin.deviceplugin.plugins import PluginManager, PluginSettings
from kubelet_standin.deviceplugin.pods import AdmissionError, AdmittedPod, ContainerAllocation, Pod
from kubelet_standin.deviceplugin.registration import Registration, RegistrationService, listen
from kubelet_standin.deviceplugin.resources import ManagerState, ResourceState, ResourceView
from kubelet_standin.events import Event
from kubelet_standin.observable import Observable
from kubelet_standin.versions import NEWEST, KubeletVersion

GRACE_PERIOD: Final = 300.0
DIAL_TIMEOUT: Final = 10.0
MAX_MESSAGE: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class _Run:
    """The objects that exist between a start and the next stop."""

    state: ManagerState
    plugins: PluginManager
    admission: Admission
    stop_listening: Callable[[], Awaitable[None]]


class Kubelet(Observable[_Run]):
    """A kubelet's device manager: an async context manager that belongs to one event loop.

    A stop is like a crash: the streams break, and kubelet.sock stays, but refuses connections.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | PluginDirectory,
        *,
        version: KubeletVersion = NEWEST,
        seed: int = 0,
        grace_period: float = GRACE_PERIOD,
        clock: Callable[[], float] = time.monotonic,
        max_message: int = MAX_MESSAGE,
        dial_timeout: float = DIAL_TIMEOUT,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        """Prepare a kubelet for ``directory``, which it creates when it starts; a path if it is one of this machine.

        - ``seed`` determines everything that is random in the kubelet, such as the iteration order of Go's maps.
        - ``grace_period``: a resource is forgotten when its plugin is absent for longer; in seconds of ``clock``.
        - ``max_message``: the largest message that a plugin may send, in bytes.
        - ``dial_timeout``: the time that a plugin has to accept the connection, in seconds.
        - ``on_event`` is called with each :class:`~kubelet_standin.events.Event`, on the event loop.

        Raises OSError if the directory's path is too long for a socket.
        """
        self.plugin_directory = directory if isinstance(directory, PluginDirectory) else PluginDirectory(directory)
        self.directory = self.plugin_directory.path
        super().__init__("kubelet", on_event, directory=self.directory, version=str(version))
        self.version = version
        self.faults = Faults()
        self.socket_path = self.plugin_directory.socket_path
        self.checkpoint_path = self.plugin_directory.checkpoint_path
        self._settings = PluginSettings(self.plugin_directory, version, grace_period, dial_timeout, max_message, clock)
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._registrations: list[Registration] = []
        self._pods: dict[str, str] = {}
        self._ending: set[tuple[str, str]] = set()
        """The init containers that are no sidecars, by the names of pod and container."""
        self._active: set[str] = set()
        self._started: set[tuple[str, str]] = set()

    async def _start(self) -> _Run:
        """Read the checkpoint, create and clean up the directory, listen (manager.go:235-281, in this order)."""
        state = ManagerState(self.plugin_directory.read_checkpoint())
        # The pods of an earlier object on this directory exist until they are finished; only their UIDs are known.
        for uid in sorted({entry.pod_uid for entry in state.entries.values()} - self._pods.keys()):
            self._pods[uid] = uid
            self._active.add(uid)
        self.plugin_directory.prepare(self.version, keep_sockets=self.faults.keep_sockets)

        def save() -> None:
            self.plugin_directory.write_checkpoint(state.checkpoint())

        plugins = PluginManager(self._settings, state, self.faults, save=save, emit=self._emit, notify=self._notify)
        service = RegistrationService(
            self.faults, self._registrations, plugins.accept, emit=self._emit, notify=self._notify
        )
        admission = Admission(
            state=state,
            endpoints=plugins.current,
            rng=self._rng,
            is_active=self._active.__contains__,
            save=save,
            started=self._started,
        )
        try:
            stop_listening = await listen(self.plugin_directory, service, garbage=self.faults.garbage_register)
        except BaseException:
            await plugins.close()
            raise
        return _Run(state, plugins, admission, stop_listening)

    async def _stop(self, run: _Run) -> None:
        with contextlib.suppress(OSError):  # the next kubelet here takes the pods of the checkpoint for existing ones
            if run.state.release(self._active.__contains__):
                run.admission.save()
        await run.stop_listening()
        await run.plugins.close()

    async def restart(self, *, keep_checkpoint: bool = True) -> None:
        """Stop and start again; ``keep_checkpoint=False`` loses the allocations."""
        await self.stop()
        if not keep_checkpoint:
            self.plugin_directory.remove_checkpoint()
        await self.start()

    @property
    def registrations(self) -> Sequence[Registration]:
        """All Register requests so far, across restarts, in order of arrival."""
        return tuple(self._registrations)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources in the node status; empty while stopped."""
        if self._run is None:
            return ()
        self._run.plugins.expire()
        return tuple(self._run.state.listed())

    def resource(self, name: str) -> ResourceView:
        """Return the current view of a resource. The call also expires resources, as GetCapacity does."""
        known = name in self.resources
        resource = self._run.state.resources.get(name, ResourceState()) if self._run else ResourceState()
        endpoint = self._run.plugins.current.get(name) if self._run else None
        return ResourceView(
            name=name,
            known=known,
            capacity=resource.capacity,
            allocatable=len(resource.healthy),
            devices=resource.devices,
            connected=endpoint is not None and endpoint.stopped_at is None,
            pre_start_required=endpoint is not None and endpoint.options.pre_start_required,
            streams=self._run.plugins.streams(name) if self._run else 0,
            streams_opened=resource.streams_opened,
            messages=resource.messages,
            last_message_size=resource.last_message_size,
            last_stream_end=resource.last_stream_end,
        )

    def describe(self) -> str:
        """Return a description of the state in a few lines, for failed tests."""
        lines = [f"the kubelet ({self.version}) is {'running' if self._run else 'stopped'}"]
        names = dict.fromkeys([*(self._run.state.resources if self._run else ()), *self.resources])
        lines.extend(
            f"  {view.name}: known={view.known} capacity={view.capacity} allocatable={view.allocatable} "
            f"connected={view.connected} streams={view.streams} of {view.streams_opened} "
            f"messages={view.messages} last_stream_end={view.last_stream_end!r}"
            for view in map(self.resource, names)
        )
        lines.append(f"  registrations: {len(self._registrations)}, last: {self._registrations[-1:]}")
        return "\n".join(lines)

    def _running(self) -> _Run:
        run = super()._running()
        run.plugins.expire()
        return run

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Admit a pod that was scheduled to this node. Raises AdmissionError if the kubelet rejects it."""
        run = self._running()
        self._pods[pod.uid] = pod.name
        self._ending |= {(pod.name, each.name) for each in pod.init_containers if not each.restartable}
        self._active.add(pod.uid)
        try:
            admitted = await run.admission.admit(pod)
        except BaseException as error:
            self._active.discard(pod.uid)
            if isinstance(error, AdmissionError):
                self._emit("pod-rejected", pod=pod.name, reason=error.reason, message=error.message)
            raise
        self._emit("pod-admitted", pod=pod.name, uid=pod.uid)
        for allocation in admitted.containers.values():
            self._emit("container-allocated", pod=pod.name, allocation=allocation)
        return admitted

    async def start_container(self, pod: Pod, container_name: str) -> ContainerAllocation:
        """Start a container of an admitted pod, for the first time or again; the allocation is the same.

        A kubelet that was restarted admits the pod again before. A real one does so when it starts: within milliseconds
        a plugin may have registered or not. Raises AdmissionError: with CreateContainerConfigError if a plugin fails; a
        kubelet would retry.
        """
        container = pod.container(container_name)
        admission = self._running().admission
        if pod.uid in self._active - admission.admitted:
            await self.admit(pod)
        try:
            allocation = await admission.start(pod, container)
        except AdmissionError as error:
            self._emit(
                "container-failed", pod=pod.name, container=container.name, reason=error.reason, message=error.message
            )
            raise
        self._started.add((pod.uid, container.name))
        self._emit("container-started", pod=pod.name, container=container.name)
        return allocation

    async def finish(self, pod: Pod) -> None:
        """End a pod. Plugins are not notified; the devices are free from the next admission."""
        if pod.uid in self._active:
            self._active.remove(pod.uid)
            self._emit("pod-removed", pod=pod.name)

    def is_listed(self, pod: str, container: str) -> bool:
        """Return whether podresources lists a container of a pod, both by name: not an init container that ends.

        See pkg/kubelet/apis/podresources/server_v1.go.
        """
        return (pod, container) not in self._ending

    def allocated(self, resource: str) -> Mapping[str, tuple[str, str]]:
        """Return the allocations: device ID to (pod name, container name). Ended pods are released first."""
        return {
            device: (pod, entry.container)
            for pod, entry in self.allocations()
            if entry.resource == resource
            for device in entry.device_ids
        }

    def allocations(self) -> Sequence[tuple[str, CheckpointEntry]]:
        """Return all allocations with the names of their pods, also of resources that are not listed any more."""
        run = self._running()
        run.state.release(self._active.__contains__)
        return [(self._pods[entry.pod_uid], entry) for entry in run.state.entries.values()]

    def lose_devices(self) -> None:
        """Mark all devices unhealthy although the streams are open, as after the end of another plugin."""
        self._running().plugins.lose_devices()

    async def drop_streams(self, resource: str | None = None) -> None:
        """Cancel the streams of a resource, or all streams, as the client; wait until they have ended."""
        await self._running().plugins.drop_streams(resource)
