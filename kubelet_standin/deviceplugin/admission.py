"""Pod admission and container start: the calls that the kubelet makes to plugins for a pod.

pkg/kubelet/cm/devicemanager/manager.go: Allocate, allocateContainerResources, GetDeviceRunContainerOptions.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from kubelet_standin.deviceplugin.allocation import (
    AllocationRequest,
    SelectionError,
    complete_selection,
    group_by_numa_node,
    merge_responses,
    sample,
    start_selection,
)
from kubelet_standin.deviceplugin.checkpoint import CheckpointEntry
from kubelet_standin.deviceplugin.endpoint import CallError, Endpoint
from kubelet_standin.deviceplugin.pods import AdmissionError, AdmittedPod, Container, ContainerAllocation, Pod
from kubelet_standin.deviceplugin.resources import ManagerState

UNEXPECTED: Final = "UnexpectedAdmissionError"
CONFIG_ERROR: Final = "CreateContainerConfigError"


def rejection(error: str) -> str:
    """Return ``status.message`` of a rejected pod (cm/topologymanager/scope.go)."""
    return f"Pod was rejected: Allocate failed due to {error}, which is unexpected"


_Reusable = dict[str, set[str]]
"""Resource name to the IDs that a pod's init containers have released."""


@dataclass(frozen=True)
class Admission:
    """Admits pods during one run of the kubelet."""

    state: ManagerState
    endpoints: Mapping[str, Endpoint]
    """The current plugin of each resource."""
    rng: random.Random
    is_active: Callable[[str], bool]
    """Returns whether the pod with this UID is still active."""
    save: Callable[[], None]
    """Writes the checkpoint."""
    started: AbstractSet[tuple[str, str]]
    """The containers that have started, by UID of the pod and name, also before this run of the kubelet."""
    admitted: set[str] = field(default_factory=set)
    """UIDs of the pods that this run of the kubelet has admitted."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during allocation, because the kubelet admits pods one at a time."""

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Allocate devices for each container of a pod, init containers first.

        A kubelet that was restarted admits its pods again. Raises AdmissionError if the devices of a container cannot
        be allocated, or are not healthy and it has not started before the restart.
        """
        try:
            async with self.lock:
                await self._allocate_pod(pod)
        except (SelectionError, CallError, OSError) as error:  # OSError: the checkpoint cannot be written
            raise AdmissionError(UNEXPECTED, rejection(str(error))) from error
        self.admitted.add(pod.uid)
        names = [container.name for container in (*pod.init_containers, *pod.containers)]
        return AdmittedPod(pod.name, pod.uid, {name: self.stored(pod, name) for name in names})

    def stored(self, pod: Pod, container: str) -> ContainerAllocation:
        """Return the merged plugin responses that are stored for a container."""
        return merge_responses(container, self.state.of_container(pod.uid, container), self.rng)

    async def start(self, pod: Pod, container: Container) -> ContainerAllocation:
        """Prepare a container's creation: call PreStartContainer, and Allocate if it was not called before.

        Raises AdmissionError if a call fails.
        """
        try:
            if await self._pre_start(pod, container):
                async with self.lock:
                    await self._allocate(pod, container, {})
        except (SelectionError, CallError, OSError) as error:  # OSError: the checkpoint cannot be written
            raise AdmissionError(CONFIG_ERROR, str(error)) from error
        return self.stored(pod, container.name)

    async def _pre_start(self, pod: Pod, container: Container) -> bool:
        """Return whether a resource of the container was never allocated (manager.go:925-960).

        A plugin that has not registered since the kubelet's start has no options: the container starts without a call.
        """
        incomplete = False
        for resource in self._resources(container):
            held = self.state.held(pod.uid, container.name, resource)
            endpoint = self.endpoints.get(resource)
            if endpoint is None:
                raise CallError(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint.options.pre_start_required:
                if held is None:
                    raise CallError(
                        f"no devices found allocated in local cache for pod {pod.uid}, "
                        f"container {container.name}, resource {resource}"
                    )
                await endpoint.pre_start(sample(held, len(held), self.rng))
            incomplete = incomplete or held is None
        return incomplete

    async def _allocate_pod(self, pod: Pod) -> None:
        reusable: _Reusable = {}
        for container in pod.init_containers:
            await self._allocate(pod, container, reusable)
            self._update_reusable(pod, container, reusable, keeps_devices=container.restartable)
        for container in pod.containers:
            await self._allocate(pod, container, reusable)
            self._update_reusable(pod, container, reusable, keeps_devices=True)

    def _update_reusable(self, pod: Pod, container: Container, reusable: _Reusable, *, keeps_devices: bool) -> None:
        """Make an init container's devices reusable for later containers; exclude those of other containers."""
        for entry in self.state.of_container(pod.uid, container.name):
            ids = reusable.setdefault(entry.resource, set())
            if keeps_devices:
                ids.difference_update(entry.device_ids)
            else:
                ids.update(entry.device_ids)

    def _resources(self, container: Container) -> list[str]:
        """Return the container's resources that plugins provide, in random order."""
        shuffled = sample(container.limits, len(container.limits), self.rng)
        return [resource for resource in shuffled if self.state.is_plugin_resource(resource)]

    async def _allocate(self, pod: Pod, container: Container, reusable: _Reusable) -> None:
        """Allocate a container's resources, one call for each; write the checkpoint after at least one call."""
        if pod.uid not in self.admitted and (pod.uid, container.name) in self.started:
            return  # it runs since before the kubelet's start (manager.go isContainerAlreadyRunning)
        allocated = False
        resources = self._resources(container)
        if resources:
            self.state.release(self.is_active)
        for resource in resources:
            request = AllocationRequest(
                pod_uid=pod.uid,
                container=container.name,
                resource=resource,
                count=container.limits[resource],
                held=self.state.held(pod.uid, container.name, resource),
                healthy=self.state.healthy(resource),
                in_use=self.state.in_use.get(resource, set()),
                reusable=reusable.get(resource, set()),
            )
            ids = await self._select(request)
            if ids:
                await self._call_allocate(request, ids)
                allocated = True
        if allocated:
            self.save()

    async def _select(self, request: AllocationRequest) -> tuple[str, ...]:
        """Select the devices, with the plugin's preference if it has one, and mark them as in use."""
        selection = start_selection(request, self.rng)
        if selection is None:
            return ()
        self.state.use(request.resource, selection.reused)
        preferred: Sequence[str] = ()
        endpoint = self.endpoints.get(request.resource)
        if selection.missing and endpoint is not None and endpoint.options.get_preferred_allocation_available:
            candidates = {*selection.available, *selection.reused}
            available = sample(candidates, len(candidates), self.rng)
            preferred = await endpoint.prefer(available, selection.reused, request.count)
        ids = complete_selection(selection, preferred, self.rng)
        self.state.use(request.resource, ids)
        return ids

    def _endpoint(self, resource: str) -> Endpoint:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise CallError(f"unknown Device Plugin {resource}")
        return endpoint

    async def _call_allocate(self, request: AllocationRequest, ids: tuple[str, ...]) -> None:
        """Call Allocate and store the response."""
        try:
            response = await self._endpoint(request.resource).allocate(ids)
        except CallError:
            self.state.recount()
            raise
        if not response.container_responses:
            # The selected devices stay in use until the next recount, as in the kubelet (manager.go:900-902).
            raise CallError(f"no containers return in allocation response {response}")
        container_response = response.container_responses[0].SerializeToString(deterministic=True)
        topology = self.state.resource(request.resource).topology
        devices = group_by_numa_node(ids, topology)
        self.state.insert(
            CheckpointEntry(request.pod_uid, request.container, request.resource, devices, container_response)
        )
