"""Creates the backends and servers of a configuration, one per resource, and checks whether the host can serve them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.config.values import Api
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.deviceplugin.supervisor import PluginDirectory
from aosp_plugin.framework.dra.driver_names import driver_name
from aosp_plugin.framework.errors import ConfigError, PluginError
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.scan_loop import check_devices
from aosp_plugin.report.node_reporter import node_name
from aosp_plugin.report.observation import Observation

if TYPE_CHECKING:
    from aosp_plugin.framework.dra.driver import DraDriver


def create_backends(config: Config) -> dict[str, BinderBackend]:
    """Return the backend of each resource, by resource name."""
    return {
        resource.resource_name: create_backend(Host(config.host_root), resource, cdi_dir=config.cdi_dir)
        for resource in config.resources
    }


def create_backend(host: Host, resource: Resource, *, cdi_dir: str) -> BinderBackend:
    """Return the backend of a resource; a ``ClaimsBackend`` for DRA. The host is not accessed."""
    if resource.api is Api.DEVICE_PLUGIN:
        return BinderBackend(host, resource, cdi_dir=cdi_dir)
    from aosp_plugin.backend.claims_backend import ClaimsBackend  # noqa: PLC0415 - only DRA requires it

    return ClaimsBackend(host, resource, cdi_dir=cdi_dir)


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
    )


def device_plugins(servers: Iterable[ResourceServer]) -> list[DevicePlugin]:
    """Return those of the servers that are device plugins."""
    return [server for server in servers if isinstance(server, DevicePlugin)]


def dra_drivers(servers: Iterable[ResourceServer]) -> list[DraDriver]:
    """Return those of the servers that are DRA drivers."""
    return [cast("DraDriver", server) for server in servers if server.driver is not None]


def check_host(config: Config) -> None:
    """Check whether this host can serve a configuration, by scans without any other effect. May block.

    That includes what a running plugin only reports and retries, because the host may be about to change: a kubelet's
    or CDI directory that is not writable. Raises PluginError, HostError and OSError, several as a group.
    """
    check_phone_directories(config)
    backends = create_backends(config)
    errors: list[Exception] = []
    for backend in backends.values():
        try:
            backend.scan()
            if config.require_devices and not backend.creates_devices:
                check_devices(backend, backend.devices())
        except (OSError, HostError, PluginError) as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("the configuration cannot be served", errors)
    check_overlap(backends)
    for name, backend in backends.items():
        PluginDirectory(config.kubelet_dir, name).check()
        backend.check_host()


def check_phone_directories(config: Config) -> None:
    """Check that phones are neither below /dev nor with the binder devices of another resource, links followed.

    The configuration cannot tell, and on an unprepared host no scan finds a binder device of two resources. May block.
    Raises ConfigError.
    """
    if not any(resource.phones for resource in config.resources):
        return
    host = Host(config.host_root)
    directories: list[tuple[Resource, str]] = []
    for resource in config.resources:
        with contextlib.suppress(OSError):  # which the scan reports
            directories.append((resource, f"{host.resolve(resource.scan_directory)}/"))
    for resource, directory in directories:
        if resource.phones is not None and directory.startswith("/dev/"):
            raise ConfigError(
                f"phones.directory: {resource.scan_directory} is not allowed: it leads to {directory}, and the runtime "
                "gives a privileged container every device below /dev"
            )
    for (first, directory), (second, other) in itertools.combinations(directories, 2):
        if (first.phones or second.phones) and (directory.startswith(other) or other.startswith(directory)):
            raise ConfigError(
                f"resources: the binder devices of {first.resource_name} and {second.resource_name} are in {directory} "
                f"and in {other}: give the phones of each resource a directory of their own"
            )


def check_overlap(backends: Mapping[str, BinderBackend]) -> None:
    """Check that no binder device found by the last scans belongs to two resources, under the same or different names.

    Raises ConfigError.
    """
    if len(backends) == 1:
        return
    owners: dict[object, tuple[str, str]] = {}
    for name, backend in backends.items():
        for device in itertools.chain.from_iterable(backend.binder_devices().values()):
            owner, owner_path = owners.setdefault(device.identity, (name, device.path))
            if owner != name:
                alias = "" if owner_path == device.path else f" ({owner_path} of {owner})"
                raise ConfigError(
                    f"resources: binder device {device.path}{alias} belongs to both {owner} and {name}: use different "
                    f"prefixes or directories"
                )
