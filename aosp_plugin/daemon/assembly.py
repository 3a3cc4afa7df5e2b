"""Creates the backends of a configuration, one per resource, and checks whether the host can serve them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.backend import BinderBackend, identities
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.errors import ConfigError, DeviceDirectoryError
from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory

if TYPE_CHECKING:
    from aosp_plugin.config import Config


def create_backends(config: Config) -> dict[str, BinderBackend]:
    """Return the backend of each resource, by resource name."""
    return {
        resource.resource_name: BinderBackend(Host(config.host_root), resource, cdi_dir=config.cdi_dir)
        for resource in config.resources
    }


def check(config: Config) -> None:
    """Check whether a configuration can be served on this host, without changing anything.

    Raises ConfigError if two resources share a binder device, and HostError or KubeletError if a directory is missing.
    Scans all binder devices.
    """
    host = Host(config.host_root)
    for resource in config.resources:
        PluginDirectory(config.kubelet_dir, resource.resource_name).check()
        if resource.provision is None and not host.exists(resource.device_dir):
            raise DeviceDirectoryError(f"the device directory {resource.device_dir} does not exist")
    check_overlap(config)


def check_overlap(config: Config) -> None:
    """Check that no binder device belongs to two resources, under the same or different names. Raises ConfigError."""
    if len(config.resources) == 1:
        return
    owners: dict[object, tuple[str, str]] = {}
    for resource in config.resources:
        name = resource.resource_name
        for identity, path in identities(Host(config.host_root), resource).items():
            owner, owner_path = owners.setdefault(identity, (name, path))
            if owner != name:
                alias = "" if owner_path == path else f" ({owner_path} of {owner})"
                raise ConfigError(
                    f"resources: binder device {path}{alias} belongs to both {owner} and {name}: use different "
                    f"prefixes or directories"
                )
