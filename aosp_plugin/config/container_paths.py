"""Validation of the paths at which a container gets binder devices, shared devices and shared mounts.

Of two mounts at one path the kubelet keeps one without an error. A mount in a shared directory, which is read-only,
fails when the container starts, and a mount over a directory hides what is below it. So no path may equal, contain or
lie in another one.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.binder.devices.sets import Named
from aosp_plugin.binder.discovery.patterns import is_pattern, matches, may_overlap, parts
from aosp_plugin.config.mappings import NamedSets, shared_device
from aosp_plugin.config.messages import shown
from aosp_plugin.config.resource import scan_directory
from aosp_plugin.config.values import Isolation, normalised, shared_path
from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aosp_plugin.config.keys import Setting

_DEVICE_DIRECTORY = "/dev"
"""Directory of binder devices in a container."""

_RESERVED = (
    # Mounted by the runtime. runc refuses other mounts in /proc (libcontainer/rootfs_linux.go ``checkProcMount``).
    "/proc",
    "/sys/fs/cgroup",
    # Created in every container (runtime-spec, config-linux.md, "Default Devices"; runtime-linux.md, "Dev symlinks").
    *(f"/dev/{name}" for name in ("console", "full", "null", "ptmx", "random", "tty", "urandom", "zero")),
    *(f"/dev/{name}" for name in ("core", "fd", "stdin", "stdout", "stderr")),
    # Mounted by the runtime (runtime-spec, config-linux.md, "Default Filesystems"; CRI).
    *(f"/dev/{name}" for name in ("mqueue", "pts", "shm")),
    # Mounted by the kubelet.
    *(f"/etc/{name}" for name in ("hostname", "hosts", "resolv.conf")),
    "/dev/termination-log",
    "/var/run/secrets/kubernetes.io/serviceaccount",
)
"""Paths that the container runtime or the kubelet provides: neither they nor what is below them can be configured."""


class _Place(NamedTuple):
    path: str
    """Normalised; it may be a pattern."""
    source: str
    """Where it is configured."""
    same_device: bool = False
    """Whether it leads to the device that has this path on the host."""


def validate_container_paths(resource: Mapping[str, Setting]) -> None:
    """Raise ConfigError if a container path of a resource is reserved, or if two of them conflict."""
    _validate_patterns(resource)
    places = list(_places(resource))
    for key in ("phones", "provision"):
        made = resource[key]
        if made.value is not None and (reserved := reserved_path(normalised(made.value.directory))) is not None:
            raise ConfigError(
                f"{made.source}.directory: {shown(made.value.directory)} is not allowed: a container has its binder "
                f"devices at the host's path, too, where the container runtime or the kubelet provides {reserved}"
            )
    for place in places:
        if (reserved := reserved_path(place.path)) is not None:
            raise ConfigError(
                f"{place.source}: the container path {shown(place.path)} is not allowed: the container runtime or the "
                f"kubelet provides {reserved}"
            )
        if (devices := _own_devices(resource, place.path)) is not None:
            raise ConfigError(
                f"{place.source}: the container path {shown(place.path)} is not allowed: containers have their binder "
                f"devices at {devices}"
            )
    for first, second in itertools.combinations(places, 2):
        if may_overlap(first.path, second.path) and not _match_same_device(first, second):
            sources = first.source if first.source == second.source else f"{first.source}; {second.source}"
            relation = "lie in each other" if len(parts(first.path)) != len(parts(second.path)) else "overlap"
            relation = "are the same" if first.path == second.path else relation
            raise ConfigError(f"{sources}: the container paths {shown(first.path)} and {shown(second.path)} {relation}")


def reserved_path(path: str) -> str | None:
    """Return the path that the container runtime or the kubelet provides at, above or below a path; None if none."""
    return next((reserved for reserved in _RESERVED if may_overlap(path, reserved)), None)


def _validate_patterns(resource: Mapping[str, Setting]) -> None:
    """Raise ConfigError for a pattern with a container path, or one that matches no device on any host."""
    shared, spread = resource["shared_devices"], resource["spread_devices"]
    devices = [(shared.source, shared_device(item)) for item in shared.value]
    for source, path, container_path in (
        *((source, device.path, device.container_path) for source, device in devices),
        *((spread.source, path, None) for path in spread.value),
    ):
        if container_path is not None and is_pattern(path):
            raise ConfigError(
                f"{source}: the pattern {shown(path)} cannot have the container path {shown(container_path)}: each "
                "device that matches has its path on the host"
            )
        if "**" in path:
            raise ConfigError(
                f"{source}: the pattern {shown(path)} is not allowed: ** is not supported; use * per part"
            )
        if is_pattern(path) and parts(normalised(path))[0] == "sys":
            raise ConfigError(f"{source}: the pattern {shown(path)} is not allowed: no devices are below /sys")


def _match_same_device(first: _Place, second: _Place) -> bool:
    """Return whether two places of one key are a pattern and a path, or two patterns, that select the same devices."""
    patterns = is_pattern(first.path) or is_pattern(second.path)
    return patterns and first.source == second.source and first.same_device and second.same_device


def _places(resource: Mapping[str, Setting]) -> Iterator[_Place]:
    container_paths, shared_devices, spread_devices, shared_mounts = (
        resource[name] for name in ("container_paths", "shared_devices", "spread_devices", "shared_mounts")
    )
    for path in container_paths.value:
        yield _Place(normalised(path), container_paths.source)
    for device in map(shared_device, shared_devices.value):
        path = normalised(device.container_path or device.path)
        yield _Place(path, shared_devices.source, same_device=path == normalised(device.path))
    for path in spread_devices.value:
        yield _Place(normalised(path), spread_devices.source, same_device=True)
    if resource["isolation"].value is not Isolation.STRICT:  # which shares no mounts
        for text in shared_mounts.value:
            yield _Place(normalised(shared_path(text)[1]), shared_mounts.source)


def _own_devices(resource: Mapping[str, Setting], path: str) -> str | None:
    """Return the container paths of binder devices that a path conflicts with, for messages; None if there are none."""
    phones, sets, prefix = (resource[name].value for name in ("phones", "sets", "device_prefix"))
    relative = path.removeprefix(f"{_DEVICE_DIRECTORY}/")
    if relative != path and isinstance(sets, NamedSets):
        layout = Named(sets.names, sets.pattern)
        parents = itertools.accumulate(relative.split("/"), "{}/{}".format)
        # Without the digit, {name}{set} would match /dev/binderfs: the set "fs".
        if any(re.search("[0-9]", set_id) for set_id in layout.ids([*parents])):
            return f"{_DEVICE_DIRECTORY}/{sets.pattern}"
    elif relative != path and not phones:
        name = relative.partition("/")[0]
        if re.fullmatch(f"{re.escape(prefix)}[0-9]+", name) or (is_pattern(name) and matches(name, f"{prefix}0")):
            return f"{_DEVICE_DIRECTORY}/{prefix}N"
    directory = normalised(scan_directory(phones, resource["provision"].value, resource["device_dir"].value))
    # A device of a binderfs outside /dev also has its host's path in a container; see backend.container_edits.
    if not may_overlap(directory, _DEVICE_DIRECTORY) and may_overlap(directory, path):
        return directory
    return None
