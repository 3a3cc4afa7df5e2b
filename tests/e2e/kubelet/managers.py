"""The two kubelets that run the scenarios."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import tempfile
from typing import TYPE_CHECKING, Any

from kubelet_standin import AdmissionError, Container, DraKubelet, Kubelet, Pod
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.scenarios import Admitted, Rejected
from tests.e2e.kubelet.standalone import PLUGINS
from tests.e2e.kubelet.versions import dra_standin, standin
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kubelet_standin import KubeletVersion
    from tests.e2e.kubelet.node import Node, Placed
    from tests.e2e.kubelet.scenarios import DeviceManager


class StandIn:
    """``kubelet_standin.Kubelet`` of the real kubelet's version."""

    def __init__(self, kubelet: Kubelet, dra_kubelet: DraKubelet) -> None:
        """Use a running stand-in, which consists of two halves."""
        self._kubelet = kubelet
        self._dra_kubelet = dra_kubelet
        self._numbers = itertools.count()
        self._pods: dict[str, Pod] = {}

    @property
    def version(self) -> KubeletVersion:
        """The stand-in's version."""
        return self._kubelet.version

    @property
    def directory(self) -> str:
        """The directory of kubelet.sock."""
        return self._kubelet.directory

    @property
    def registry(self) -> str:
        """The directory plugins_registry."""
        return self._dra_kubelet.directory

    async def counts(self, resource: str) -> tuple[int, int] | None:
        """Return capacity and allocatable; None for a resource that the node's status does not have."""
        view = self._kubelet.resource(resource)
        return (view.capacity, view.allocatable) if view.known else None

    async def admit(self, resource: str, count: int) -> Admitted | Rejected:
        """Admit a pod, and start its container."""
        pod = self._new_pod(resource, count)
        try:
            allocation = (await self._kubelet.admit(pod)).containers["main"]
            await self._kubelet.start_container(pod, "main")
        except AdmissionError as error:
            return Rejected(error.reason, error.message)
        return Admitted(pod.name, frozenset(allocation.device_ids[resource]), dict(allocation.envs))

    def _new_pod(self, resource: str, count: int) -> Pod:
        pod = Pod(f"pod-{next(self._numbers)}", [Container("main", {resource: count})])
        self._pods[pod.name] = pod
        return pod

    async def admit_waiting(self, resource: str, count: int) -> str:
        """Admit a pod whose container does not start yet; return its name."""
        pod = self._new_pod(resource, count)
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

    async def held(self, pod: str, resource: str) -> frozenset[str]:
        """Return a pod's devices."""
        return frozenset(device for device, (name, _) in self._kubelet.allocated(resource).items() if name == pod)

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

    def __init__(self, node: Node) -> None:
        """Use a node whose kubelet runs."""
        self._node = node
        self._placed: dict[str, Placed] = {}

    @property
    def version(self) -> KubeletVersion:
        """The version of the stand-in that corresponds to this one."""
        return self._node.kubelet.standin

    @property
    def directory(self) -> str:
        """The directory of kubelet.sock."""
        return str(PLUGINS)

    @property
    def registry(self) -> str:
        """The directory plugins_registry."""
        return str(PLUGINS.parent / "plugins_registry")

    async def counts(self, resource: str) -> tuple[int, int] | None:
        """Return capacity and allocatable; None for a resource that the node's status does not have."""
        return await asyncio.to_thread(self._node.status, resource)

    async def admit(self, resource: str, count: int) -> Admitted | Rejected:
        """Create a pod, and wait until it runs or is rejected."""
        return await asyncio.to_thread(self._admit, resource, count)

    def _admit(self, resource: str, count: int) -> Admitted | Rejected:
        placed = self._place(resource, count)
        if (phase := placed.settled()) == "Failed":
            return Rejected(placed.status["reason"], placed.status["message"])
        assert phase == "Running", phase
        return Admitted(placed.name, frozenset(placed.held(resource=resource)), placed.view().environment)

    def _place(self, resource: str, count: int, **more: Any) -> Placed:
        placed = self._node.place(container("main", count, resource=resource), **more)
        self._placed[placed.name] = placed
        return placed

    async def admit_waiting(self, resource: str, count: int) -> str:
        """Create a pod whose container waits for another one, and wait until it is admitted; return its name."""
        placed = await asyncio.to_thread(self._place, resource, count, init=(container("wait"),))
        await asyncio.to_thread(until, lambda: placed.held(resource=resource), f"{placed.name} has its devices")
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

    async def held(self, pod: str, resource: str) -> frozenset[str]:
        """Return a pod's devices."""
        held = await asyncio.to_thread(self._node.kubelet.held, resource)
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


def _outcome(placed: Placed, before: str) -> tuple[str]:
    """Return why the kubelet cannot create the container; "" if another one than ``before`` runs."""
    waiting = placed.container()["state"].get("waiting", {})
    if waiting.get("reason") == "CreateContainerConfigError":
        return (waiting["message"],)
    assert placed.container_id() != before, f"the container of {placed.name} still runs"
    return ("",)


@contextlib.asynccontextmanager
async def stand_in(minor: int) -> AsyncIterator[DeviceManager]:
    """Run a stand-in for a minor version of the kubelet."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as directory:
        async with (
            Kubelet(directory, version=standin(minor)) as kubelet,
            DraKubelet(f"{directory}/plugins_registry", version=dra_standin(minor), watch_health=True) as dra_kubelet,
        ):
            yield StandIn(kubelet, dra_kubelet)


@contextlib.asynccontextmanager
async def real(node: Node) -> AsyncIterator[DeviceManager]:
    """Use the node's kubelet, and delete the pods afterwards."""
    manager = Real(node)
    try:
        yield manager
    finally:
        await asyncio.to_thread(manager.clear)
