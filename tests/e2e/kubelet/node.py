"""The node as the items see it: kubelet, runtime, plugin, device nodes and pods together."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.kubelet import pods
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.placed import Placed
from tests.e2e.kubelet.pods import PREFIX, RESOURCE
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from tests.e2e.kubelet.plugins import Plugin
    from tests.e2e.kubelet.runtime import Runtime
    from tests.e2e.kubelet.standalone import Standalone

__all__ = ["ALL", "COUNT", "Node", "Placed", "create_devices", "hack", "names", "natural_sort", "remove_devices"]

COUNT: Final = 12
_NUMBERS = itertools.count(1)


def names(*numbers: int) -> set[str]:
    """Return the names of nodes."""
    return {f"{PREFIX}{number}" for number in numbers}


def natural_sort(found: AbstractSet[str]) -> list[str]:
    """Return names in the order of their numbers."""
    return sorted(found, key=lambda name: int(name.removeprefix(PREFIX)))


ALL: Final = names(*range(COUNT))


class Node:
    """A node of a cluster, without the cluster."""

    def __init__(
        self,
        kubelet: Standalone,
        runtime: Runtime,
        plugin: Plugin,
        *,
        resource: str = RESOURCE,
        devices: AbstractSet[str] = ALL,
        each: int = 3,
    ) -> None:
        """Put the parts together.

        ``resource`` is the plugin's, or the first one of several; ``devices`` are those of it that are healthy while
        all nodes are there; ``each`` is how many the two ``phones`` have.
        """
        self.kubelet = kubelet
        self.runtime = runtime
        self.plugin = plugin
        self.resource = resource
        self.devices = devices
        self._each = each
        self._phones: dict[str, Placed] = {}

    def recover(self) -> None:
        """Have all as an item may expect it, after one that failed half-way, or before one that is run alone."""
        if not self.kubelet.daemon.running:
            self.kubelet.start()
        self.clear()
        create_devices()
        if not self.plugin.running():
            self.plugin.start()
        with contextlib.suppress(AssertionError):  # the items will say
            self.wait_allocatable(self.devices)

    def leave(self) -> None:
        """Have neither pods nor a plugin: after the last item, or the last one of those that were wanted."""
        self.clear()
        if self.plugin.running():
            self.plugin.stop()

    def away(self) -> None:
        """Have the plugin away."""
        if self.plugin.running():
            self.plugin.stop()
        self.wait_allocatable(set())

    def place(self, *containers: dict[str, Any], name: str = "pod", **more: Any) -> Placed:
        """Put a pod on the node, under a name that no other pod had."""
        manifest = pods.pod(f"{name}-{next(_NUMBERS)}", *containers, **more)
        placed = Placed(self, manifest)
        self.kubelet.put(placed.name, manifest)
        return placed

    def remove(self, *placed: Placed) -> None:
        """Take pods off the node, and wait until they are gone; the kubelet forgets them before they end."""
        known = self.kubelet.pods()
        every = [known.get(one.name, {}).get("status", {}).get("containerStatuses", []) for one in placed]
        containers = {one.get("containerID", "").removeprefix("containerd://") for some in every for one in some}
        for one in placed:
            self.kubelet.take(one.name)
        gone = {one.name for one in placed}
        until(lambda: not gone & self.kubelet.pods().keys(), f"the kubelet has forgotten {gone}")
        until(lambda: not containers & self.runtime.running(), f"the containers of {gone} have ended")

    @contextlib.contextmanager
    def running(self, *containers: dict[str, Any], **more: Any) -> Iterator[Placed]:
        """Have a pod that runs while the context lasts."""
        placed = self.place(*containers, **more)
        try:
            placed.wait_phase("Running")
            yield placed
        finally:
            self.remove(placed)

    def refuse(self, count: int, text: str) -> None:
        """Check that the kubelet refuses a pod that asks for so many devices, with exactly this text."""
        pod = self.place(pods.container("main", count, resource=self.resource))
        try:
            pod.wait_phase("Failed")
            pod.refused(text)
        finally:
            self.remove(pod)

    def asking(self, count: int) -> contextlib.AbstractContextManager[Placed]:
        """Have a pod with so many devices that runs while the context lasts."""
        return self.running(pods.container("main", count, resource=self.resource))

    @property
    def phones(self) -> tuple[Placed, Placed]:
        """Two pods with as many devices each as the node was made for, which run from the first use on."""
        for name in ("phone-a", "phone-b"):
            if name not in self._phones:
                main = pods.container("main", self._each, resource=self.resource)
                self._phones[name] = self.place(main, name=name)
        first, second = self._phones["phone-a"], self._phones["phone-b"]
        first.wait_phase("Running")
        second.wait_phase("Running")
        return first, second

    def retire(self, phone: Placed) -> None:
        """Take one of the two pods off; the next use makes another one."""
        self._phones = {name: one for name, one in self._phones.items() if one is not phone}
        self.remove(phone)

    def clear(self) -> None:
        """Take the two pods off again."""
        self.remove(*self._phones.values())
        self._phones.clear()

    def wait_allocatable(self, devices: AbstractSet[str], resource: str = "") -> None:
        """Wait until the kubelet can hand out exactly these, of the node's resource if none is named."""
        until(
            lambda: self._allocatable(devices, resource or self.resource),
            f"the kubelet can allocate {len(devices)} devices",
        )

    def _allocatable(self, devices: AbstractSet[str], resource: str) -> bool:
        found = self.kubelet.allocatable(resource)
        assert found == devices, f"it can allocate {sorted(found)}, not {sorted(devices)}"
        return True

    def status(self, resource: str = "") -> tuple[int, int] | None:
        """Return capacity and allocatable as the kubelet counts them for its node's status; None without the resource.

        Without an API server they are only in its log, whenever it looks at a pod; so it is given one, which belongs
        to another node. Allocatable is told there if it differs.
        """
        resource = resource or self.resource
        log = self.kubelet.daemon.log
        before = log.stat().st_size
        stranger = self.place(pods.container("main"), name="stranger", nodeSelector={"aosp.io/e2e": "elsewhere"})
        stranger.wait_phase("Failed")
        text = log.read_bytes()[before:].decode()
        self.remove(stranger)
        capacity = re.findall(rf'"Updated capacity for device plugin" plugin="{resource}" capacity=(\d+)', text)
        if not capacity:
            return None
        allocatable = re.findall(rf'"Updated allocatable" device="{resource}" allocatable=(\d+)', text)
        return int(capacity[-1]), int(allocatable[-1] if allocatable else capacity[-1])

    def health(self, placed: Placed, container: str = "main") -> dict[str, str]:
        """Return the health of a container's devices as its pod's status tells it."""
        for one in placed.container(container).get("allocatedResourcesStatus", []):
            if one["name"] == self.resource:
                return {resource["resourceID"]: resource["health"] for resource in one["resources"]}
        return {}


def hack(*words: str) -> str:
    """Call hack/binder_nodes.py."""
    return run(sys.executable, str(PROJECT / "hack/binder_nodes.py"), *words)


def create_devices(count: int = COUNT, prefix: str = PREFIX) -> None:
    """Make the stand-in nodes that are missing of so many."""
    hack("create", "--way", "mknod", "--count", str(count), "--prefix", prefix)


def remove_devices(*numbers: int) -> None:
    """Remove nodes as the driver would."""
    for name in names(*numbers):
        os.unlink(f"/dev/{name}")
