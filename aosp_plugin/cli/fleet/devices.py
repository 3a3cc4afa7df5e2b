"""The devices of nodes, and the pods that have them, from slices, claims and plugins. Everything here is pure."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aosp_plugin.framework.dra.names import device_id, driver_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from aosp_plugin.cli.fleet.cluster import Cluster, PluginAnswer, PluginResource, Slice

DOMAIN: Final = "aosp.io"
"""Of the resources that are recognized without further information."""

Owner: TypeAlias = tuple[str, str]
"""Namespace and name of a pod."""


class Device(NamedTuple):
    """A device of a node."""

    id: str
    reason: str
    """Why it is unhealthy or leaked; empty if it is neither."""
    leaked: bool
    since: float | None
    pods: tuple[Owner, ...]


Place: TypeAlias = tuple[str, str]
"""Node and resource."""


class Devices(NamedTuple):
    """All devices that are known one by one, and what pods have."""

    by_place: Mapping[Place, tuple[Device, ...]]
    dra: Collection[Place]
    """Where the resource is served by DRA."""
    of_pods: Mapping[tuple[Owner, str], tuple[tuple[str, str], ...]]
    """Node and ID of each device by pod and resource."""
    requested: Mapping[tuple[Owner, str], int]
    """Number of devices in claims that are not allocated yet, likewise."""


def resources(cluster: Cluster, chosen: Collection[str]) -> tuple[str, ...]:
    """Return the resources that are phones: those chosen, or those that plugins report, or those of aosp.io."""
    if chosen:
        return tuple(dict.fromkeys(chosen))
    names = {resource.name for answer in cluster.answers.values() for resource in answer.resources}
    for node in cluster.nodes or ():
        names.update(name for name in node.capacity if name.startswith(f"{DOMAIN}/"))
    for pod in cluster.pods or ():
        names.update(name for name in pod.limits if name.startswith(f"{DOMAIN}/"))
    drivers = {each.driver for each in cluster.slices or ()}
    drivers |= {driver for claim in cluster.claims or () for driver, _, _ in claim.devices}
    names.update(_resource_name(driver) for driver in drivers if driver.endswith(f".{DOMAIN}"))
    return tuple(sorted(names))


def _resource_name(driver: str) -> str:
    name, _, domain = driver.partition(".")
    return f"{domain}/{name}"


def devices(cluster: Cluster, names: Collection[str]) -> Devices:
    """Return the devices of the resources ``names``."""
    drivers = {driver_name(name): name for name in names}
    slices = current_slices(cluster.slices or (), drivers)
    ids = {(each.driver, each.pool, device.name): (each.node, device.id) for each in slices for device in each.devices}
    of_pods: dict[tuple[Owner, str], list[tuple[str, str]]] = collections.defaultdict(list)
    owners: dict[tuple[Place, str], list[Owner]] = collections.defaultdict(list)
    for claim in cluster.claims or ():
        for driver, pool, name in claim.devices:
            if driver not in drivers:
                continue
            node, identity = ids.get((driver, pool, name)) or (pool.rpartition("/")[0], device_id(name))
            for pod, _ in claim.pods:
                owner = (claim.namespace, pod)
                of_pods[owner, drivers[driver]].append((node, identity))
                owners[(node, drivers[driver]), identity].append(owner)
    by_place = dict(_slice_devices(slices, drivers, owners))
    dra = frozenset(by_place)
    for place, resource in plugin_resources(cluster).items():
        if place[1] in names and resource.devices is not None:
            _add_plugin_devices(place, resource, by_place, of_pods, dra=place in dra)
    _add_kubelet_devices(cluster, names, of_pods)
    return Devices(by_place, dra, {key: tuple(found) for key, found in of_pods.items()}, _requested(cluster, drivers))


def current_slices(slices: Collection[Slice], drivers: Collection[str]) -> list[Slice]:
    """Return the slices of these drivers that are of the latest generation of their pool."""
    latest: dict[tuple[str, str], int] = {}
    for each in slices:
        key = each.driver, each.pool
        latest[key] = max(each.generation, latest.get(key, each.generation))
    return [each for each in slices if each.driver in drivers and each.generation == latest[each.driver, each.pool]]


def plugin_answers(cluster: Cluster) -> Mapping[str, PluginAnswer]:
    """Return the answer of each node's plugin; of several on a node, for example during an update, of a ready one."""
    pods = sorted(cluster.plugin_pods or (), key=lambda pod: (pod.ready, pod.created))
    found = {pod.node: cluster.answers.get((pod.namespace, pod.name)) for pod in pods}
    return {node: answer for node, answer in found.items() if answer is not None}


