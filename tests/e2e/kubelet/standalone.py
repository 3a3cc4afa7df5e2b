"""A real kubelet without an API server: configuration, start and stop, and its interfaces."""

import contextlib
import json
import os
import re
import signal
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import yaml

from aosp_plugin.framework.api import podresources_pb2 as pb
from aosp_plugin.framework.api import podresources_pb2_grpc as rpc
from tests.e2e.common.processes import Daemon
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kubelet import versions
from tests.e2e.kubelet.sandbox import NODE_ADDRESS

PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
CHECKPOINT: Final = PLUGINS / "kubelet_internal_checkpoint"
POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
NODE: Final = "e2e"
API: Final = "http://127.0.0.1:10255"
LARGEST_MESSAGE: Final = 16 * 1024 * 1024
_SINCE: Final = {"containerRuntimeEndpoint": 27, "failCgroupV1": 31, "crashLoopBackOff": versions.CRASH_LOOP.first}
"""The minor versions that introduced settings."""


def common_configuration(runtime_socket: str, minor: int = 34) -> dict[str, Any]:
    """Return the settings that differ from the defaults because there is no systemd, and images cannot be pulled.

    ``minor`` is the kubelet's minor version. Settings that it does not have yet are omitted.
    """
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{runtime_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"),
            "0%",
        ),
        # A killed container restarts within a second, instead of after the usual 10, 20, 40 s.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "featureGates": versions.gates(minor),
    }
    return {name: value for name, value in settings.items() if _SINCE.get(name, 0) <= minor}


def _configuration(manifests: Path, runtime_socket: str, minor: int) -> dict[str, Any]:
    """Return the configuration of a kubelet without an API server."""
    return common_configuration(runtime_socket, minor) | {
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "readOnlyPort": 10255,
        "staticPodPath": str(manifests),
        "fileCheckFrequency": "500ms",
    }


class Standalone:
    """A kubelet that runs static pods."""

    def __init__(self, binary: Path, directory: Path, runtime_socket: str, **settings: Any) -> None:
        """Write the configuration, in which ``settings`` replace others."""
        self.manifests = directory / "manifests"
        self.manifests.mkdir(parents=True)
        self.version = versions.of(binary)
        self.minor = versions.minor(self.version)
        self.standin = versions.standin(self.minor)
        config = directory / "kubelet.yaml"
        config.write_text(yaml.safe_dump(_configuration(self.manifests, runtime_socket, self.minor) | settings))
        # The DaemonSet's nodeSelector requires the label. Without the address the kubelet resolves the node's name.
        node = (f"--hostname-override={NODE}", f"--node-ip={NODE_ADDRESS}", "--node-labels=aosp.io/binder=true")
        command = [str(binary), f"--config={config}", f"--cert-dir={directory}/pki", *node, "--v=2"]
        if self.minor < _SINCE["containerRuntimeEndpoint"]:
            command.append(f"--container-runtime-endpoint=unix://{runtime_socket}")
        self.daemon = Daemon("kubelet", command, directory / "kubelet.log")

    def start(self) -> None:
        """Start the kubelet, and wait for its two sockets."""
        with contextlib.suppress(FileNotFoundError):
            Path(POD_RESOURCES).unlink()
        self.daemon.start()
        until(lambda: _accepts(PLUGINS / "kubelet.sock"), "the kubelet accepts plugins")
        until(lambda: _accepts(Path(POD_RESOURCES)), "the kubelet serves podresources")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the kubelet, and wait for its end."""
        self.daemon.end(number)

    def restart(self) -> None:
        """Stop the kubelet, and start it again."""
        self.stop()
        self.start()

    def create(self, name: str, manifest: Mapping[str, Any]) -> None:
        """Create a static pod, by a rename because the kubelet reads incomplete files too."""
        hidden = self.manifests / f".{name}"
        hidden.write_text(json.dumps(manifest))
        hidden.rename(self.manifests / f"{name}.json")

    def delete(self, name: str) -> None:
        """Delete a static pod, which ends some time later."""
        (self.manifests / f"{name}.json").unlink(missing_ok=True)

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods by name, without the node's name as suffix (/pods)."""
        pods = json.loads(_get("/pods")).get("items") or []
        return {pod["metadata"]["name"].removesuffix(f"-{NODE}"): pod for pod in pods}

    def metric(self, name: str, resource: str) -> float:
        """Return a metric of a resource; 0 if it does not exist yet."""
        found = re.search(rf'^{name}{{resource_name="{re.escape(resource)}"}} (\S+)$', _get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def registrations(self, resource: str) -> float:
        """Return how often a plugin of a resource has registered since the kubelet's start."""
        return self.metric("kubelet_device_plugin_registration_total", resource)

    def allocatable(self, resource: str) -> set[str]:
        """Return the healthy devices, allocated or not (GetAllocatableResources)."""
        answer = self._ask("GetAllocatableResources", pb.AllocatableResourcesRequest())
        return devices_of(answer, resource)

    def numa_nodes(self, resource: str) -> dict[str, set[int]]:
        """Return the NUMA nodes of each healthy device (GetAllocatableResources)."""
        answer = self._ask("GetAllocatableResources", pb.AllocatableResourcesRequest())
        numa_nodes: dict[str, set[int]] = {}
        for entry in answer.devices:  # one for each NUMA node of a device
            for device in entry.device_ids if entry.resource_name == resource else ():
                numa_nodes.setdefault(device, set()).update(node.ID for node in entry.topology.nodes)
        return numa_nodes

    def held(self, resource: str) -> dict[tuple[str, str], set[str]]:
        """Return the devices of each (pod, container) (List)."""
        answer = self._ask("List", pb.ListPodResourcesRequest())
        return {
            (pod.name.removesuffix(f"-{NODE}"), container.name): devices
            for pod in answer.pod_resources
            for container in pod.containers
            if (devices := devices_of(container, resource))
        }

    def held_by(self, pod: str, resource: str) -> dict[str, set[str]]:
        """Return the devices of a pod's containers (Get)."""
        request = pb.GetPodResourcesRequest(pod_name=f"{pod}-{NODE}", pod_namespace="default")
        containers = self._ask("Get", request).pod_resources.containers
        return {container.name: devices_of(container, resource) for container in containers}

    def _ask(self, method: str, request: Any) -> Any:
        return ask(POD_RESOURCES, method, request)


def ask(socket: str, method: str, request: Any) -> Any:
    """Call a method of the podresources API."""
    options = [("grpc.max_receive_message_length", LARGEST_MESSAGE), ("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        return getattr(rpc.PodResourcesListerStub(channel), method)(request, timeout=PATIENCE)


def devices_of(answer: Any, resource: str) -> set[str]:
    """Return the devices of a resource in an answer's list, which is that of the node or of a container."""
    return {device for entry in answer.devices if entry.resource_name == resource for device in entry.device_ids}


def checkpoint() -> dict[str, Any]:
    """Return the data of the kubelet's checkpoint."""
    data: dict[str, Any] = json.loads(CHECKPOINT.read_text())["Data"]
    return data


def _accepts(path: Path) -> bool:
    """Return whether a process listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(os.fspath(path)) == 0


def _get(path: str) -> str:
    with urllib.request.urlopen(f"{API}{path}", timeout=PATIENCE) as answer:  # noqa: S310 - the kubelet's own address
        text: str = answer.read().decode()
    return text
