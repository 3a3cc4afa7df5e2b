"""Creates the backends of a configuration, one per resource, and checks whether the host can serve them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from aosp_plugin.backend import BinderBackend
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.errors import ConfigError
from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aosp_plugin.config import Config


def create_backends(config: Config) -> dict[str, BinderBackend]:
    """Return the backend of each resource, by resource name."""
    return {
        resource.resource_name: BinderBackend(Host(config.host_root), resource, cdi_dir=config.cdi_dir)
        for resource in config.resources
    }


def check_host(config: Config, backends: Mapping[str, BinderBackend]) -> None:
    """Check what a running plugin would report and retry, because the host may be about to change.

    Raises KubeletDirectoryError, CdiError, HostError and OSError. May block.
    """
    for name, backend in backends.items():
        PluginDirectory(config.kubelet_dir, name).check()
        backend.check_host()


def check_overlap(backends: Mapping[str, BinderBackend]) -> None:
    """Check that no binder device found by the last scans belongs to two resources, under the same or different names.

    Raises ConfigError.
    """
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