def plugin_resources(cluster: Cluster) -> Mapping[Place, PluginResource]:
    """Return what plugins have answered, by node and resource."""
    answers = plugin_answers(cluster)
    return {(node, resource.name): resource for node, answer in answers.items() for resource in answer.resources}


def _slice_devices(
    slices: Collection[Slice], drivers: Mapping[str, str], owners: Mapping[tuple[Place, str], list[Owner]]
) -> Iterator[tuple[Place, tuple[Device, ...]]]:
    by_place: dict[Place, list[Device]] = {}
    for each in slices:
        place = each.node, drivers[each.driver]
        prefix = f"{each.driver}/unhealthy="
        found = by_place.setdefault(place, [])
        for device in each.devices:
            reason = ", ".join(device.taints).replace(prefix, "") if device.taints else ""
            pods = tuple(owners.get((place, device.id), ()))
            found.append(Device(device.id, reason, leaked=False, since=device.tainted, pods=pods))
    for place, found in by_place.items():
        yield place, tuple(found)


def _add_plugin_devices(
    place: Place,
    resource: PluginResource,
    by_place: dict[Place, tuple[Device, ...]],
    of_pods: dict[tuple[Owner, str], list[tuple[str, str]]],
    *,
    dra: bool,
) -> None:
    """Take the devices of a device plugin from its report, and those of a DRA driver from its slices, with its reasons.

    The claims of the API server say which pods have the devices of a DRA driver.
    """
    reported = resource.devices or ()
    known = {device.id: device for device in by_place.get(place, ())}
    found = []
    for device in reported:
        pods = known[device.id].pods if device.id in known else device.pods
        reason = (device.detail or device.reason) or ("leaked" if device.state == "leaked" else "")
        found.append(Device(device.id, reason, device.state == "leaked", device.since if reason else None, pods))
        if not dra:
            for owner in device.pods:
                of_pods[owner, resource.name].append((place[0], device.id))
    ids = {device.id for device in found}
    by_place[place] = (*found, *(device for device in known.values() if device.id not in ids))


def _add_kubelet_devices(
    cluster: Cluster, names: Collection[str], of_pods: dict[tuple[Owner, str], list[tuple[str, str]]]
) -> None:
    """Add what the kubelet reports in the status of pods (feature gate ResourceHealthStatus)."""
    for pod in cluster.pods or ():
        for device in pod.devices:
            owner = (pod.namespace, pod.name)
            if device.resource in names and (pod.node, device.id) not in of_pods[owner, device.resource]:
                of_pods[owner, device.resource].append((pod.node, device.id))


def _requested(cluster: Cluster, drivers: Mapping[str, str]) -> Mapping[tuple[Owner, str], int]:
    """Return how many phones the claims of pods request that have none yet."""
    classes = {name: name for name in drivers}
    for each in cluster.classes or ():
        for driver, resource in drivers.items():
            if each.resource == resource or any(f'"{driver}"' in expression for expression in each.expressions):
                classes[each.name] = driver
    waiting = {
        (claim.namespace, claim.name): [drivers[classes[name]] for name in claim.classes if name in classes]
        for claim in cluster.claims or ()
        if not claim.devices
    }
    requested: dict[tuple[Owner, str], int] = collections.defaultdict(int)
    if waiting:
        for pod in cluster.pods or ():
            for name in pod.claims:
                for resource in waiting.get((pod.namespace, name), ()):
                    requested[(pod.namespace, pod.name), resource] += 1
    return requested
