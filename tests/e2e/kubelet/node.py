"""The node under test: kubelet, runtime, plugin, binder devices, and pods with what is seen inside of them."""

import contextlib
import itertools
import os
import re
import shutil
import signal
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from aosp_plugin.daemon import device_records
from tests.e2e.common.device_tool import COMMAND
from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.kubelet import pods
from tests.e2e.kubelet.crio import ContainerRuntime
from tests.e2e.kubelet.plugins import AsPod, AsProcess
from tests.e2e.kubelet.pods import PREFIX, RESOURCE, ContainerView
from tests.e2e.kubelet.runtime import without_scheme
from tests.e2e.kubelet.standalone import PLUGINS, Standalone
from tests.e2e.kubelet.versions import rejections

COUNT: Final = 12
_NUMBERS = itertools.count(1)


def names(*numbers: int) -> set[str]:
    """Return the names of the binder devices with these numbers."""
    return {f"{PREFIX}{number}" for number in numbers}


def natural_sort(names: AbstractSet[str]) -> list[str]:
    """Return names ordered by number."""
    return sorted(names, key=lambda name: int(name.removeprefix(PREFIX)))


ALL: Final = names(*range(COUNT))


class Placed:
    """A pod on the node."""

    def __init__(self, node: "Node", manifest: dict[str, Any]) -> None:
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


