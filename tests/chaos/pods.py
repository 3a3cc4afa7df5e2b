"""Containers that request devices at any time, and checks of their allocations."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from kubelet_standin import AdmissionError, Container, Pod
from tests.chaos.expected import Answer
from tests.chaos.registry import ViolationError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from kubelet_standin import ContainerAllocation
    from tests.chaos.setups import Served
    from tests.chaos.world import World

PATIENCE = 10.0
"""The limit for a response of the plugin, in seconds."""

MAX_PODS = 3
"""The maximum number of pods at a time."""


class Pods:
    """The pods on the node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pods: list[Pod] = []
        self._created = 0

    def forget(self) -> None:
        """Drop all pods, because the kubelet has."""
        self._pods.clear()

    async def create_and_end(self, rng: random.Random, *, calm: bool) -> None:
        """Admit a pod with two containers, and end an old one. Raises ViolationError.

        During a fault the pod may be rejected; with ``calm`` and enough free devices it must not be.
        """
        world = self._world
        resources = [served.name for served in world.setup.served]
        known = world.kubelet_runs and all(world.kubelet.resource(name).known for name in resources)
        if not known or world.plugin.unresponsive:  # the pod would wait
            return
        while len(self._pods) >= MAX_PODS:
            await world.kubelet.finish(self._pods.pop(rng.randrange(len(self._pods))))
        limits = {name: rng.randint(1, 2) for name in resources}
        enough = all(self._free(name) >= 2 * count for name, count in limits.items())
        self._created += 1
        pod = Pod(f"pod-{self._created}", [Container("first", limits), Container("second", limits)])
        try:
            async with asyncio.timeout(PATIENCE):
                admitted = await world.kubelet.admit(pod)
        except TimeoutError:
            raise ViolationError(f"Allocate has not responded for {PATIENCE:g} s") from None
        except AdmissionError as error:
            if calm and enough:
                raise ViolationError(f"a pod was rejected although devices are free: {error}") from error
            return
        self._pods.append(pod)
        for container in admitted.containers.values():
            self._check(container, calm=calm)
        self._check_apart(admitted.containers.values())

    def _free(self, resource: str) -> int:
        view = self._world.kubelet.resource(resource)
        return view.allocatable - len(self._world.kubelet.allocated(resource))

    def _check(self, allocation: ContainerAllocation, *, calm: bool) -> None:
        """Check that a container got all its devices, and that they are healthy unless they may just have changed."""
        world = self._world
        names: list[str] = []
        for served in world.setup.served:
            own = {name for device in allocation.device_ids[served.name] for name in _binder_devices_of(served, device)}
            for device in allocation.device_ids[served.name] if calm else ():
                self._check_healthy(served, device)
            if set(allocation.envs[served.variable].split(",")) != own:
                raise ViolationError(
                    f"a container has {sorted(own)}, but its variable lists {allocation.envs[served.variable]}"
                )
            names += own
        paths = {os.path.join(world.devices.directory, name) for name in names}
        allocated = {device.host_path for device in allocation.devices if device.host_path.startswith(world.root)}
        if world.setup.by_cdi:
            names_by_cdi = {f"{resource}={device}" for resource, ids in allocation.device_ids.items() for device in ids}
            if allocated or set(allocation.cdi_devices) != names_by_cdi:
                raise ViolationError(f"a container has {sorted(names_by_cdi)}, but got {allocation.cdi_devices}")
        elif allocated != paths:
            raise ViolationError(f"a container has the devices {sorted(paths)}, but got {sorted(allocated)}")

    def _check_healthy(self, served: Served, device: str) -> None:
        state = self._world.model.devices(served).get(device)
        if state is None or state.healthy is Answer.NO:
            raise ViolationError(f"{device} was allocated, but is {'unknown' if state is None else 'unhealthy'}")

    def _check_apart(self, containers: Iterable[ContainerAllocation]) -> None:
        """Check that no two containers have the same device."""
        devices = [device for allocation in containers for ids in allocation.device_ids.values() for device in ids]
        if len(devices) != len(set(devices)):
            raise ViolationError(f"two containers of a pod have a device in common: {sorted(devices)}")

    async def request_unhealthy(self, rng: random.Random, *, calm: bool) -> None:
        """Request unhealthy devices from the plugin, as a kubelet with an outdated list does.

        With ``calm`` the plugin must refuse them. During a fault it may not know yet: it answers from memory, without
        access to the host, and the container runtime is the last check. It must answer in any case. Raises
        ViolationError.
        """
        for served in self._world.setup.served:
            devices = self._world.model.devices(served)
            unhealthy = sorted(device for device, state in devices.items() if state.healthy is Answer.NO)
            for device in [*rng.sample(unhealthy, min(2, len(unhealthy))), f"{served.prefix}-missing"]:
                if await self._allocates(served, device) and calm:
                    raise ViolationError(f"{device} was allocated, but is unhealthy")

    async def _allocates(self, served: Served, device: str) -> bool:
        """Call Allocate of the newest registration directly; return whether it gives the device away."""
        world = self._world
        endpoints = [each.endpoint for each in world.kubelet.registrations if each.resource_name == served.name]
        if not endpoints or world.plugin.unresponsive:
            return False
        path = os.path.join(world.plugins, endpoints[-1])
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device])])
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            try:
                await DevicePluginStub(channel).Allocate(request, timeout=PATIENCE)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise ViolationError(f"Allocate has not responded for {PATIENCE:g} s") from None
                return False
        return True


def _binder_devices_of(served: Served, device: str) -> list[str]:
    return served.binder_devices_of(device.partition("::")[0] if served.replicas > 1 else device)
