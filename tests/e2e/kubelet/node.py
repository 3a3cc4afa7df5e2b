"""The node as the items see it: kubelet, runtime, plugin, device nodes and pods together."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.kubelet import pods
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.pods import RESOURCE, Seen
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.kubelet.plugins import Plugin
    from tests.e2e.kubelet.runtime import Runtime
    from tests.e2e.kubelet.standalone import Standalone

COUNT: Final = 12
_NUMBERS = itertools.count(1)


def names(*numbers: int) -> set[str]:
    """Return the names of nodes."""
    return {f"aosp_binder{number}" for number in numbers}


def natural(found: set[str]) -> list[str]:
    """Return names in the order of their numbers."""
    return sorted(found, key=lambda name: int(name.removeprefix("aosp_binder")))


ALL: Final = names(*range(COUNT))


class Placed:
    """A pod that was put on the node."""

    def __init__(self, node: Node, manifest: dict[str, Any]) -> None:
        """Know its name."""
        self._node = node
        self.manifest = manifest
        self.name: str = manifest["metadata"]["name"]

    @property
    def status(self) -> dict[str, Any]:
        """Its status, as the kubelet has it now; LookupError if the kubelet does not know the pod."""
        status: dict[str, Any] = self.pod["status"]
        return status

    @property
    def pod(self) -> dict[str, Any]:
        """All that the kubelet says of it; LookupError if it does not know the pod."""
        return self._node.kubelet.pods()[self.name]

    def wait_phase(self, phase: str) -> None:
        """Wait until it is in a phase."""
        until(lambda: self.status["phase"] == phase or self._complain(), f"pod {self.name} is {phase}")

    def _complain(self) -> bool:
        status = self.status
        raise AssertionError(f"{status['phase']} {status.get('reason')} {status.get('message')}")

    def refused(self, text: str) -> None:
        """Check that the kubelet refused it, with exactly this text."""
        status = self.status
        reason, message = status.get("reason"), status.get("message")
        assert reason == "UnexpectedAdmissionError", f"{reason}: {message}"
        assert message == f"Pod was rejected: {text}", message

    def container(self, name: str = "main") -> dict[str, Any]:
        """Return the status of a container."""
        status = self.status
        every = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        found: dict[str, dict[str, Any]] = {one["name"]: one for one in every}
        return found[name]

    def container_id(self, name: str = "main") -> str:
        """Return the ID of the container that runs."""
        container = self.container(name)
        assert "running" in container["state"], f"container {name} of {self.name}: {container['state']}"
        found: str = container["containerID"]
        return found.removeprefix("containerd://")

    def seen(self, container: str = "main") -> Seen:
        """Return what a container saw of itself, once it has told."""
        uid = self.pod["metadata"]["uid"]
        return until(lambda: pods.seen(uid, container), f"container {container} of {self.name} tells what it sees")

    def held(self, container: str = "main", *, resource: str = RESOURCE) -> set[str]:
        """Return the devices that the kubelet says the container has."""
        return self._node.kubelet.held(resource).get((self.name, container), set())

    def settled(self) -> str:
        """Wait until it runs, or has ended, or may not run, and return its phase."""
        until(lambda: self.status["phase"] != "Pending", f"pod {self.name} is no longer pending")
        phase: str = self.status["phase"]
        return phase

    def restart_container(self, name: str = "main") -> None:
        """Kill the container's first process, and wait for its successor."""
        before = self.container_id(name)
        self._node.runtime.signal(before, signal.SIGKILL)
        until(lambda: self.container_id(name) != before, f"container {name} of {self.name} runs again")


class Node:
    """A node of a cluster, without the cluster."""

    def __init__(self, kubelet: Standalone, runtime: Runtime, plugin: Plugin) -> None:
        """Put the parts together."""
        self.kubelet = kubelet
        self.runtime = runtime
        self.plugin = plugin
        self._phones: dict[str, Placed] = {}

    def recover(self) -> None:
        """Have all as an item may expect it, after one that failed half-way, or before one that is run alone."""
        if not self.kubelet.daemon.running:
            self.kubelet.start()
        self.clear()
        create_nodes()
        if not self.plugin.running():
            self.plugin.start()
        with contextlib.suppress(AssertionError):  # the items will say
            self.wait_allocatable(ALL)

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

    @property
    def phones(self) -> tuple[Placed, Placed]:
        """Two pods with three nodes each, which run from the first use on."""
        for name in ("phone-a", "phone-b"):
            if name not in self._phones:
                self._phones[name] = self.place(pods.container("main", 3), name=name)
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

    def wait_allocatable(self, devices: set[str]) -> None:
        """Wait until the kubelet can hand out exactly these."""
        until(
            lambda: self.kubelet.allocatable(RESOURCE) == devices or self._differs(devices),
            f"the kubelet can allocate {len(devices)} devices",
        )

    def _differs(self, devices: set[str]) -> bool:
        raise AssertionError(f"it can allocate {sorted(self.kubelet.allocatable(RESOURCE))}, not {sorted(devices)}")

    def status(self, resource: str = RESOURCE) -> tuple[int, int] | None:
        """Return capacity and allocatable as the kubelet counts them for its node's status; None without the resource.

        Without an API server they are only in its log, whenever it looks at a pod; so it is given one, which belongs
        to another node. Allocatable is told there if it differs.
        """
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
            if one["name"] == RESOURCE:
                return {resource["resourceID"]: resource["health"] for resource in one["resources"]}
        return {}


def hack(*words: str) -> str:
    """Call hack/binder_nodes.py."""
    return run(sys.executable, str(PROJECT / "hack/binder_nodes.py"), *words)


def create_nodes(count: int = COUNT) -> None:
    """Make the stand-in nodes that are missing of so many."""
    hack("create", "--way", "mknod", "--count", str(count))


def vanish(*numbers: int) -> None:
    """Remove nodes as the driver would."""
    for name in names(*numbers):
        os.unlink(f"/dev/{name}")
