"""The two kubelets that run the scenarios, as plugins and pods use them."""

import asyncio
import contextlib
import itertools
import signal
import tempfile
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, TypeAlias

from kubelet_standin import AdmissionError, Container, DraKubelet, Kubelet, Pod
from tests.e2e.common.waiting import until
from tests.e2e.kubelet.node import Node, Placed
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.standalone import PLUGINS
from tests.e2e.kubelet.versions import dra_standin, standin


class Rejected(NamedTuple):
    """A rejected pod: the kubelet's reason and message."""

    reason: str
    message: str


class Admitted(NamedTuple):
    """A running pod."""

    pod: str
    devices: frozenset[str]
    environment: dict[str, str]


class StandIn:
    """``kubelet_standin.Kubelet`` of the real kubelet's version."""

    def __init__(self, kubelet: Kubelet, dra_kubelet: DraKubelet, resource: str) -> None:
        """Use a running stand-in, which consists of two halves."""
        self.resource = resource
        self.version = kubelet.version
        self.directory, self.registry = kubelet.directory, dra_kubelet.directory
        self._kubelet = kubelet
        self._dra_kubelet = dra_kubelet
        self._numbers = itertools.count()
        self._pods: dict[str, Pod] = {}

    async def counts(self, resource: str) -> tuple[int, int] | None:
        """Return capacity and allocatable; None for a resource that the node's status does not have."""
        view = self._kubelet.resource(resource)
        return (view.capacity, view.allocatable) if view.known else None

    async def admit(self, count: int) -> Admitted | Rejected:
        """Admit a pod, and start its container."""
        pod = self._new_pod(count)
        try:
            allocation = (await self._kubelet.admit(pod)).containers["main"]
            await self._kubelet.start_container(pod, "main")
        except AdmissionError as error:
            return Rejected(error.reason, error.message)
        return Admitted(pod.name, frozenset(allocation.device_ids[self.resource]), dict(allocation.envs))

    def _new_pod(self, count: int) -> Pod:
        pod = Pod(f"pod-{next(self._numbers)}", [Container("main", {self.resource: count})])
        self._pods[pod.name] = pod
        return pod

    async def admit_waiting(self, count: int) -> str:
        """Admit a pod whose container does not start yet; return its name."""
        pod = self._new_pod(count)
        await self._kubelet.admit(pod)
        return pod.name

    async def start_again(self, pod: str) -> str:
        """Start a pod's container again; return the kubelet's error or ""."""
        try:
            await self._kubelet.start_container(self._pods[pod], "main")
        except AdmissionError as error:
            return error.message
        return ""

    async def rejection(self, pod: str) -> Rejected:
        """Return how a pod is rejected that was admitted before."""
        try:
            await self._kubelet.start_container(self._pods[pod], "main")
        except AdmissionError as error:
            return Rejected(error.reason, error.message)
        raise AssertionError(f"{pod} runs")

    async def held(self, pod: str) -> frozenset[str]:
        """Return a pod's devices."""
        return frozenset(device for device, (name, _) in self._kubelet.allocated(self.resource).items() if name == pod)

    async def stop(self) -> None:
        """Stop the kubelet."""
        await self._kubelet.stop()
        await self._dra_kubelet.stop()

    async def start(self) -> None:
        """Start the kubelet again."""
        await self._kubelet.start()
        await self._dra_kubelet.start()


