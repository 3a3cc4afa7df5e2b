"""A node on which ``aosp-plugin serve`` runs with the configuration that a test writes, by default in its process."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.support import DeviceDirectory, Serve, ServeHere, listed


class ServedNode:
    """A directory with devices and a configuration, and a kubelet."""

    def __init__(self, directory: Path, kubelet: Kubelet, *, port: int = 0, **keys: Any) -> None:
        """``keys`` are what each configuration has; devices are plain files unless they say something else.

        ``port`` is that of the plugin's page, which has none by default.
        """
        self.directory = directory
        self.file = directory / "config.yaml"
        self.kubelet = kubelet
        self.port = port
        self.devices = DeviceDirectory(directory / "dev")
        self.environment: dict[str, str] = {}
        self._keys = {
            "version": "v1",
            "device_dir": str(self.devices.directory),
            "kubelet_dir": str(kubelet.directory),
            "verify": "file",
            "listen": f"127.0.0.1:{port}" if port else "",
            **keys,
        }

    def configure(self, **keys: Any) -> Path:
        """Write the configuration, without keys whose value is None, and return its path.

        A plugin that runs reads it at SIGHUP.
        """
        values = {key: value for key, value in {**self._keys, **keys}.items() if value is not None}
        self.file.write_text(json.dumps(values), encoding="utf-8")
        return self.file

    def serve(self, **keys: Any) -> ServeHere:
        """Write the configuration, and return the plugin."""
        flags = (str(self.kubelet.directory), f"--config={self.configure(**keys)}")
        return ServeHere(self.devices, *flags, environment=self.environment, usual_flags=False)

    def process(self, **options: Any) -> Serve:
        """Return the plugin as a process of its own. ``options`` are those of ``Serve``."""
        return Serve(self.devices, str(self.kubelet.directory), f"--config={self.file}", usual_flags=False, **options)

    @contextlib.asynccontextmanager
    async def offering(self, resource: str, count: int, **keys: Any) -> AsyncIterator[ServeHere]:
        """Serve a resource inside the context, from when the kubelet has ``count`` allocatable devices of it."""
        async with self.serve(resource_name=resource, **keys) as serve:
            await listed(self.kubelet, count, resource)
            yield serve

    async def start_pod(self, name: str, resource: str, count: int = 1) -> Pod:
        """Admit a pod and start its container."""
        pod = Pod(name, [Container("android", {resource: count})])
        await self.kubelet.admit(pod)
        await self.kubelet.start_container(pod, "android")
        return pod


@contextlib.asynccontextmanager
async def node_with_pods(
    directory: Path, namespaces: Mapping[str, str] | None = None, **arguments: Any
) -> AsyncIterator[ServedNode]:
    """Run a kubelet and its API for the devices of pods, whose namespaces are by their names."""
    socket = f"{directory}/pods.sock"
    async with Kubelet(directory / "k") as kubelet, PodResources(kubelet, socket, namespaces or {}):
        yield ServedNode(directory, kubelet, pod_resources_socket=socket, **arguments)
