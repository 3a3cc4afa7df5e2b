"""What must hold between keys, of one resource and of several: what each of them may be alone is not asked here.

Only the configuration is looked at. That two directories are one through a link is seen when the host is.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.sets import pattern_problem
from aosp_plugin.binder.discovery.names import name_problem
from aosp_plugin.config.resource import NamedSets
from aosp_plugin.config.values import Recreate, normalised
from aosp_plugin.errors import ConfigError
from aosp_plugin.framework.cdi.spec import kind_problem
from aosp_plugin.framework.device_list import CDI

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.config.setting import Setting


def validate_cross_field(resources: Sequence[Mapping[str, Setting]], file: str) -> None:
    """Raise ConfigError where the keys of a resource, or two resources, don't go together.

    ``resources`` has every key of each; ``file`` is where there is more than one.
    """
    for resource in resources:
        _require_reset_of_one(resource)
        _require_numbered_devices(resource)
        _require_names_that_differ(resource)
        _require_a_kind(resource)
    for (i, one), (j, other) in itertools.combinations(enumerate(resources), 2):
        place = f"file {file}: resources[{i}] and resources[{j}]"
        _require_two_names(one, other, place)
        _require_no_shared_devices(one, other, place)
    _require_room(resources)


def _require_reset_of_one(resource: Mapping[str, Setting]) -> None:
    recreate, replicas = resource["recreate"], resource["replicas"]
    if recreate.value is Recreate.ON_START and replicas.value > 1:
        raise ConfigError(
            f"{recreate.source}: {recreate.value} conflicts with {replicas.value} replicas ({replicas.source}): "
            f"starting one container would take the devices of another; "
            f"allowed: recreate {Recreate.NEVER}, or 1 replica"
        )


def _require_numbered_devices(resource: Mapping[str, Setting]) -> None:
    sets, provision, prefix = resource["sets"], resource["provision"], resource["device_prefix"]
    if provision.value is None:
        return
    if isinstance(sets.value, NamedSets):
        raise ConfigError(
            f"{provision.source}: provisioned binder devices have numbers, and the device sets have names "
            f"({sets.source}): give the sets a size, or create the binder devices in another way"
        )
    last = f"{prefix.value}{provision.value.first + provision.value.count - 1}"
    if (problem := name_problem(last)) is not None:
        raise ConfigError(f"{provision.source}: {last!r} is not a valid device name ({prefix.source}): {problem}")


def _require_names_that_differ(resource: Mapping[str, Setting]) -> None:
    sets = resource["sets"]
    if isinstance(sets.value, NamedSets):
        problem = pattern_problem(sets.value.pattern, sets.value.names)
        if problem is not None:
            raise ConfigError(f"{sets.source}: {problem}")


def _require_a_kind(resource: Mapping[str, Setting]) -> None:
    name, ways = resource["resource_name"], resource["device_list"]
    problem = kind_problem(name.value)
    if problem is not None and not CDI.isdisjoint(ways.value):
        raise ConfigError(f"{ways.source}: {name.value!r} can't be a kind of CDI ({name.source}): {problem}")


def _require_two_names(one: Mapping[str, Setting], other: Mapping[str, Setting], place: str) -> None:
    name, again = one["resource_name"], other["resource_name"]
    if name.value == again.value:
        raise ConfigError(
            f"{place}: both have the resource_name {name.value!r} ({_sources(name, again)}); each needs its own"
        )


def _require_no_shared_devices(one: Mapping[str, Setting], other: Mapping[str, Setting], place: str) -> None:
    """Raise ConfigError if two resources would find the same binder devices in one directory.

    Named sets have no prefix: an overlap with those is found by a scan of the host.
    """
    names = f"{one['resource_name'].value} and {other['resource_name'].value}"
    shorter, longer = sorted((one["device_prefix"], other["device_prefix"]), key=lambda prefix: len(prefix.value))
    directory = _scan_directory(one)
    named = any(isinstance(resource["sets"].value, NamedSets) for resource in (one, other))
    same = directory == _scan_directory(other) and longer.value.startswith(shorter.value)
    if same and not named:
        raise ConfigError(
            f"{place}: {longer.value}… in {directory} is taken by both, {names} ({_sources(shorter, longer)}); give "
            "each a directory of its own, or a device_prefix that the other's does not begin with"
        )


def _scan_directory(resource: Mapping[str, Setting]) -> str:
    provision = resource["provision"].value
    return normalised(resource["device_dir"].value if provision is None else provision.directory)


def _require_room(resources: Sequence[Mapping[str, Setting]]) -> None:
    """Require one max= per binderfs, with room for every binder device and one more to recreate them."""
    by_directory: dict[str, list[Setting]] = {}
    for resource in resources:
        if (provision := resource["provision"]).value is not None:
            by_directory.setdefault(normalised(provision.value.directory), []).append(provision)
    for directory, sharing in by_directory.items():
        limit, count = sharing[0].value.max, sum(provision.value.count for provision in sharing)
        sources = _sources(*sharing)
        if any(provision.value.max != limit for provision in sharing):
            raise ConfigError(f"{sources}: the binderfs {directory} has one max; set it in each of them, or in none")
        if limit is not None and limit <= count:
            raise ConfigError(
                f"{sources}: max {limit} is too small for the binderfs {directory}: {count} binder devices, and one "
                f"more to recreate them; allowed: {count + 1} or more, or no max"
            )


def _sources(*settings: Setting) -> str:
    return "; ".join(dict.fromkeys(setting.source for setting in settings))