class Node:
    """A node without a cluster."""

    def __init__(
        self,
        kubelet: Standalone,
        runtime: ContainerRuntime,
        plugin: AsPod | AsProcess,
        *,
        resource: str = RESOURCE,
        devices: AbstractSet[str] = ALL,
        each: int = 3,
    ) -> None:
        """Connect the parts.

        ``resource`` is the plugin's resource, or the first of several; ``devices`` are its devices that are healthy
        while all binder devices exist; ``each`` is the number of devices of each of the two ``phones``.
        """
        self.kubelet = kubelet
        self.runtime = runtime
        self.plugin = plugin
        self.resource = resource
        self.devices = devices
        self._each = each
        self.intact = False
        """Whether the last test left the state that the next one expects."""
        self._phones: dict[str, Placed] = {}

    def recover(self) -> None:
        """Restore the state that tests expect."""
        self._reset()
        if not self.plugin.running():
            self.plugin.start()
        with contextlib.suppress(AssertionError):  # the tests report it
            self.wait_allocatable(self.devices)

    def _reset(self) -> None:
        if not self.kubelet.daemon.running:
            self.kubelet.start()
        self.clear()
        create_devices()

    def tear_down(self) -> None:
        """Remove the pods and the plugin with its records, as docs/deploy.md says."""
        self._reset()
        if self.plugin.running():
            self.plugin.stop()
        shutil.rmtree(PLUGINS / device_records.DIRECTORY, ignore_errors=True)

    def stop_plugin(self) -> None:
        """Stop the plugin, and wait until nothing is allocatable."""
        if self.plugin.running():
            self.plugin.stop()
        self.wait_allocatable(set())

    def place(self, *containers: dict[str, Any], name: str = "pod", **more: Any) -> Placed:
        """Create a pod with a unique name."""
        manifest = pods.pod(f"{name}-{next(_NUMBERS)}", *containers, **more)
        placed = Placed(self, manifest)
        self.kubelet.create(placed.name, manifest)
        return placed

    def remove(self, *placed: Placed) -> None:
        """Delete pods, and wait until they have ended, which is later than the kubelet drops them."""
        known = self.kubelet.pods()
        names = {pod.name for pod in placed}
        statuses = [known.get(name, {}).get("status", {}).get("containerStatuses", []) for name in names]
        containers = {without_scheme(status.get("containerID", "")) for pod in statuses for status in pod}
        for name in names:
            self.kubelet.delete(name)
        until(lambda: not names & self.kubelet.pods().keys(), f"the kubelet has dropped {names}")
        until(lambda: not containers & self.runtime.running(), f"the containers of {names} have ended")

    @contextlib.contextmanager
    def running(self, *containers: dict[str, Any], **more: Any) -> Iterator[Placed]:
        """Run a pod while the context lasts."""
        placed = self.place(*containers, **more)
        try:
            placed.wait_phase("Running")
            yield placed
        finally:
            self.remove(placed)

    def assert_rejected(self, count: int, text: str) -> None:
        """Check that the kubelet rejects a pod that requests ``count`` devices, with exactly this error."""
        pod = self.place(pods.container("main", count, resource=self.resource))
        try:
            pod.wait_phase("Failed")
            pod.assert_rejected(text)
        finally:
            self.remove(pod)

    def running_with(self, count: int) -> contextlib.AbstractContextManager[Placed]:
        """Run a pod with ``count`` devices while the context lasts."""
        return self.running(pods.container("main", count, resource=self.resource))

    @property
    def phones(self) -> tuple[Placed, Placed]:
        """The two shared pods, which run from their first use on."""
        for name in ("phone-a", "phone-b"):
            if name not in self._phones:
                main = pods.container("main", self._each, resource=self.resource)
                self._phones[name] = self.place(main, name=name)
        first, second = self._phones["phone-a"], self._phones["phone-b"]
        first.wait_phase("Running")
        second.wait_phase("Running")
        return first, second

    def retire(self, phone: Placed) -> None:
        """Delete one of the two shared pods; the next use creates another one."""
        self._phones = {name: pod for name, pod in self._phones.items() if pod is not phone}
        self.remove(phone)

    def clear(self) -> None:
        """Delete the two shared pods."""
        self.remove(*self._phones.values())
        self._phones.clear()

    def wait_allocatable(self, devices: AbstractSet[str], resource: str = "") -> None:
        """Wait until the kubelet can allocate exactly these devices, by default of the node's resource."""
        until(
            lambda: self._allocatable(devices, resource or self.resource),
            f"the kubelet can allocate {len(devices)} devices",
        )

    def _allocatable(self, devices: AbstractSet[str], resource: str) -> bool:
        allocatable = self.kubelet.allocatable(resource)
        assert allocatable == devices, f"allocatable: {sorted(allocatable)}, expected: {sorted(devices)}"
        return True

    def status(self, resource: str = "") -> tuple[int, int] | None:
        """Return capacity and allocatable of the node's status; None if it does not have the resource.

        Without an API server the kubelet writes them only to its log, whenever it admits a pod. So this creates a pod
        that does not match the node. The log has allocatable only if it differs from capacity.
        """
        resource = resource or self.resource
        log = self.kubelet.daemon.log
        before = log.stat().st_size
        probe = self.place(pods.container("main"), name="probe", nodeSelector={"aosp.io/e2e": "elsewhere"})
        probe.wait_phase("Failed")
        text = log.read_bytes()[before:].decode()
        self.remove(probe)
        capacity = re.findall(rf'"Updated capacity for device plugin" plugin="{resource}" capacity=(\d+)', text)
        if not capacity:
            return None
        allocatable = re.findall(rf'"Updated allocatable" device="{resource}" allocatable=(\d+)', text)
        return int(capacity[-1]), int(allocatable[-1] if allocatable else capacity[-1])

    def health(self, placed: Placed, container: str = "main") -> dict[str, str]:
        """Return the health of a container's devices in the pod's status."""
        for status in placed.container(container).get("allocatedResourcesStatus", []):
            if status["name"] == self.resource:
                return {device["resourceID"]: device["health"] for device in status["resources"]}
        return {}

    def logs(self) -> list[tuple[str, str]]:
        """Return the ends of the logs of kubelet, plugin and container runtime, each with its name."""
        runtime = self.runtime.daemon
        return [("kubelet", self.kubelet.daemon.tail()), ("plugin", self.plugin.tail()), (runtime.name, runtime.tail())]


def device_tool(*words: str) -> str:
    """Run hack/binder_devices.py."""
    return run(*COMMAND, *words)


def create_devices(count: int = COUNT, prefix: str = PREFIX) -> None:
    """Create the missing stand-ins of the first ``count`` binder devices."""
    device_tool("create", "--stand-ins", "--count", str(count), "--prefix", prefix)


def remove_devices(*numbers: int) -> None:
    """Delete binder devices, as the driver does."""
    for name in names(*numbers):
        os.unlink(f"/dev/{name}")
