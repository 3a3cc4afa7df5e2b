"""A configuration made into plugins: one for each resource. Running them is ``serve``'s work."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin import config
from aosp_plugin.backend import BinderBackend, Settings, identities
from aosp_plugin.binder.devices import numa, sets
from aosp_plugin.binder.devices.edits import Policy
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import provisioner
from aosp_plugin.errors import ConfigError, DeviceDirectoryError
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory
from aosp_plugin.framework.observer import NULL_OBSERVER
from aosp_plugin.framework.resource_names import socket_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.config import Config, Resource
    from aosp_plugin.framework.events.file_events import FileEvents
    from aosp_plugin.framework.observer import Observer


class ResourceRuntime(NamedTuple):
    """One resource."""

    name: str
    backend: BinderBackend
    plugin: DevicePlugin


def assemble(
    current: Config, files: FileEvents, observer: Callable[[str], Observer] = lambda _: NULL_OBSERVER
) -> list[ResourceRuntime]:
    """Return the plugins of a configuration, each with the observer for its resource; for the event loop that runs."""
    served = []
    for resource in current.resources:
        backend = BinderBackend(Host(current.host_root), settings_of(current, resource))
        plugin = DevicePlugin(
            backend,
            kubelet_dir=current.kubelet_dir,
            files=files,
            observer=observer(resource.resource_name),
        )
        served.append(ResourceRuntime(resource.resource_name, backend, plugin))
    return served


def check(current: Config) -> None:
    """See whether a configuration could be served on this host, without changing anything.

    Raises ConfigError where a node would be two resources', and HostError or KubeletError for a directory that is not
    there. May take as long as a look at all nodes.
    """
    host = Host(current.host_root)
    for resource in current.resources:
        PluginDirectory(current.kubelet_dir, socket_name(resource.resource_name)).check()
        if resource.provision is None and not host.exists(resource.device_dir):
            raise DeviceDirectoryError(f"the device directory {resource.device_dir} does not exist")
    check_overlap(current)


def check_overlap(current: Config) -> None:
    """See whether two resources have a node in common, by whatever names. Raises ConfigError that names it."""
    if len(current.resources) == 1:
        return
    taken: dict[object, tuple[str, str]] = {}
    for resource in current.resources:
        found = identities(Host(current.host_root), settings_of(current, resource))
        for identity, path in found.items():
            other, at = taken.setdefault(identity, (resource.resource_name, path))
            if other != resource.resource_name:
                same = "" if at == path else f", which is {at} of {other}"
                raise ConfigError(
                    f"resources: the node {path}{same} would be both {other}'s and {resource.resource_name}'s: "
                    f"give them other prefixes or directories"
                )


def settings_of(current: Config, resource: Resource) -> Settings:
    """Return what a resource's configuration says, in binder's terms."""
    return Settings(
        resource_name=resource.resource_name,
        directory=resource.scan_directory,
        prefix=resource.device_prefix,
        verify=resource.verify,
        missing_device_ttl=resource.missing_device_ttl,
        policy=Policy(
            permissions=resource.permissions,
            isolation=resource.isolation,
            shared_mounts=[config.shared_path(text) for text in resource.shared_mounts],
            shared_devices=[config.shared_path(text) for text in resource.shared_devices],
            visible_devices_variable=resource.visible_devices_env,
            path=resource.path_env,
            container_paths=resource.container_paths,
        ),
        layout=_layout(resource),
        replicas=resource.replicas,
        numa=numa.parse(resource.numa),
        ways=frozenset(resource.device_list),
        keep=_wanted(resource),
        renew=resource.recreate is config.Recreate.ON_START,
        cdi_directory=current.cdi_dir,
    )


def _layout(resource: Resource) -> sets.Layout:
    match resource.sets:
        case None:
            return sets.Single()
        case config.NumberedSets(size=size, stride=stride, first=first):
            return sets.Numbered(resource.device_prefix, size, stride, first)
        case config.NamedSets(names=names, pattern=pattern):
            return sets.Named(names, pattern)


def _wanted(resource: Resource) -> provisioner.ProvisionSpec | None:
    provision = resource.provision
    if provision is None:
        return None
    return provisioner.ProvisionSpec(
        directory=provision.directory,
        prefix=resource.device_prefix,
        first=provision.first,
        count=provision.count,
        binderfs=provision.directory,
        max_devices=provision.max,
    )
