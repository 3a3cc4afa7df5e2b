"""Removal of the CDI specs of resources that have left the configuration.

A spec stays when the plugin ends, and when its resource no longer uses CDI: a container that restarts requires it,
because the kubelet passes the same CDI names again without a call of the plugin. So each start and each reload removes
those of resources that are no longer served.

The directory has specs of other programs too, and of plugins that serve other resources of the node and may be away.
Therefore a plugin removes only the specs

- of resources that it served before a reload;
- that its predecessor recorded, in a file beside the specs whose name has the first resource of both. A spec has no
  place for it: annotations require CDI 0.6.0, and containerd before 1.7.12 rejects that;

and none whose resource another process serves now, as in a rolling update with maxSurge.
"""

import contextlib
import os
from collections.abc import Collection, Sequence

import msgspec

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Config
from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.cdi import spec_path
from aosp_plugin.framework.deviceplugin.supervisor import PluginDirectory
from aosp_plugin.framework.devices import CDI
from aosp_plugin.framework.sockets import socket_stem


def remove_stale_specs(config: Config, previous: Collection[str] = ()) -> Sequence[str]:
    """Remove the specs that ``config`` no longer needs, and record those that it needs; return the removed ones.

    ``previous`` are the resources that this process served before. May block. Raises OSError.
    """
    host = Host(config.host_root)
    directory = host.process_path(host.resolve(config.cdi_dir))
    own = [resource.resource_name for resource in config.resources]
    uses_cdi = {resource.resource_name for resource in config.resources if not CDI.isdisjoint(resource.device_list)}
    # No runtime reads a file with this name.
    record = os.path.join(directory, f".{socket_stem(own[0], 'aosp-')}.resources")
    found = {name for name in (*own, *previous, *_recorded(record)) if os.path.lexists(spec_path(directory, name))}
    unused = sorted(found.difference(own))
    served = {name for name in unused if PluginDirectory(config.kubelet_dir, name).other_plugins()}
    removed = [path for name in unused if name not in served and atomic_file.remove(path := spec_path(directory, name))]
    if specs := sorted((uses_cdi | found.intersection(own) | served) - {own[0]}):
        atomic_file.make_directory(directory)
        atomic_file.replace(record, msgspec.json.encode(specs))
    else:
        atomic_file.remove(record)
    return removed


def _recorded(path: str) -> list[str]:
    """Return the resources that a predecessor had specs of, other than its first one."""
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError), open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=list[str])
    return []
