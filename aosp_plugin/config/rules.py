"""Rules across keys: within a resource, and between the resources of a file.

Only the configuration is read. Two directories that are the same through a link are detected by a scan of the host.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.binder.devices.patterns import is_pattern, may_overlap
from aosp_plugin.binder.devices.sets import pattern_problem
from aosp_plugin.config.container_paths import reserved_path, shared_files, validate_container_paths
from aosp_plugin.config.convert import shown
from aosp_plugin.config.keys import DEFAULTS, Config, NamedSets, NumberedSets, Resource, status_address
from aosp_plugin.config.values import OWN_BINDERFS, Api, ProvisionedBy, Recreate, normalised
from aosp_plugin.framework.backend import CDI
from aosp_plugin.framework.cdi import kind_problem
from aosp_plugin.framework.dra.slices import driver_name, driver_name_problem
from aosp_plugin.framework.errors import ConfigError
from aosp_plugin.framework.service.address import conflicts, joined_address, listen_address


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
        _validate_phones_directory(*entry)
        _validate_sets(*entry)
        _validate_cdi_kind(*entry)
        _validate_dra(*entry)
        _validate_shared_with_phones(*entry)
        _validate_slices(entry)
        _validate_mounts(*entry)
        _validate_variables(*entry)
        validate_container_paths(*entry)
    for (i, first), (j, second) in itertools.combinations(enumerate(entries), 2):
        place = f"file {file}: resources[{i}] and resources[{j}]"
        _require_different_names(first, second, place)
        _require_different_devices(first, second, place)
        _require_own_slices(first, second, f"{place}: ")
        _require_own_slices(second, first, f"{place}: ")


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
            "to '' for no page; or to the address of listen, if all its clients may see the names of pods"
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
    """Require that no key describes other binder devices, and that the plugin may mount phones when it must."""
    if resource.phones is None:
        return
    for name in ("device_dir", "device_prefix", "sets"):
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


def _validate_phones_directory(resource: Resource, at: Mapping[str, str]) -> None:
    """Require that phones are mounted where no container has, or gets, something else."""
    if resource.phones is None:
        return
    directory = normalised(resource.phones.directory)
    place = f"{at['phones']}.directory: {shown(resource.phones.directory)} is not allowed"
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
        if may_overlap(_without_link(path), _without_link(directory)):
            raise ConfigError(
                f"{at[file.key]}: {shown(path)} is not allowed: all containers would get the binder devices of all "
                f"phones, which are in {directory} ({at['phones']}.directory)"
            )


def _validate_slices(entry: ResourceEntry) -> None:
    """Require that each device has a number, or several would have one slice, and that nothing else has a slice.

    Replicas of a device would share one as well.
    """
    resource, at = entry
    if resource.slice_devices and not _have_numbers(resource):
        raise ConfigError(
            f"{at['slice_devices']}: a slice is selected by the number of its device, and only phones and sets with a "
            f"size have one each ({at['sets']})"
        )
    if resource.slice_devices and resource.replicas != 1:
        raise ConfigError(
            f"{at['replicas']}: {resource.replicas} replicas would share a slice ({at['slice_devices']}); allowed: 1"
        )
    _require_own_slices(entry, entry)


def _validate_mounts(resource: Resource, at: Mapping[str, str]) -> None:
    """Require that no two devices share a mount that their number selects."""
    mount = next((mount for mount in resource.shared_mounts if "{number}" in mount), None)
    if mount is not None and not _have_numbers(resource):
        raise ConfigError(
            f"{at['shared_mounts']}: {shown(mount)} is not allowed: only phones and sets with a size have one number "
            f"each ({at['sets']}); use {{id}}"
        )


def _have_numbers(resource: Resource) -> bool:
    """Return whether no two devices of a resource have the same number."""
    return resource.phones is not None or isinstance(resource.sets, NumberedSets)


def _validate_variables(resource: Resource, at: Mapping[str, str]) -> None:
    """Require that no variable is for two kinds of devices."""
    twice = next((name for name, count in Counter(resource.variables).items() if count > 1), None)
    if twice is not None:
        sources = _joined(at["spread_devices"], at["visible_devices_env"])
        raise ConfigError(f"{sources}: the variable {twice} would have the names of several kinds of devices")


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


def _without_link(path: str) -> str:
    """Return a path without the link /var/run, which hosts have. The host is not read: its files are elsewhere here."""
    return re.sub("^/var/run(?=/|$)", "/run", normalised(path))


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
    return f"{entry.at['phones']}.directory" if entry.resource.phones else entry.at["device_dir"]


def _joined(*sources: str) -> str:
    return "; ".join(dict.fromkeys(sources))
