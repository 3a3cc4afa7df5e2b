"""Creates the backends and servers of a configuration, and checks whether the host can serve it, and still can."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping
from functools import partial

from aosp_plugin import SOCKET_PREFIX
from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.catalog import MOUNTS_UNREADABLE
from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.backend.offers import Offers
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.config.keys import Config, Resource, status_address
from aosp_plugin.config.sources import node_name
from aosp_plugin.config.values import Api
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.apiserver.credentials import in_cluster
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.dra.driver import DraDirectories, DraDriver
from aosp_plugin.framework.dra.slices import driver_name
from aosp_plugin.framework.errors import ConfigError, PluginError
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.service.address import listen, listen_address
from aosp_plugin.framework.sockets import PluginDirectory, is_removed_mount
from aosp_plugin.framework.timing import DEFAULT
from aosp_plugin.framework.worker import Worker


def create_backends(
    config: Config, conditions: Conditions | None = None, offers: Offers | None = None
) -> dict[str, BinderBackend]:
    """Return the backend of each resource, by resource name.

    With ``offers``, each device is healthy in one of them.
    """
    return {
        resource.resource_name: create_backend(
            Host(config.host_root), resource, cdi_dir=config.cdi_dir, conditions=conditions, offers=offers
        )
        for resource in config.resources
    }


def create_backend(
    host: Host,
    resource: Resource,
    *,
    cdi_dir: str,
    conditions: Conditions | None = None,
    offers: Offers | None = None,
) -> BinderBackend:
    """Return the backend of a resource; a ``ClaimsBackend`` for DRA. The host is not accessed."""
    kind = BinderBackend if resource.api is Api.DEVICE_PLUGIN else ClaimsBackend
    return kind(host, resource, cdi_dir=cdi_dir, conditions=conditions, offers=offers)


def create_server(config: Config, resource: Resource, backend: BinderBackend, runtime: Runtime) -> ResourceServer:
    """Return the server of a resource. Raises PluginError if it has no access to the API server that it requires."""
    if resource.api is Api.DEVICE_PLUGIN:
        return DevicePlugin(backend, kubelet_dir=config.kubelet_dir, socket_prefix=SOCKET_PREFIX, runtime=runtime)
    return DraDriver(
        backend,
        node_name=node_name(),
        directories=DraDirectories(
            registry=config.plugins_registry,
            state=config.driver_directory(driver_name(backend.resource_name)),
            cdi=os.path.normpath(f"{config.host_root}/{config.cdi_dir}"),
        ),
        credentials=in_cluster(
            config.service_account_dir, conditions=runtime.conditions, resource=backend.resource_name
        ),
        kubelet_socket=config.pod_resources_socket,
        runtime=runtime,
    )


def addresses(config: Config) -> set[tuple[str, int]]:
    """Return the addresses at which HTTP requests are answered."""
    return {each for each in (listen_address(config.listen), status_address(config)) if each is not None}


def check_host(config: Config, present: Config) -> None:
    """Check whether this host can serve a configuration instead of the present one. May block.

    Scans the host and binds the addresses that are new, without any other effect. Checks also what a running plugin
    only reports and retries, because the host may be about to change: a kubelet's or CDI directory that is not
    writable. Raises PluginError, HostError and OSError, several as a group.
    """
    for address in sorted(addresses(config) - addresses(present)):
        listen(address).close()
    if config.node_events or config.startup_taint or any(each.api is Api.DRA for each in config.resources):
        in_cluster(config.service_account_dir, conditions=Conditions())
    check_phone_directories(config)
    backends = create_backends(config)
    errors: list[Exception] = []
    found: dict[str, FoundDevices] = {}
    for name, backend in backends.items():
        try:
            found[name] = backend.scan()
        except (OSError, HostError, PluginError) as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("the configuration cannot be served", errors)
    check_overlap(found)
    for name, backend in backends.items():
        PluginDirectory(config.kubelet_dir, name, SOCKET_PREFIX).check()
        backend.check_host(found[name])


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


def check_overlap(found: Mapping[str, FoundDevices]) -> None:
    """Check that no binder device that the scans of resources have found belongs to two of them, whatever its names.

    Raises ConfigError.
    """
    if len(found) == 1:
        return
    owners: dict[object, tuple[str, str]] = {}
    for name, each in found.items():
        for device in itertools.chain.from_iterable(each.members.values()):
            owner, owner_path = owners.setdefault(device.file, (name, device.path))
            if owner != name:
                alias = "" if owner_path == device.path else f" ({owner_path} of {owner})"
                raise ConfigError(
                    f"resources: binder device {device.path}{alias} belongs to both {owner} and {name}: use different "
                    f"prefixes or directories"
                )


async def end_with_removed_mounts(
    config: Config, conditions: Conditions, worker: Worker, interval: float = DEFAULT.recheck
) -> None:
    """Raise PluginError when a directory that this process has as a mount was removed on the host, until cancelled.

    A running container keeps the removed directory: nobody reads the files that the process writes there, and the
    process does not see the files in the directory's successor, which only a new container has. ``sockets`` checks the
    kubelet's directories in the same way. ``interval`` is in seconds.
    """
    paths = _written_directories(config)
    while True:
        try:
            removed = await worker.run(partial(_removed_mounts, paths), label="look at mounts")
        except OSError as error:
            conditions.set(MOUNTS_UNREADABLE, str(error))
        else:
            conditions.set(MOUNTS_UNREADABLE, "")
            if removed:
                raise PluginError(f"{', '.join(removed)} was removed on the host: this container has it as a mount")
        await asyncio.sleep(interval)


def _written_directories(config: Config) -> list[str]:
    """Return the directories of the host in which the process writes, as paths of this process."""
    directories = {config.cdi_dir, *(each.scan_directory for each in config.resources if each.phones)}
    drivers = {driver_name(each.resource_name) for each in config.resources if each.api is Api.DRA}
    on_host = {os.path.normpath(f"{config.host_root}/{directory}") for directory in directories}
    return sorted({*on_host, *map(config.driver_directory, drivers)})


def _removed_mounts(paths: Iterable[str]) -> list[str]:
    """Return the mounts with these paths, or above them, whose directories have been removed. Raises OSError."""
    nearest = set()
    for path in paths:
        while not os.path.exists(path):
            path = os.path.dirname(path)  # noqa: PLW2901 - a removed directory has none below
        nearest.add(path)
    return [path for path in sorted(nearest) if is_removed_mount(path)]
