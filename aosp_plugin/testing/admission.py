"""Pod admission and container start: the kubelet's calls for a pod, over its books and its plugins.

pkg/kubelet/cm/devicemanager/manager.go: Allocate, allocateContainerResources, GetDeviceRunContainerOptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aosp_plugin.testing.allocation import (
    Choice,
    SelectionError,
    Want,
    by_numa,
    choose,
    complete,
    merge,
    pick,
)
from aosp_plugin.testing.checkpoint import Entry
from aosp_plugin.testing.endpoint import Endpoint, PluginError
from aosp_plugin.testing.pods import AdmissionError, AdmittedPod, Container, ContainerAllocation, Pod

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable, Mapping

    from aosp_plugin.testing.behaviour import Behaviour
    from aosp_plugin.testing.resources import Books

UNEXPECTED: Final = "UnexpectedAdmissionError"
CONFIG_ERROR: Final = "CreateContainerConfigError"

_Reusable = dict[str, set[str]]


@dataclass(frozen=True)
class Admission:
    """Admits pods to one run of the kubelet."""

    behaviour: Behaviour
    books: Books
    endpoints: Mapping[str, Endpoint]
    """The plugin that counts, by resource."""
    rng: random.Random
    is_active: Callable[[str], bool]
    """Whether the pod of this uid has not ended."""
    save: Callable[[], None]
    """Writes the checkpoint."""
    lock: asyncio.Lock
    """Held while devices are allocated: the kubelet does that in one loop, pod by pod."""

    async def admit(self, pod: Pod) -> AdmittedPod:
        """Allocate for every container of a pod, init containers first.

        AdmissionError if one can't have its devices.
        """
        try:
            async with self.lock:
                await self._allocate_pod(pod)
        except (SelectionError, PluginError, OSError) as error:  # OSError: no checkpoint can be written
            raise AdmissionError(UNEXPECTED, self.behaviour.rejection(str(error))) from error
        names = [container.name for container in (*pod.init_containers, *pod.containers)]
        return AdmittedPod(pod.name, pod.uid, {name: self.stored(pod, name) for name in names})

    def stored(self, pod: Pod, container: str) -> ContainerAllocation:
        """Merge what the plugins answered for a container when it was admitted."""
        return merge(container, self.books.of_container(pod.uid, container), self.behaviour, self.rng)

    async def start(self, pod: Pod, container: Container) -> ContainerAllocation:
        """Do what precedes a container's creation: PreStartContainer, and Allocate if that never happened.

        AdmissionError if either fails.
        """
        try:
            if await self._pre_start(pod, container):
                async with self.lock:
                    await self._allocate(pod, container, {})
        except (SelectionError, PluginError, OSError) as error:  # OSError: no checkpoint can be written
            raise AdmissionError(CONFIG_ERROR, str(error)) from error
        return self.stored(pod, container.name)

    async def _pre_start(self, pod: Pod, container: Container) -> bool:
        """Return whether a resource of the container has never been allocated (manager.go:925-960)."""
        incomplete = False
        for resource in self._resources(container):
            held = self.books.held(pod.uid, container.name, resource)
            endpoint = self.endpoints.get(resource)
            if endpoint is None:
                raise PluginError(f"endpoint not found in cache for a registered resource: {resource}")
            if endpoint.options.pre_start_required:
                await self._call_pre_start(pod, container, endpoint, held)
            incomplete = incomplete or held is None
        return incomplete

    async def _call_pre_start(
        self, pod: Pod, container: Container, endpoint: Endpoint, held: tuple[str, ...] | None
    ) -> None:
        if held is None:
            raise PluginError(
                f"no devices found allocated in local cache for pod {pod.uid}, "
                f"container {container.name}, resource {endpoint.resource}"
            )
        try:
            await endpoint.pre_start(pick(held, len(held), self.rng))
        except PluginError as error:
            raise PluginError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    async def _allocate_pod(self, pod: Pod) -> None:
        reusable: _Reusable = {}
        for container in pod.init_containers:
            await self._allocate(pod, container, reusable)
            own = container.restartable and self.behaviour.knows_sidecars
            self._pass_on(pod, container, reusable, keep=own)
        for container in pod.containers:
            await self._allocate(pod, container, reusable)
            self._pass_on(pod, container, reusable, keep=True)

    def _pass_on(self, pod: Pod, container: Container, reusable: _Reusable, *, keep: bool) -> None:
        """Let the containers that follow reuse an ended init container's devices, and no others'."""
        for entry in self.books.of_container(pod.uid, container.name):
            ids = reusable.setdefault(entry.resource, set())
            if keep:
                ids.difference_update(entry.device_ids)
            else:
                ids.update(entry.device_ids)

    def _resources(self, container: Container) -> list[str]:
        """Return the container's resources that plugins provide, in random order."""
        asked = pick(container.limits, len(container.limits), self.rng)
        return [resource for resource in asked if self.books.is_plugin_resource(resource)]

    async def _allocate(self, pod: Pod, container: Container, reusable: _Reusable) -> None:
        """Allocate a container's resources, one call each; the checkpoint is written if one was made."""
        allocated = False
        resources = self._resources(container)
        if resources:
            self.books.release(self.is_active)
        for resource in resources:
            want = Want(
                pod_uid=pod.uid,
                container=container.name,
                resource=resource,
                count=container.limits[resource],
                held=self.books.held(pod.uid, container.name, resource),
                healthy=self.books.healthy(resource),
                in_use=self.books.in_use.get(resource, set()),
                reusable=reusable.get(resource, set()),
            )
            ids = await self._select(want)
            if ids:
                await self._ask(want, ids)
                allocated = True
        if allocated:
            self.save()

    async def _select(self, want: Want) -> tuple[str, ...]:
        """Choose the devices, as the plugin prefers if it does; they count as used from now on."""
        choice = choose(want, self.behaviour, self.rng)
        if choice is None:
            return ()
        self.books.use(want.resource, choice.taken)
        preferred: tuple[str, ...] = ()
        endpoint = self.endpoints.get(want.resource)
        if choice.missing and endpoint is not None and endpoint.options.get_preferred_allocation_available:
            preferred = await self._prefer(want, choice, endpoint)
        ids = complete(choice, preferred, self.rng)
        self.books.use(want.resource, ids)
        return ids

    async def _prefer(self, want: Want, choice: Choice, endpoint: Endpoint) -> tuple[str, ...]:
        everything = {*choice.available, *choice.taken}
        available = pick(everything, len(everything), self.rng)
        try:
            return tuple(await endpoint.prefer(available, choice.taken, want.count))
        except PluginError as error:
            raise PluginError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error

    def _endpoint(self, resource: str) -> Endpoint:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise PluginError(f"unknown Device Plugin {resource}")
        return endpoint

    async def _ask(self, want: Want, ids: tuple[str, ...]) -> None:
        """Allocate RPC, and note its answer."""
        try:
            response = await self._endpoint(want.resource).allocate(ids)
        except PluginError:
            self.books.recount()
            raise
        if not response.container_responses:
            # The picked devices stay in use until the next recount, as in the kubelet (manager.go:900-902).
            raise PluginError(f"no containers return in allocation response {response}")
        answer = response.container_responses[0].SerializeToString(deterministic=True)
        topology = self.books.listing(want.resource).topology
        numa = by_numa(ids, topology, self.behaviour.default_numa)
        self.books.insert(Entry(want.pod_uid, want.container, want.resource, numa, answer))
