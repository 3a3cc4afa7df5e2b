"""Creates what serves each resource: a device plugin, or a DRA driver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from aosp_plugin.config import Api
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.dra.names import driver_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.config import Config, Resource
    from aosp_plugin.daemon.observation import Observation
    from aosp_plugin.framework.dra.driver import DraDriver
    from aosp_plugin.framework.events.file_events import FileEvents
    from aosp_plugin.framework.resource_server import ResourceServer

NODE_VARIABLE = "NODE_NAME"
"""Environment variable with the name of the Kubernetes node. The host name that a container sees is that of its pod."""


def node_name() -> str:
    """Return the name of the Kubernetes node."""
    return os.environ.get(NODE_VARIABLE) or os.uname().nodename


def create_server(
    config: Config, resource: Resource, backend: BinderBackend, files: FileEvents, observation: Observation
) -> ResourceServer:
    """Return the server of a resource. Raises PluginError if it has no access to the API server that it requires."""
    observer = observation.observer(resource.resource_name)
    if resource.api is Api.DEVICE_PLUGIN:
        return DevicePlugin(backend, kubelet_dir=config.kubelet_dir, files=files, observer=observer)
    from aosp_plugin.framework.apiserver.credentials import in_cluster  # noqa: PLC0415 - only where DRA is on
    from aosp_plugin.framework.dra.driver import DraDirectories, DraDriver  # noqa: PLC0415 - as above

    return DraDriver(
        backend,
        node_name=node_name(),
        directories=DraDirectories(
            registry=config.plugins_registry,
            state=config.driver_directory(driver_name(resource.resource_name)),
            cdi=os.path.normpath(f"{config.host_root}/{config.cdi_dir}"),
        ),
        credentials=in_cluster(config.service_account_dir),
        kubelet_socket=config.pod_resources_socket,
        files=files,
        observer=observer,
        dra_observer=observation.dra_observer(resource.resource_name),
    )


def device_plugins(servers: Iterable[ResourceServer]) -> list[DevicePlugin]:
    """Return those of the servers that are device plugins."""
    return [server for server in servers if isinstance(server, DevicePlugin)]


def dra_drivers(servers: Iterable[ResourceServer]) -> list[DraDriver]:
    """Return those of the servers that are DRA drivers."""
    return [cast("DraDriver", server) for server in servers if server.driver is not None]
