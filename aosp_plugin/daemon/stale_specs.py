"""Removal of the CDI specs of resources that have left the configuration, or no longer use CDI.

A spec stays when the plugin ends: a container that restarts meanwhile requires it, because the kubelet passes the same
CDI names again without a call of the plugin. So each start and each reload removes those that are no longer needed.

The directory has specs of other programs too, and of plugins that serve other resources of the node and may be away.
Therefore a plugin removes only the specs

- of resources that it serves itself without CDI, or served before a reload;
- that its predecessor recorded. A plugin with several resources writes their names into a file beside the specs. Two
  plugins never share a resource except as predecessor and successor, so a record with a resource of this configuration
  is a predecessor's. The spec itself has no place for it: annotations require CDI 0.6.0, and containerd before 1.7.13
  rejects that;

and none whose resource another process serves now, as in a rolling update with maxSurge.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

import msgspec

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.cdi.spec_file import spec_path
from aosp_plugin.framework.device_list import CDI
from aosp_plugin.framework.deviceplugin.kubelet_client import PluginDirectory
from aosp_plugin.framework.resource_names import socket_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from aosp_plugin.config import Config

_RECORD = re.compile(r"\.aosp-.+\.resources")  # no runtime reads it: it reads *.json and *.yaml


class _Record(msgspec.Struct):
    resources: list[str]
    specs: list[str]
    """The resources that have a spec, also former ones that another process still serves."""


def remove_stale_specs(config: Config, previous: Collection[str] = ()) -> Sequence[str]:
    """Remove the specs that ``config`` no longer needs, and record those that it needs; return the removed ones.

    ``previous`` are the resources that this process served before. May block. Raises OSError and HostError.
    """
    host = Host(config.host_root)
    directory = host.process_path(host.resolve(config.cdi_dir))
    return host.call(lambda _: _remove(config, directory, previous), directory)


def _remove(config: Config, directory: str, previous: Collection[str]) -> Sequence[str]:
    own = [resource.resource_name for resource in config.resources]
    used = {resource.resource_name for resource in config.resources if not CDI.isdisjoint(resource.device_list)}
    records = {path: record for path, record in _records(directory) if not set(own).isdisjoint(record.resources)}
    candidates = {*own, *previous}.union(*(record.specs for record in records.values())) - used
    unused = [name for name in sorted(candidates) if os.path.lexists(spec_path(directory, name))]
    served = {name for name in unused if PluginDirectory(config.kubelet_dir, name).other_plugins()}
    removed = [path for name in unused if name not in served and atomic_file.remove(path := spec_path(directory, name))]
    specs = sorted(used | served)
    if specs and len({*own, *specs}) > 1:
        path = os.path.join(directory, f".{socket_name(own[0])}.resources")
        atomic_file.make_directory(directory)
        atomic_file.replace(path, msgspec.json.encode(_Record(own, specs)))
        records.pop(path, None)
    for path in records:
        atomic_file.remove(path)
    return removed


def _records(directory: str) -> Iterator[tuple[str, _Record]]:
    """Yield path and content of the record of each plugin."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for path in (os.path.join(directory, name) for name in names if _RECORD.fullmatch(name)):
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError), open(path, "rb") as file:
            yield path, msgspec.json.decode(file.read(), type=_Record)
