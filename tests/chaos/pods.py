"""Containers that ask for devices, whenever it may hurt, and what each of them was given."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import grpc

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.api.deviceplugin_pb2_grpc import DevicePluginStub
from aosp_plugin.testing import AdmissionError, Container, Pod
from tests.chaos.expected import Answer
from tests.chaos.registry import ViolationError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from aosp_plugin.testing import ContainerAllocation
    from tests.chaos.setups import Served
    from tests.chaos.world import World

PATIENCE = 10.0
"""Seconds for an answer of the plugin's."""

MOST = 3
"""Pods that are there at a time."""


class Pods:
    """The pods of a node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._there: list[Pod] = []
        self.admitted = self.refused = self.not_fit = 0
        """How many were, and how many direct requests for what is not fit were refused."""

    def forget(self) -> None:
        """Take it that the kubelet knows of none."""
        self._there.clear()

    async def come_and_go(self, rng: random.Random, *, calm: bool) -> None:
        """Have a pod of two containers admitted, and an old one end. Raises ViolationError.

        In the midst of a fault it may be refused; where all is ``calm`` and enough is free it may not.
        """
        world = self._world
        resources = [served.name for served in world.setup.served]
        known = world.kubelet_runs and all(world.kubelet.resource(name).known for name in resources)
        if not known or world.plugin.deaf:  # no pod is sent to such a node, or it would wait
            return
        while len(self._there) >= MOST:
            await world.kubelet.finish(self._there.pop(rng.randrange(len(self._there))))
        limits = {name: rng.randint(1, 2) for name in resources}
        enough = all(self._free(name) >= 2 * count for name, count in limits.items())
        pod = Pod(f"pod-{self.admitted + self.refused}", [Container("one", limits), Container("two", limits)])
        try:
            async with asyncio.timeout(PATIENCE):
                admitted = await world.kubelet.admit(pod)
        except TimeoutError:
            raise ViolationError(f"Allocate has not answered for {PATIENCE:g} s") from None
        except AdmissionError as error:
            self.refused += 1
            if calm and enough:
                raise ViolationError(f"a pod was refused though there are devices: {error}") from error
            return
        self.admitted += 1
        self._there.append(pod)
        for container in admitted.containers.values():
            self._check(container)
        self._check_apart(admitted.containers.values())

    def _free(self, resource: str) -> int:
        view = self._world.kubelet.resource(resource)
        return view.allocatable - len(self._world.kubelet.allocated(resource))

    def _check(self, given: ContainerAllocation) -> None:
        """See that a container got what it has, all of it, and that it is fit."""
        world = self._world
        names: list[str] = []
        for served in world.setup.served:
            own = {name for device in given.device_ids[served.name] for name in _nodes_of(served, device)}
            for device in given.device_ids[served.name]:
                self._check_fit(served, device)
            if set(given.envs[served.variable].split(",")) != own:
                raise ViolationError(f"a container has {sorted(own)}, and was told of {given.envs[served.variable]}")
            names += own
        paths = {os.path.join(world.nodes.directory, name) for name in names}
        brought = {one.host_path for one in given.devices if one.host_path.startswith(world.root)}
        if world.setup.by_cdi:
            told = {f"{resource}={device}" for resource, ids in given.device_ids.items() for device in ids}
            told = told if world.kubelet.behaviour.knows_cdi else set()
            if brought or set(given.cdi_devices) != told:
                raise ViolationError(f"a container has {sorted(told)}, and was given {given.cdi_devices}")
        elif brought != paths:
            raise ViolationError(f"a container has the nodes {sorted(paths)}, and was given {sorted(brought)}")

    def _check_fit(self, served: Served, device: str) -> None:
        seen = self._world.model.devices(served).get(device)
        if seen is None or seen.fit is Answer.NO:
            raise ViolationError(f"{device} was allocated, and is {'unknown' if seen is None else 'not fit'}")

    def _check_apart(self, containers: Iterable[ContainerAllocation]) -> None:
        """See that no device is two containers'."""
        every = [device for given in containers for ids in given.device_ids.values() for device in ids]
        if len(every) != len(set(every)):
            raise ViolationError(f"two containers of a pod have a device in common: {sorted(every)}")

    async def ask_in_vain(self, rng: random.Random) -> None:
        """Ask the plugin itself for devices that are not fit, as a kubelet does that knows too little yet.

        Raises ViolationError where it gives one out.
        """
        for served in self._world.setup.served:
            devices = self._world.model.devices(served)
            unfit = sorted(device for device, seen in devices.items() if seen.fit is Answer.NO)
            for device in [*rng.sample(unfit, min(2, len(unfit))), f"{served.prefix}-never-there"]:
                if await self._ask(served, [[device]]) is not None:
                    raise ViolationError(f"{device} was given out, and is not fit")
                self.not_fit += 1

    async def ask_for_two(self, rng: random.Random) -> None:
        """Ask the plugin for two containers in one request. Raises ViolationError where one gets the other's."""
        for served in self._world.setup.served:
            devices = self._world.model.devices(served)
            fit = sorted(device for device, seen in devices.items() if seen.fit is Answer.YES)
            if len(fit) < 4:
                continue
            chosen = rng.sample(fit, 4)
            wanted = [chosen[:1], chosen[1:]]
            answer = await self._ask(served, wanted)
            if answer is None:
                raise ViolationError(f"two containers were refused {wanted}, which are fit")
            given = [one.envs[served.variable].split(",") for one in answer.container_responses]
            names = [sorted({name for device in ids for name in _nodes_of(served, device)}) for ids in wanted]
            if [sorted(set(one)) for one in given] != names:
                raise ViolationError(f"two containers were to have {names}, and were given {given}")

    async def _ask(self, served: Served, wanted: Sequence[Sequence[str]]) -> pb.AllocateResponse | None:
        """Call Allocate of the newest registration, past the kubelet; None where it is refused, or nobody answers."""
        world = self._world
        endpoints = [one.endpoint for one in world.kubelet.registrations if one.resource_name == served.name]
        if not endpoints or world.plugin.deaf:
            return None
        path = os.path.join(world.plugins, endpoints[-1])
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        request = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in wanted]
        )
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            try:
                return await DevicePluginStub(channel).Allocate(request, timeout=PATIENCE)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise ViolationError(f"Allocate has not answered for {PATIENCE:g} s") from None
                return None


def _nodes_of(served: Served, device: str) -> list[str]:
    return served.nodes_of(device.partition("::")[0] if served.replicas > 1 else device)
