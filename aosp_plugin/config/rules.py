"""Rules across keys: within a resource, and between the resources of a file.

Only the configuration is read. Two directories that are the same through a link are detected by a scan of the host.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.binder.devices.patterns import is_pattern, may_overlap, parts
from aosp_plugin.binder.devices.sets import name_problem, pattern_problem
from aosp_plugin.config.container_paths import reserved_path, shared_files, validate_container_paths
from aosp_plugin.config.convert import shown
from aosp_plugin.config.keys import DEFAULTS, Config, NamedSets, NumberedSets, Provision, Resource, status_address
from aosp_plugin.config.values import OWN_BINDERFS, Api, ProvisionedBy, Recreate, normalised
from aosp_plugin.framework.cdi import kind_problem
from aosp_plugin.framework.devices import CDI
from aosp_plugin.framework.dra.driver_names import driver_name, driver_name_problem
from aosp_plugin.framework.errors import ConfigError
from aosp_plugin.framework.service.address import conflicts, joined_address, listen_address

_ANYWHERE = ("/proc", "/dev/fd")
"""Directories of links to the directories of processes, such as /proc/1/root."""
_LINKS = {"/var/run": "/run", "/var/lock": "/run/lock"}
"""Links that hosts have (file-hierarchy(7)). The plugin cannot follow them: its container has other directories."""


class ResourceEntry(NamedTuple):
    """A resource of the configuration."""

    resource: Resource
    at: Mapping[str, str]
    """The source of each key, with which errors begin."""


def validate(entries: Sequence[ResourceEntry], file: str) -> None:
    """Raise ConfigError if keys of a resource conflict, or if two resources do.

    ``file`` is the path of the file that lists the resources, if there are several.
    """
    for entry in entries:
        _require_one_replica(*entry)
        _validate_phones(*entry)
        _validate_provision(*entry)
        _validate_made_directory(*entry)
        _validate_sets(*entry)
        _validate_cdi_kind(*entry)
        _validate_dra(*entry)
        _validate_shared_with_phones(*entry)
        _validate_slices(entry)
        validate_container_paths(*entry)
    for (i, first), (j, second) in itertools.combinations(enumerate(entries), 2):
        place = f"file {file}: resources[{i}] and resources[{j}]"
        _require_different_names(first, second, place)
        _require_different_devices(first, second, place)
        _require_own_slices(first, second, f"{place}: ")
        _require_own_slices(second, first, f"{place}: ")
    _validate_capacity(entries)


def validate_addresses(config: Config, at: Mapping[str, str]) -> None:
    """Raise ConfigError if the addresses of ``listen``, and of the page and /status, exclude each other."""
    address, status = listen_address(config.listen), status_address(config)
    if address is None or status is None or address == status:
        return
    if conflicts(address, status) or conflicts(status, address):
        sources = at["listen"] if config.status_listen is None else _joined(at["listen"], at["status_listen"])
        raise ConfigError(
            f"{sources}: the page and /status cannot have the address "
            f"{joined_address(status)} beside {joined_address(address)} (listen): set status_listen to another port; "
            "to '' for no page; or to the address of listen, if all its clients may see pod names and command lines"
        )


def _require_one_replica(resource: Resource, at: Mapping[str, str]) -> None:
    if resource.recreate is not Recreate.NEVER and resource.replicas != 1:
        raise ConfigError(
            f"{at['replicas']}: {resource.replicas} replicas require recreate: {Recreate.NEVER}, not "
            f"{resource.recreate} ({at['recreate']}): the start of one container would recreate the binder devices of "
            "another one"
        )


def _no_effect(at: Mapping[str, str], name: str, other: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{at[name]}: {name} has no effect with {other} ({at[other.partition(':')[0]]}), {reason}: remove one of the "
        "two keys, or set it for other resources only"
    )


def _validate_phones(resource: Resource, at: Mapping[str, str]) -> None:
    """Require that no key describes other binder devices, and that the plugin may mount phones when it has to."""
    if resource.phones is None:
        return
    for name in ("device_dir", "device_prefix", "sets", "provision"):
        if getattr(resource, name) != DEFAULTS[name]:
            raise _no_effect(at, name, "phones", "whose binder devices the plugin makes")
    by, conflict = resource.provisioned_by, ("", "")
    if by is ProvisionedBy.COMMAND and resource.recreate is Recreate.ON_START:
        conflict = ("recreate", "each container starts")
    elif by is not ProvisionedBy.PLUGIN and resource.api is Api.DRA:
        conflict = ("api", "a claim is prepared")
    key, when = conflict
    if key:
        raise ConfigError(
            f"{at['provisioned_by']}: {by} is not possible with {key}: {getattr(resource, key)} ({at[key]}): the "
            f"plugin mounts a phone when {when}; use provisioned_by: {ProvisionedBy.PLUGIN}"
        )


def _validate_provision(resource: Resource, at: Mapping[str, str]) -> None:
    provision = resource.provision
    if provision is None:
        return
    if normalised(resource.device_dir) != DEFAULTS["device_dir"]:
        raise _no_effect(at, "device_dir", "provision", f"whose binder devices are in {provision.directory}")
    if isinstance(resource.sets, NamedSets):
        raise ConfigError(
            f"{at['provision']}: provisioned binder devices have numbers, and the device sets have names "
            f"({at['sets']}): give the sets a size, or create the binder devices in another way"
        )
    last = f"{resource.device_prefix}{provision.first + provision.count - 1}"
    if (problem := name_problem(last)) is not None:
        raise ConfigError(
            f"{at['provision']}: {shown(last)} is not a valid device name ({at['device_prefix']}): {problem}"
        )


def _validate_made_directory(resource: Resource, at: Mapping[str, str]) -> None:
    """Require that the plugin makes binder devices where no container has, or gets, something else."""
    for key, made in (("phones", resource.phones), ("provision", resource.provision)):
        if made is None:
            continue
        place, directory = f"{at[key]}.directory: {shown(made.directory)} is not allowed", normalised(made.directory)
        if directory == "/" or f"{directory}/".startswith("/dev/"):
            raise ConfigError(
                f"{place}: the runtime gives a privileged container every device below /dev; allowed: an absolute path "
                "outside /dev, not /"
            )
        if (reserved := reserved_path(directory)) is not None:
            raise ConfigError(
                f"{place}: a container has its binder devices at the host's path, too, where the container runtime or "
                f"the kubelet provides {reserved}"
            )


def _validate_sets(resource: Resource, at: Mapping[str, str]) -> None:
    sets = resource.sets
    if isinstance(sets, NamedSets) and (problem := pattern_problem(sets.pattern, sets.names)):
        raise ConfigError(f"{at['sets']}: {problem}")


def _validate_cdi_kind(resource: Resource, at: Mapping[str, str]) -> None:
    is_dra = resource.api is Api.DRA
    problem = kind_problem(resource.resource_name)
    if problem is not None and (is_dra or not CDI.isdisjoint(resource.device_list)):
        raise ConfigError(
            f"{at['api' if is_dra else 'device_list']}: the resource name {shown(resource.resource_name)} is not a "
            f"valid CDI kind ({at['resource_name']}): {problem}"
        )


def _validate_dra(resource: Resource, at: Mapping[str, str]) -> None:
    if resource.api is not Api.DRA:
        return
    if (problem := driver_name_problem(resource.resource_name)) is not None:
        raise ConfigError(
            f"{at['api']}: dra does not support the resource name {shown(resource.resource_name)} "
            f"({at['resource_name']}): {problem}"
        )
    if resource.replicas != 1:
        raise ConfigError(
            f"{at['replicas']}: {resource.replicas} replicas are not allowed with api: dra ({at['api']}), with which "
            "pods that use the same ResourceClaim share its devices; allowed: 1"
        )
    if resource.device_list != DEFAULTS["device_list"]:
        reason = "with which containers get their devices by a CDI spec of their claim"
        raise _no_effect(at, "device_list", "api: dra", reason)


def _validate_shared_with_phones(resource: Resource, at: Mapping[str, str]) -> None:
    """Require that no container gets the directory of the phones, or what is in it, besides its own phone."""
    if resource.phones is None:
        return
    directory = normalised(resource.phones.directory)
    for file in shared_files(resource):
        path = file.host_path
        if path == OWN_BINDERFS:
            continue
        if ".." in parts(path) or any(_is_below(path, anywhere) for anywhere in _ANYWHERE):
            raise ConfigError(
                f"{at[file.key]}: {shown(path)} is not allowed with phones ({at['phones']}): it can lead to any "
                "directory of the host, also to that of the phones; allowed: a path without .., outside /proc"
            )
        if may_overlap(_without_links(path), _without_links(directory)):
            raise ConfigError(
                f"{at[file.key]}: {shown(path)} is not allowed: all containers would get the binder devices of all "
                f"phones, which are in {directory} ({at['phones']}.directory)"
            )


def _validate_slices(entry: ResourceEntry) -> None:
    """Require that each device has a number, or several would have one slice, and that nothing else has a slice.

    Replicas of a device would share one as well.
    """
    resource, at = entry
    if resource.slice_devices and resource.phones is None and not isinstance(resource.sets, NumberedSets):
        raise ConfigError(
            f"{at['slice_devices']}: a slice is selected by the number of its device, and only phones and sets with a "
            f"size have one each ({at['sets']})"
        )
    if resource.slice_devices and resource.replicas != 1:
        raise ConfigError(
            f"{at['replicas']}: {resource.replicas} replicas would share a slice ({at['slice_devices']}); allowed: 1"
        )
    _require_own_slices(entry, entry)


def _require_own_slices(entry: ResourceEntry, other: ResourceEntry, place: str = "") -> None:
    """Require that the devices of slices are not among the other devices of a resource, which may be the same one."""
    for devices in entry.resource.slice_devices:
        for key, path, _ in shared_files(other.resource):
            itself = entry is other and path == devices.pattern
            if not itself and may_overlap(devices.path if is_pattern(path) else devices.pattern, path):
                sources = _joined(entry.at["slice_devices"], other.at[key])
                raise ConfigError(
                    f"{place}{sources}: {shown(path)} is not allowed: a container would get devices of {devices.path}, "
                    "each of which one device has alone"
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


def _require_different_names(first: ResourceEntry, second: ResourceEntry, place: str) -> None:
    name, other = first.resource.resource_name, second.resource.resource_name
    sources = _joined(first.at["resource_name"], second.at["resource_name"])
    if name == other:
        raise ConfigError(f"{place}: both have the resource_name {shown(name)} ({sources}); give each its own")
    apis = {first.resource.api, second.resource.api}
    if apis == {Api.DRA} and driver_name(name) == driver_name(other):  # as b.io/a and io/a.b do
        raise ConfigError(
            f"{place}: the names {name} and {other} both lead to the DRA driver {driver_name(name)} ({sources}); give "
            "each its own"
        )


def _require_different_devices(first: ResourceEntry, second: ResourceEntry, place: str) -> None:
    """Require that two resources do not find the same binder devices in one directory.

    Named sets have no prefix: their overlaps are detected by a scan of the host.
    """
    resources = (first.resource, second.resource)
    shorter, longer = sorted((normalised(resource.scan_directory) for resource in resources), key=len)
    if any(resource.phones for resource in resources):
        if f"{longer}/".startswith(f"{shorter.rstrip('/')}/"):
            sources = _joined(_directory_source(first), _directory_source(second))
            raise ConfigError(
                f"{place}: the binder devices are in {longer} and in {shorter} ({sources}): give the phones of each "
                "resource a directory of their own"
            )
        return
    if shorter != longer or any(isinstance(resource.sets, NamedSets) for resource in resources):
        return
    prefix, longer_prefix = sorted((resource.device_prefix for resource in resources), key=len)
    if longer_prefix.startswith(prefix):
        names = " and ".join(resource.resource_name for resource in resources)
        sources = _joined(first.at["device_prefix"], second.at["device_prefix"])
        raise ConfigError(
            f"{place}: {names} both match {longer_prefix}* in {longer} ({sources}); give each its own directory, or a "
            "device_prefix that is not the beginning of the other one"
        )


def _directory_source(entry: ResourceEntry) -> str:
    """Return the source of the directory in which binder devices are found."""
    key, dot, part = entry.resource.scan_directory_key.partition(".")
    return f"{entry.at[key]}{dot}{part}"


def _validate_capacity(entries: Sequence[ResourceEntry]) -> None:
    """Require one max= per binderfs, with capacity for every binder device and one more to recreate them."""
    by_directory: dict[str, list[tuple[Provision, str]]] = {}
    for resource, at in entries:
        if (provision := resource.provision) is not None:
            by_directory.setdefault(normalised(provision.directory), []).append((provision, at["provision"]))
    for directory, provisions in by_directory.items():
        limit, count = provisions[0][0].max, sum(provision.count for provision, _ in provisions)
        sources = _joined(*(source for _, source in provisions))
        if any(provision.max != limit for provision, _ in provisions):
            raise ConfigError(f"{sources}: the binderfs {directory} has one max; set it in each of them, or in none")
        if limit is not None and limit <= count:
            raise ConfigError(
                f"{sources}: max {limit} is too small for the binderfs {directory}: {count} binder devices, and one "
                f"more to recreate them; allowed: {count + 1} or more, or no max"
            )


def _joined(*sources: str) -> str:
    return "; ".join(dict.fromkeys(sources))
