"""Validation across keys: within a resource, and between the resources of a file.

Only the configuration is read. Two directories that are the same through a link are detected by a scan of the host.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.sets import pattern_problem
from aosp_plugin.binder.discovery.names import name_problem
from aosp_plugin.config.container_paths import validate_container_paths
from aosp_plugin.config.dra import require_different_drivers, validate_dra
from aosp_plugin.config.mappings import NamedSets
from aosp_plugin.config.messages import shown
from aosp_plugin.config.phones import require_separate_directories, validate_phones
from aosp_plugin.config.process import DEFAULTS
from aosp_plugin.config.resource import scan_directory
from aosp_plugin.config.values import Api, Recreate, normalised
from aosp_plugin.errors import ConfigError
from aosp_plugin.framework.cdi.spec import kind_problem
from aosp_plugin.framework.device_list import CDI
from aosp_plugin.framework.service.address import conflicts, joined_address, listen_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.config.keys import Setting


def validate_addresses(process: Mapping[str, Setting], status: tuple[str, int] | None) -> None:
    """Raise ConfigError if ``listen`` and ``status``, the address of the page and /status, exclude each other."""
    listen, status_listen = process["listen"], process["status_listen"]
    address = listen_address(listen.value)
    if address is None or status is None or address == status:
        return
    if conflicts(address, status) or conflicts(status, address):
        sources = listen.source if status_listen.value is None else _sources(listen, status_listen)
        raise ConfigError(
            f"{sources}: the page and /status cannot have the address "
            f"{joined_address(status)} beside {joined_address(address)} (listen): set status_listen to another port; "
            "to '' for no page; or to the address of listen, if all its clients may see pod names and command lines"
        )


def validate_cross_field(resources: Sequence[Mapping[str, Setting]], file: str) -> None:
    """Raise ConfigError if keys of a resource conflict, or if two resources do.

    Each resource has all its keys. ``file`` is the path of the file that lists them, if there are several.
    """
    for resource in resources:
        _validate_recreate(resource)
        validate_phones(resource)
        _validate_provision(resource)
        _validate_named_sets(resource)
        _validate_cdi_kind(resource)
        validate_dra(resource)
        validate_container_paths(resource)
    for (i, first), (j, second) in itertools.combinations(enumerate(resources), 2):
        place = f"file {file}: resources[{i}] and resources[{j}]"
        _require_different_names(first, second, place)
        _require_different_devices(first, second, place)
        require_different_drivers(first, second, place)
    _validate_capacity(resources)


def _validate_recreate(resource: Mapping[str, Setting]) -> None:
    recreate, replicas = resource["recreate"], resource["replicas"]
    if recreate.value is Recreate.NEVER or replicas.value == 1:
        return
    reason = "the start of one container would recreate the binder devices of another one"
    if recreate.source.startswith("default"):
        raise ConfigError(
            f"{replicas.source}: {replicas.value} replicas require recreate: {Recreate.NEVER}, not {recreate.value} "
            f"({recreate.source}): {reason}"
        )
    raise ConfigError(
        f"{recreate.source}: {recreate.value} requires 1 replica, not {replicas.value} ({replicas.source}): {reason}"
    )


def _validate_provision(resource: Mapping[str, Setting]) -> None:
    sets, provision, prefix = resource["sets"], resource["provision"], resource["device_prefix"]
    if provision.value is None:
        return
    directory, device_dir = provision.value.directory, resource["device_dir"]
    if f"{normalised(directory)}/".startswith("/dev/"):
        raise ConfigError(
            f"{provision.source}.directory: {shown(directory)} is not allowed: the runtime gives a privileged "
            "container every device below /dev; allowed: an absolute path outside /dev"
        )
    if normalised(device_dir.value) != normalised(DEFAULTS["device_dir"]):
        raise ConfigError(
            f"{device_dir.source}: {shown(device_dir.value)} has no effect: the binder devices of this resource are in "
            f"{provision.source}.directory, {shown(directory)}; remove device_dir, or set it for other resources only"
        )
    if isinstance(sets.value, NamedSets):
        raise ConfigError(
            f"{provision.source}: provisioned binder devices have numbers, and the device sets have names "
            f"({sets.source}): give the sets a size, or create the binder devices in another way"
        )
    last = f"{prefix.value}{provision.value.first + provision.value.count - 1}"
    if (problem := name_problem(last)) is not None:
        raise ConfigError(f"{provision.source}: {shown(last)} is not a valid device name ({prefix.source}): {problem}")


def _validate_named_sets(resource: Mapping[str, Setting]) -> None:
    sets = resource["sets"]
    if isinstance(sets.value, NamedSets) and (problem := pattern_problem(sets.value.pattern, sets.value.names)):
        raise ConfigError(f"{sets.source}: {problem}")


def _validate_cdi_kind(resource: Mapping[str, Setting]) -> None:
    name, strategies, api = resource["resource_name"], resource["device_list"], resource["api"]
    problem = kind_problem(name.value)
    if problem is not None and (api.value is Api.DRA or not CDI.isdisjoint(strategies.value)):
        reason = api if api.value is Api.DRA else strategies
        raise ConfigError(
            f"{reason.source}: the resource name {shown(name.value)} is not a valid CDI kind ({name.source}): {problem}"
        )


def _require_different_names(first: Mapping[str, Setting], second: Mapping[str, Setting], place: str) -> None:
    name, other_name = first["resource_name"], second["resource_name"]
    if name.value == other_name.value:
        raise ConfigError(
            f"{place}: both have the resource_name {shown(name.value)} ({_sources(name, other_name)}); give each its "
            "own"
        )


def _require_different_devices(first: Mapping[str, Setting], second: Mapping[str, Setting], place: str) -> None:
    """Raise ConfigError if two resources find the same binder devices in one directory.

    Named sets have no prefix: their overlaps are detected by a scan of the host.
    """
    if any(resource["phones"].value is not None for resource in (first, second)):
        require_separate_directories(first, second, place)
        return
    if any(isinstance(resource["sets"].value, NamedSets) for resource in (first, second)):
        return
    names = f"{first['resource_name'].value} and {second['resource_name'].value}"
    shorter, longer = sorted((first["device_prefix"], second["device_prefix"]), key=lambda prefix: len(prefix.value))
    directory = _scan_directory(first)
    if directory == _scan_directory(second) and longer.value.startswith(shorter.value):
        raise ConfigError(
            f"{place}: {names} both match {longer.value}* in {directory} ({_sources(shorter, longer)}); give each its "
            "own directory, or a device_prefix that is not the beginning of the other one"
        )


def _scan_directory(resource: Mapping[str, Setting]) -> str:
    phones, provision, device_dir = (resource[name].value for name in ("phones", "provision", "device_dir"))
    return normalised(scan_directory(phones, provision, device_dir))


def _validate_capacity(resources: Sequence[Mapping[str, Setting]]) -> None:
    """Require one max= per binderfs, with capacity for every binder device and one more to recreate them."""
    by_directory: dict[str, list[Setting]] = {}
    for resource in resources:
        if (provision := resource["provision"]).value is not None:
            by_directory.setdefault(normalised(provision.value.directory), []).append(provision)
    for directory, provisions in by_directory.items():
        limit, count = provisions[0].value.max, sum(provision.value.count for provision in provisions)
        sources = _sources(*provisions)
        if any(provision.value.max != limit for provision in provisions):
            raise ConfigError(f"{sources}: the binderfs {directory} has one max; set it in each of them, or in none")
        if limit is not None and limit <= count:
            raise ConfigError(
                f"{sources}: max {limit} is too small for the binderfs {directory}: {count} binder devices, and one "
                f"more to recreate them; allowed: {count + 1} or more, or no max"
            )


def _sources(*settings: Setting) -> str:
    return "; ".join(dict.fromkeys(setting.source for setting in settings))
