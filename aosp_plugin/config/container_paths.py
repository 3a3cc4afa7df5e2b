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
from aosp_plugin.config.mappings import NamedSets
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
    """Normalised."""
    source: str
    """Where it is configured."""


def validate_container_paths(resource: Mapping[str, Setting]) -> None:
    """Raise ConfigError if a container path of a resource is reserved, or if two of them conflict."""
    places = list(_places(resource))
    for place in places:
        for reserved in _RESERVED:
            if _nested(place.path, reserved):
                raise ConfigError(
                    f"{place.source}: the container path {shown(place.path)} is not allowed: the container runtime or "
                    f"the kubelet provides {reserved}"
                )
        if (devices := _own_devices(resource, place.path)) is not None:
            raise ConfigError(
                f"{place.source}: the container path {shown(place.path)} is not allowed: containers have their binder "
                f"devices at {devices}"
            )
    for first, second in itertools.combinations(places, 2):
        if _nested(first.path, second.path):
            sources = first.source if first.source == second.source else f"{first.source}; {second.source}"
            relation = "are the same" if first.path == second.path else "lie in each other"
            raise ConfigError(f"{sources}: the container paths {shown(first.path)} and {shown(second.path)} {relation}")


def _places(resource: Mapping[str, Setting]) -> Iterator[_Place]:
    container_paths, shared_devices, shared_mounts = (
        resource[name] for name in ("container_paths", "shared_devices", "shared_mounts")
    )
    for path in container_paths.value:
        yield _Place(normalised(path), container_paths.source)
    strict = resource["isolation"].value is Isolation.STRICT  # shares no mounts
    for setting in (shared_devices,) if strict else (shared_devices, shared_mounts):
        for text in setting.value:
            yield _Place(normalised(shared_path(text)[1]), setting.source)


def _own_devices(resource: Mapping[str, Setting], path: str) -> str | None:
    """Return the container paths of binder devices that a path conflicts with, for messages; None if there are none."""
    phones, sets, prefix = (resource[name].value for name in ("phones", "sets", "device_prefix"))
    relative = path.removeprefix(f"{_DEVICE_DIRECTORY}/")
    if relative != path and isinstance(sets, NamedSets):
        layout = Named(sets.names, sets.pattern)
        parents = itertools.accumulate(relative.split("/"), "{}/{}".format)
        # Without the digit, {name}{set} would match /dev/binderfs: the set "fs".
        if any(re.search("[0-9]", group.id) for group in layout.sets(parents)):
            return f"{_DEVICE_DIRECTORY}/{sets.pattern}"
    elif relative != path and not phones and re.fullmatch(f"{re.escape(prefix)}[0-9]+", relative.partition("/")[0]):
        return f"{_DEVICE_DIRECTORY}/{prefix}N"
    directory = normalised(scan_directory(phones, resource["provision"].value, resource["device_dir"].value))
    # A device of a binderfs outside /dev also has its host's path in a container; see backend.container_edits.
    if not _nested(directory, _DEVICE_DIRECTORY) and _nested(directory, path):
        return directory
    return None


def _nested(first: str, second: str) -> bool:
    """Return whether two normalised paths are the same, or one contains the other."""
    shorter, longer = sorted((first, second), key=len)
    return longer == shorter or longer.startswith(shorter.rstrip("/") + "/")
