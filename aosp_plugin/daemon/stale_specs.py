"""Removal of the CDI specs of resources that have left the configuration, or whose specs are in another directory now.

A spec stays when the plugin ends, and when its resource no longer uses CDI: a container that restarts requires it,
because the kubelet passes the same CDI names again without a call of the plugin. It goes with the record of its
resource (``device_records``), which names the directories that it may be in.

A resource has one spec on a host. The default order of the library, in which /var/run/cdi has precedence over /etc/cdi
(pkg/cdi/spec-dirs.go), decides which of two a runtime takes, without an error: changes of the configuration would have
no effect on new pods. So a spec in another directory than the configured one goes as soon as the configured one has it.

The directories have specs of other programs too.
"""

import contextlib
import os
from collections.abc import Iterable

from aosp_plugin import SOCKET_PREFIX
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Config
from aosp_plugin.daemon.device_records import DeviceRecord
from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.cdi import DIRECTORIES, spec_path
from aosp_plugin.framework.sockets import PluginDirectory


def remove_stale_specs(config: Config, records: Iterable[DeviceRecord]) -> list[str]:
    """Remove the specs of the resources with these records; return the paths of those that existed.

    The spec of a resource of ``config`` stays in the configured directory. It stays in others as well while the
    configured one does not have it, or another process serves the resource: that would write it again. May block.
    Raises OSError.
    """
    host = Host(config.host_root)
    present = host.process_path(host.resolve(config.cdi_dir))
    own = {resource.resource_name for resource in config.resources}
    removed: list[str] = []
    for record in records:
        name = record.resource
        directories = sorted({host.process_path(host.resolve(each)) for each in (*DIRECTORIES, *record.cdi_dirs)})
        if name in own:
            directories = [each for each in directories if not _is_same(each, present)]
        paths = [path for each in directories if os.path.lexists(path := spec_path(each, name))]
        if name in own and paths and (not os.path.lexists(spec_path(present, name)) or _is_served(config, name)):
            continue
        removed += filter(atomic_file.remove, paths)
    return removed


def _is_same(directory: str, other: str) -> bool:
    """Return whether two paths lead to the same directory. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samefile(directory, other)
    return False


def _is_served(config: Config, resource_name: str) -> bool:
    """Return whether another process serves a resource now. Raises OSError."""
    return bool(PluginDirectory(config.kubelet_dir, resource_name, SOCKET_PREFIX).other_plugins())
