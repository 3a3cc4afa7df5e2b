"""What must hold between keys, of one resource and of several: what each of them may be alone is not asked here.

Only the configuration is looked at. That two directories are one through a link is seen when the host is.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from aosp_plugin.binder.devices.sets import pattern_problem
from aosp_plugin.binder.discovery.binder_device import name_problem
from aosp_plugin.config.resource import NamedSets
from aosp_plugin.config.values import Recreate, normalised
from aosp_plugin.errors import ConfigError
from aosp_plugin.framework.cdi.spec import kind_problem
from aosp_plugin.framework.device_list import CDI

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.config.resource import Nodes
    from aosp_plugin.config.setting import Setting

_MOST_DIGITS = 10


def validate_cross_field(resources: Sequence[Mapping[str, Setting]], file: str) -> None:
    """Raise ConfigError where the keys of a resource, or two resources, don't go together.

    ``resources`` has every key of each; ``file`` is where there is more than one.
    """
    for resource in resources:
        _require_reset_of_one(resource)
        _require_numbers_for_made_nodes(resource)
        _require_names_that_differ(resource)
        _require_a_kind(resource)
    for (i, one), (j, other) in itertools.combinations(enumerate(resources), 2):
        place = f"file {file}: resources[{i}] and resources[{j}]"
        _require_two_names(one, other, place)
        _require_no_node_of_both(one, other, place)
    _require_room(resources)


def _require_reset_of_one(resource: Mapping[str, Setting]) -> None:
    recreate, replicas = resource["recreate"], resource["replicas"]
    if recreate.value is Recreate.ON_START and replicas.value > 1:
        raise ConfigError(
            f"{recreate.source}: {recreate.value} conflicts with {replicas.value} replicas ({replicas.source}): "
            f"starting one container would take the devices of another; "
            f"allowed: recreate {Recreate.NEVER}, or 1 replica"
        )


def _require_numbers_for_made_nodes(resource: Mapping[str, Setting]) -> None:
    sets, nodes, prefix = resource["sets"], resource["nodes"], resource["device_prefix"]
    if nodes.value is None:
        return
    if isinstance(sets.value, NamedSets):
        raise ConfigError(
            f"{nodes.source}: the nodes that are made have numbers, and the sets have names ({sets.source}); make "
            "them in another way, or give the sets a size"
        )
    last = f"{prefix.value}{_numbers(nodes.value)[-1]}"
    if (problem := name_problem(last)) is not None:
        raise ConfigError(f"{nodes.source}: {last!r} can't be a node's name ({prefix.source}): {problem}")


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


def _require_no_node_of_both(one: Mapping[str, Setting], other: Mapping[str, Setting], place: str) -> None:
    """Neither what they find in a directory nor what they make in a binderfs may be the same node.

    What a pattern finds has no prefix: whether that is another's is seen when the host is.
    """
    names = f"{one['resource_name'].value} and {other['resource_name'].value}"
    shorter, longer = sorted((one["device_prefix"], other["device_prefix"]), key=lambda prefix: len(prefix.value))
    directory = normalised(one["device_dir"].value)
    by_pattern = any(isinstance(resource["sets"].value, NamedSets) for resource in (one, other))
    same = directory == normalised(other["device_dir"].value) and longer.value.startswith(shorter.value)
    if same and not by_pattern:
        raise ConfigError(
            f"{place}: {longer.value}… in {directory} is taken by both, {names} ({_sources(shorter, longer)}); give "
            "each a device_dir of its own, or a device_prefix that the other's does not begin with"
        )
    made, made_too = one["nodes"].value, other["nodes"].value
    if made is None or made_too is None or normalised(made.directory) != normalised(made_too.directory):
        return
    name = name_of_both(one["device_prefix"].value, _numbers(made), other["device_prefix"].value, _numbers(made_too))
    if name is not None:
        raise ConfigError(
            f"{place}: {name} in the binderfs {normalised(made.directory)} is made for both, {names}; give each a "
            "nodes.directory or a device_prefix of its own, or numbers that the other's nodes don't have"
        )


def name_of_both(prefix: str, numbers: range, other_prefix: str, other_numbers: range) -> str | None:
    """Return a name that is one prefix with one of its numbers, and the other with one of its own; None: there is none.

    x1 with 5 is x with 15.
    """
    if len(prefix) > len(other_prefix):
        return name_of_both(other_prefix, other_numbers, prefix, numbers)
    if not other_prefix.startswith(prefix):
        return None
    between = other_prefix[len(prefix) :]
    if not re.fullmatch("([1-9][0-9]*)?", between):
        return None
    for digits in range(1, _MOST_DIGITS + 1):
        shift = int(between or "0") * 10**digits
        lowest = 10 ** (digits - 1) if digits > 1 else 0
        first = max(lowest, other_numbers.start, numbers.start - shift)
        if first < min(10**digits, other_numbers.stop, numbers.stop - shift):
            return f"{other_prefix}{first}"
    return None


def _require_room(resources: Sequence[Mapping[str, Setting]]) -> None:
    """Ask for one max= a binderfs, with room for every node and one more, through which a node is renewed."""
    by_directory: dict[str, list[Setting]] = {}
    for resource in resources:
        if (nodes := resource["nodes"]).value is not None:
            by_directory.setdefault(normalised(nodes.value.directory), []).append(nodes)
    for directory, sharing in by_directory.items():
        limit, needed = sharing[0].value.max, sum(nodes.value.ensure for nodes in sharing) + 1
        sources = _sources(*sharing)
        if any(nodes.value.max != limit for nodes in sharing):
            raise ConfigError(f"{sources}: the binderfs {directory} has one max; give it to each of them, or to none")
        if limit is not None and limit < needed:
            raise ConfigError(
                f"{sources}: max {limit} is too small for the binderfs {directory}: {needed - 1} nodes, and one more "
                f"through which a node is renewed; allowed: {needed} or more, or no max"
            )


def _sources(*settings: Setting) -> str:
    return "; ".join(dict.fromkeys(setting.source for setting in settings))


def _numbers(nodes: Nodes) -> range:
    return range(nodes.first, nodes.first + nodes.ensure)
