"""A pod that was put on the node: what the kubelet says of it, and what its containers saw of themselves."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from tests.e2e.kubelet import pods
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node
    from tests.e2e.kubelet.pods import ContainerView


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

    def view(self, container: str = "main") -> ContainerView:
        """Return what a container saw of itself, once it has told."""
        uid = self.pod["metadata"]["uid"]
        return until(lambda: pods.view(uid, container), f"container {container} of {self.name} tells what it sees")

    def held(self, container: str = "main", *, resource: str = "") -> set[str]:
        """Return the devices that the kubelet says the container has; of the node's resource, if none is named."""
        return self._node.kubelet.held(resource or self._node.resource).get((self.name, container), set())

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
