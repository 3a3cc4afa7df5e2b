"""A pod on the node: its status, and the views from inside of its containers."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from tests.e2e.kubelet import pods
from tests.e2e.kubelet.container_runtime import without_scheme
from tests.e2e.kubelet.versions import rejections
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Node
    from tests.e2e.kubelet.pods import ContainerView


class Placed:
    """A pod on the node."""

    def __init__(self, node: Node, manifest: dict[str, Any]) -> None:
        """Keep the pod's name."""
        self._node = node
        self.manifest = manifest
        self.name: str = manifest["metadata"]["name"]

    @property
    def status(self) -> dict[str, Any]:
        """The pod's current status. Raises LookupError if the kubelet does not know the pod."""
        status: dict[str, Any] = self.pod["status"]
        return status

    @property
    def pod(self) -> dict[str, Any]:
        """The pod as the kubelet reports it. Raises LookupError if the kubelet does not know the pod."""
        return self._node.kubelet.pods()[self.name]

    def wait_phase(self, phase: str) -> None:
        """Wait until the pod is in a phase."""
        until(lambda: self.status["phase"] == phase or self._raise_status(), f"pod {self.name} is {phase}")

    def _raise_status(self) -> bool:
        status = self.status
        raise AssertionError(f"{status['phase']} {status.get('reason')} {status.get('message')}")

    def assert_rejected(self, text: str) -> None:
        """Check that the kubelet rejected the pod, with exactly this error of Allocate."""
        status = self.status
        reason, message = status.get("reason"), status.get("message")
        assert reason == "UnexpectedAdmissionError", f"{reason}: {message}"
        assert message in rejections(text), message

    def container(self, name: str = "main") -> dict[str, Any]:
        """Return the status of a container."""
        status = self.status
        statuses = [*status.get("containerStatuses", []), *status.get("initContainerStatuses", [])]
        containers: dict[str, dict[str, Any]] = {container["name"]: container for container in statuses}
        return containers[name]

    def container_id(self, name: str = "main") -> str:
        """Return the ID of the running container."""
        container = self.container(name)
        assert "running" in container["state"], f"container {name} of {self.name}: {container['state']}"
        identifier: str = container["containerID"]
        return without_scheme(identifier)

    def view(self, container: str = "main") -> ContainerView:
        """Wait for the container's report about itself, and return it."""
        uid = self.pod["metadata"]["uid"]
        return until(lambda: pods.view(uid, container), f"container {container} of {self.name} reports")

    def held(self, container: str = "main", *, resource: str = "") -> set[str]:
        """Return the container's devices according to List, by default of the node's resource."""
        return self._node.kubelet.held(resource or self._node.resource).get((self.name, container), set())

    def settled(self) -> str:
        """Wait until the pod is no longer pending, and return its phase."""
        until(lambda: self.status["phase"] != "Pending", f"pod {self.name} is no longer pending")
        phase: str = self.status["phase"]
        return phase

    def restart_container(self) -> None:
        """Kill the container's first process, and wait until a new container runs."""
        before = self.container_id()
        self._node.runtime.signal(before, signal.SIGKILL)
        until(lambda: self.container_id() != before, f"the container of {self.name} runs again")