class Real:
    """The real kubelet."""

    def __init__(self, node: Node, resource: str) -> None:
        """Use a node whose kubelet runs."""
        self.resource = resource
        self.version = node.kubelet.standin
        """The version of the stand-in that corresponds to this one."""
        self.directory, self.registry = str(PLUGINS), str(PLUGINS.parent / "plugins_registry")
        self._node = node
        self._placed: dict[str, Placed] = {}

    async def counts(self, resource: str) -> tuple[int, int] | None:
        """Return capacity and allocatable; None for a resource that the node's status does not have."""
        return await asyncio.to_thread(self._node.status, resource)

    async def admit(self, count: int) -> Admitted | Rejected:
        """Create a pod, and wait until it runs or is rejected."""
        return await asyncio.to_thread(self._admit, count)

    def _admit(self, count: int) -> Admitted | Rejected:
        placed = self._place(count)
        if (phase := placed.settled()) == "Failed":
            return Rejected(placed.status["reason"], placed.status["message"])
        assert phase == "Running", phase
        return Admitted(placed.name, frozenset(placed.held(resource=self.resource)), placed.view().environment)

    def _place(self, count: int, **more: Any) -> Placed:
        placed = self._node.place(container("main", count, resource=self.resource), **more)
        self._placed[placed.name] = placed
        return placed

    async def admit_waiting(self, count: int) -> str:
        """Create a pod whose container waits for another one, and wait until it is admitted; return its name."""
        placed = await asyncio.to_thread(self._place, count, init=(container("wait"),))
        await asyncio.to_thread(until, lambda: placed.held(resource=self.resource), f"{placed.name} has its devices")
        await asyncio.to_thread(until, lambda: placed.container_id("wait"), f"{placed.name} waits")
        return placed.name

    async def start_again(self, pod: str) -> str:
        """Kill a pod's container; return why the kubelet cannot start it again, or ""."""
        placed = self._placed[pod]
        before = await asyncio.to_thread(until, placed.container_id, f"the container of {pod} runs")
        self._node.runtime.signal(before, signal.SIGKILL)
        (error,) = await asyncio.to_thread(until, lambda: _outcome(placed, before), f"{pod} starts again, or cannot")
        return error

    async def rejection(self, pod: str) -> Rejected:
        """Wait until a pod is rejected that was admitted before."""
        placed = self._placed[pod]
        await asyncio.to_thread(placed.wait_phase, "Failed")
        return Rejected(placed.status["reason"], placed.status["message"])

    async def held(self, pod: str) -> frozenset[str]:
        """Return a pod's devices."""
        held = await asyncio.to_thread(self._node.kubelet.held, self.resource)
        return frozenset(held.get((pod, "main"), set()))

    async def stop(self) -> None:
        """Stop the kubelet."""
        await asyncio.to_thread(self._node.kubelet.stop)

    async def start(self) -> None:
        """Start the kubelet again."""
        await asyncio.to_thread(self._node.kubelet.start)

    def clear(self) -> None:
        """Delete the pods."""
        self._node.remove(*self._placed.values())


DeviceManager: TypeAlias = StandIn | Real


async def restart(kubelet: DeviceManager) -> None:
    """Restart the kubelet."""
    await kubelet.stop()
    await kubelet.start()


def _outcome(placed: Placed, before: str) -> tuple[str]:
    """Return why the kubelet cannot create the container; "" if another one than ``before`` runs."""
    waiting = placed.container()["state"].get("waiting", {})
    if waiting.get("reason") == "CreateContainerConfigError":
        return (waiting["message"],)
    assert placed.container_id() != before, f"the container of {placed.name} still runs"
    return ("",)


@contextlib.asynccontextmanager
async def stand_in(minor: int, resource: str) -> AsyncIterator[DeviceManager]:
    """Run a stand-in for a minor version of the kubelet, with a resource for the scenario."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as directory:
        async with (
            Kubelet(directory, version=standin(minor)) as kubelet,
            DraKubelet(f"{directory}/plugins_registry", version=dra_standin(minor), watch_health=True) as dra_kubelet,
        ):
            yield StandIn(kubelet, dra_kubelet, resource)


@contextlib.asynccontextmanager
async def real(node: Node, resource: str) -> AsyncIterator[DeviceManager]:
    """Use the node's kubelet with a resource for the scenario, and delete the pods afterwards."""
    manager = Real(node, resource)
    try:
        yield manager
    finally:
        await asyncio.to_thread(manager.clear)
