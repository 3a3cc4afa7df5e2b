"""Validation of ``phones`` with the other keys of a resource, and with the directories of other resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery.patterns import may_overlap, parts
from aosp_plugin.config.mappings import shared_device
from aosp_plugin.config.messages import shown
from aosp_plugin.config.process import DEFAULTS
from aosp_plugin.config.resource import scan_directory
from aosp_plugin.config.values import OWN_BINDERFS, Api, Isolation, ProvisionedBy, Recreate, normalised, shared_path
from aosp_plugin.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aosp_plugin.config.keys import Setting

_EXCLUDED = ("device_dir", "device_prefix", "sets", "provision")
"""Keys that describe binder devices which ``phones`` replaces."""


_ANYWHERE = ("/proc", "/dev/fd")
"""Directories of links to the directories of processes, such as /proc/1/root."""
_LINKS = {"/var/run": "/run", "/var/lock": "/run/lock"}
"""Links that hosts have (file-hierarchy(7))."""


def validate_phones(resource: Mapping[str, Setting]) -> None:
    """Raise ConfigError if another key has no effect with ``phones``, or if its directory is not allowed.

    No container may get the directory, or what is in it, besides its own phone.
    """
    phones = resource["phones"]
    if phones.value is None:
        return
    for name in _EXCLUDED:
        other = resource[name]
        if other.value != DEFAULTS[name]:
            raise ConfigError(
                f"{other.source}: {name} has no effect with phones ({phones.source}), whose binder devices the plugin "
                "makes: remove one of the two keys, or set it for other resources only"
            )
    _validate_provisioned_by(resource)
    directory = normalised(phones.value.directory)
    if directory == "/" or f"{directory}/".startswith("/dev/"):
        raise ConfigError(
            f"{phones.source}.directory: {shown(phones.value.directory)} is not allowed: the runtime gives a "
            "privileged container every device below /dev; allowed: an absolute path outside /dev, not /"
        )
    for source, path in _shared_with_all(resource):
        if ".." in parts(path) or any(_is_below(path, anywhere) for anywhere in _ANYWHERE):
            raise ConfigError(
                f"{source}: {shown(path)} is not allowed with phones ({phones.source}): it can lead to any directory "
                "of the host, also to that of the phones; allowed: a path without .., outside /proc"
            )
        if may_overlap(_without_links(path), _without_links(directory)):
            raise ConfigError(
                f"{source}: {shown(path)} is not allowed: all containers would get the binder devices of all phones, "
                f"which are in {directory} ({phones.source}.directory)"
            )


def _is_below(path: str, directory: str) -> bool:
    """Return whether a path, or a match of a pattern, is a directory or lies in it."""
    names, depth = parts(normalised(path)), len(parts(directory))
    return len(names) >= depth and may_overlap("/".join(names[:depth]), directory)


def _without_links(path: str) -> str:
    """Return where a path, or a pattern, leads on most hosts. None is read here."""
    for link, target in _LINKS.items():
        if _is_below(path, link):
            return "/".join([target, *parts(normalised(path))[len(parts(link)) :]])
    return normalised(path)


def _validate_provisioned_by(resource: Mapping[str, Setting]) -> None:
    """Raise ConfigError if the plugin would have to mount phones, and must not."""
    by = resource["provisioned_by"]
    if by.value is ProvisionedBy.PLUGIN:
        return
    for name, value in (("recreate", Recreate.ON_START), ("api", Api.DRA)):
        if resource[name].value is value and (by.value, name) != (ProvisionedBy.PROVISIONER, "recreate"):
            when = "each container starts" if name == "recreate" else "a claim is prepared"
            raise ConfigError(
                f"{by.source}: {by.value} is not possible with {name}: {value} ({resource[name].source}): the plugin "
                f"mounts a phone when {when}; use provisioned_by: {ProvisionedBy.PLUGIN}"
            )


def _shared_with_all(resource: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    """Yield the source and the host path, or pattern, of what each container gets."""
    mounts, devices, spread = (resource[name] for name in ("shared_mounts", "shared_devices", "spread_devices"))
    if resource["isolation"].value is not Isolation.STRICT:
        for host_path, _ in map(shared_path, mounts.value):
            if host_path != OWN_BINDERFS:
                yield mounts.source, host_path
    for device in map(shared_device, devices.value):
        yield devices.source, device.path
    for path in spread.value:
        yield spread.source, path


def require_separate_directories(first: Mapping[str, Setting], second: Mapping[str, Setting], place: str) -> None:
    """Raise ConfigError if the directory of one resource contains that of the other one, or is the same."""
    directories = [_directory(resource) for resource in (first, second)]
    shorter, longer = sorted((normalised(path) for _, path in directories), key=len)
    if f"{longer}/".startswith(f"{shorter.rstrip('/')}/"):
        sources = "; ".join(dict.fromkeys(source for source, _ in directories))
        raise ConfigError(
            f"{place}: the binder devices are in {longer} and in {shorter} ({sources}): give the phones of each "
            "resource a directory of their own"
        )


def _directory(resource: Mapping[str, Setting]) -> tuple[str, str]:
    """Return the source of the directory in which binder devices are found, and its path."""
    phones, provision, device_dir = (resource[name] for name in ("phones", "provision", "device_dir"))
    path = scan_directory(phones.value, provision.value, device_dir.value)
    if phones.value is not None:
        return f"{phones.source}.directory", path
    return (device_dir.source if provision.value is None else f"{provision.source}.directory"), path
