"""Validation of the paths at which a container gets binder devices, shared devices and shared mounts.

Of two mounts at one path the kubelet keeps one without an error. A mount in a shared directory, which is read-only,
fails when the container starts, and a mount over a directory hides what is below it. So no path may equal, contain or
lie in another one.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aosp_plugin.binder.devices.patterns import is_pattern, matches, may_overlap, parts
from aosp_plugin.binder.devices.sets import Named
from aosp_plugin.config.convert import shown
from aosp_plugin.config.keys import NamedSets, Resource, SharedDevice, shared_device, spread_device
from aosp_plugin.config.values import Isolation, normalised, placeholder_pattern, shared_path
from aosp_plugin.framework.apiserver import SERVICE_ACCOUNT_DIRECTORY
from aosp_plugin.framework.errors import ConfigError

CONTAINER_DIRECTORY = "/dev"
"""Directory of the binder devices in a container, independent of the device directory of the host."""

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
    SERVICE_ACCOUNT_DIRECTORY,
)
"""Paths that the container runtime or the kubelet provides: neither they nor what is below them can be configured."""


MAX_PATHS = 128
"""Maximum number of container paths in the configuration: each is compared with all others."""


class SharedFile(NamedTuple):
    """A file or directory that each container of a resource gets besides its binder devices."""

    key: str
    host_path: str
    """It may be a pattern, or OWN_BINDERFS."""
    container_path: str


class _Place(NamedTuple):
    path: str
    """Normalised; it may be a pattern."""
    key: str
    same_device: bool
    """Whether it leads to the device that has this path on the host."""


def shared_files(resource: Resource) -> Iterator[SharedFile]:
    """Yield the shared devices and mounts of a resource, its spread devices and those of slices."""
    for device in map(shared_device, resource.shared_devices):
        yield SharedFile("shared_devices", device.path, device.container_path or device.path)
    for spread in map(spread_device, resource.spread_devices):
        yield SharedFile("spread_devices", spread.path, spread.container_path or spread.path)
    for devices in resource.slice_devices:
        yield SharedFile("slice_devices", devices.pattern, devices.pattern)
    if resource.isolation is not Isolation.STRICT:  # which shares no mounts
        for host_path, container_path in map(shared_path, map(placeholder_pattern, resource.shared_mounts)):
            yield SharedFile("shared_mounts", host_path, container_path)


def validate_container_paths(resource: Resource, at: Mapping[str, str]) -> None:
    """Raise ConfigError if a container path of a resource is reserved, or if two of them conflict.

    ``at`` has the source of each key.
    """
    _validate_patterns(resource, at)
    places = [_Place(normalised(path), "container_paths", same_device=False) for path in resource.container_paths]
    for key, host_path, container_path in shared_files(resource):
        path = normalised(container_path)
        is_same = key != "shared_mounts" and path == normalised(host_path)
        places.append(_Place(path, key, same_device=is_same))
    for place in places:
        error = f"{at[place.key]}: the container path {shown(place.path)} is not allowed"
        if (reserved := reserved_path(place.path)) is not None:
            raise ConfigError(f"{error}: the container runtime or the kubelet provides {reserved}")
        if (devices := _own_devices(resource, place.path)) is not None:
            raise ConfigError(f"{error}: containers have their binder devices at {devices}")
    if len(places) > MAX_PATHS:
        sources = "; ".join(dict.fromkeys(at[place.key] for place in places))
        raise ConfigError(f"{sources}: {len(places)} container paths; allowed: at most {MAX_PATHS} in all")
    for first, second in itertools.combinations(places, 2):
        if may_overlap(first.path, second.path) and not _match_same_device(first, second):
            sources = "; ".join(dict.fromkeys((at[first.key], at[second.key])))
            relation = "lie in each other" if len(parts(first.path)) != len(parts(second.path)) else "overlap"
            relation = "are the same" if first.path == second.path else relation
            raise ConfigError(f"{sources}: the container paths {shown(first.path)} and {shown(second.path)} {relation}")


def reserved_path(path: str) -> str | None:
    """Return the path that the container runtime or the kubelet provides at, above or below a path; None if none."""
    return next((reserved for reserved in _RESERVED if may_overlap(path, reserved)), None)


def _validate_patterns(resource: Resource, at: Mapping[str, str]) -> None:
    """Raise ConfigError for a pattern with one container path for all, or one of another kind than those of fnmatch."""
    shared = [("shared_devices", shared_device(item)) for item in resource.shared_devices]
    spread = [("spread_devices", SharedDevice(path=spread_device(item).path)) for item in resource.spread_devices]
    slices = [("slice_devices", SharedDevice(path=devices.path)) for devices in resource.slice_devices]
    for key, device in (*shared, *spread, *slices):
        if re.search(r"[{}]|\*\*", device.path):
            raise ConfigError(f"{at[key]}: {shown(device.path)} is not allowed: braces and ** are not supported; use *")
        if is_pattern(device.path) and device.container_path is not None:
            raise ConfigError(
                f"{at[key]}: the pattern {shown(device.path)} cannot have the container path "
                f"{shown(device.container_path)}: each device that matches has its path on the host"
            )


def _match_same_device(first: _Place, second: _Place) -> bool:
    """Return whether a pattern and a path, or two patterns, select the same shared devices.

    A container would get two spread devices, or one twice.
    """
    patterns = is_pattern(first.path) or is_pattern(second.path)
    return patterns and first.key == second.key == "shared_devices" and first.same_device and second.same_device


def _own_devices(resource: Resource, path: str) -> str | None:
    """Return the container paths of binder devices that a path conflicts with, for messages; None if there are none."""
    sets, prefix = resource.sets, resource.device_prefix
    relative = path.removeprefix(f"{CONTAINER_DIRECTORY}/")
    if relative != path and isinstance(sets, NamedSets):
        layout = Named(sets.names, sets.pattern)
        parents = itertools.accumulate(relative.split("/"), "{}/{}".format)
        # Without the digit, {name}{set} would match /dev/binderfs: the set "fs".
        if any(re.search("[0-9]", set_id) for set_id in layout.ids([*parents])):
            return f"{CONTAINER_DIRECTORY}/{sets.pattern}"
    elif relative != path and not resource.phones:
        name = relative.partition("/")[0]
        if re.fullmatch(f"{re.escape(prefix)}[0-9]+", name) or (is_pattern(name) and matches(name, f"{prefix}0")):
            return f"{CONTAINER_DIRECTORY}/{prefix}N"
    directory = normalised(resource.scan_directory)
    # A device of a binderfs outside /dev also has its host's path in a container; see backend.container_edits.
    if not may_overlap(directory, CONTAINER_DIRECTORY) and may_overlap(directory, path):
        return directory
    return None
