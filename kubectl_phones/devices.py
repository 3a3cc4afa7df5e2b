"""The devices of nodes, and the pods that have them, from slices, claims and pods. Everything here is pure."""

import collections
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from kubectl_phones.gather import Cluster
from kubectl_phones.objects import Object, seconds

DOMAIN: Final = "aosp.io"
"""The domain of the resources that count as phones without ``--resource``."""

Owner: TypeAlias = tuple[str, str]
"""Namespace and name of a pod."""
Place: TypeAlias = tuple[str, str]
"""Node and resource."""


class Device(NamedTuple):
    """A device of a ResourceSlice."""

    id: str
    reason: str
    """Why it is unhealthy: the values of its taints; empty if it is healthy."""
    since: float | None
    """When it got its first taint."""
    used: bool
    """Whether a pod has it."""


class Devices(NamedTuple):
    """All devices that are known one by one, and what pods have."""

    by_place: Mapping[Place, Mapping[str, Device]]
    """The devices of DRA drivers, by their IDs."""
    of_pods: Mapping[tuple[Owner, str], Collection[str]]
    """IDs of the devices by pod and resource."""
    requested: Mapping[tuple[Owner, str], int]
    """Number of devices in claims that are not allocated yet, by pod and resource."""


def driver_name(resource: str) -> str:
    """Return the name of the DRA driver of a resource, such as phone.aosp.io for aosp.io/phone."""
    domain, _, name = resource.partition("/")
    return f"{name}.{domain}"


def resources(cluster: Cluster, chosen: Collection[str]) -> tuple[str, ...]:
    """Return the resources that are phones: those chosen, or those of aosp.io."""
    if chosen:
        return tuple(dict.fromkeys(chosen))
    counted = [*(node.capacity for node in cluster.nodes or ()), *(pod.limits for pod in cluster.pods or ())]
    names = {name for amounts in counted for name in amounts if name.startswith(f"{DOMAIN}/")}
    drivers = {each["spec"]["driver"] for each in cluster.slices or ()}
    drivers |= {driver for claim in cluster.claims or () for driver, _, _ in claim.devices}
    names |= {f"{DOMAIN}/{driver.partition('.')[0]}" for driver in drivers if driver.partition(".")[2] == DOMAIN}
    return tuple(sorted(names))


def devices(cluster: Cluster, names: Collection[str]) -> Devices:
    """Return the devices of the resources ``names``."""
    drivers = {driver_name(name): name for name in names}
    users = {
        device: [(claim.namespace, pod) for pod in claim.pods]
        for claim in cluster.claims or ()
        for device in claim.devices
        if device[0] in drivers
    }
    by_place: dict[Place, dict[str, Device]] = collections.defaultdict(dict)
    ids: dict[tuple[str, str, str], str] = {}
    for spec in _current_slices(cluster, drivers):
        driver, pool = spec["driver"], spec["pool"]["name"]
        place = spec["nodeName"], drivers[driver]
        for item in spec.get("devices", ()):
            key = driver, pool, item["name"]
            device = _device(item, f"{driver}/unhealthy=", used=bool(users.get(key)))
            by_place[place][device.id], ids[key] = device, device.id
    of_pods: dict[tuple[Owner, str], dict[str, None]] = collections.defaultdict(dict)  # in order
    for key, owners in users.items():
        for owner in owners:
            of_pods[owner, drivers[key[0]]][ids.get(key, key[2])] = None
    for pod in cluster.pods or ():
        for resource, device_id, _ in pod.devices:
            of_pods[(pod.namespace, pod.name), resource][device_id] = None
    return Devices(by_place, of_pods, _requested(cluster, drivers))


def _current_slices(cluster: Cluster, drivers: Collection[str]) -> list[Object]:
    """Return the specs of these drivers' slices for a node, of the latest generation of their pool."""
    specs = [each["spec"] for each in cluster.slices or ()]
    specs = [spec for spec in specs if spec["driver"] in drivers and spec.get("nodeName")]
    latest: dict[tuple[str, str, str], int] = collections.defaultdict(int)
    for spec in specs:
        latest[_pool_of(spec)] = max(spec["pool"]["generation"], latest[_pool_of(spec)])
    return [spec for spec in specs if spec["pool"]["generation"] == latest[_pool_of(spec)]]


def _pool_of(spec: Object) -> tuple[str, str, str]:
    """Return what identifies the pool of a slice for a node: another node may have one of the same name."""
    return spec["driver"], spec["nodeName"], spec["pool"]["name"]


def _device(item: Object, health: str, *, used: bool) -> Device:
    """Return a device of a slice; ``health`` is what precedes the reason in a taint."""
    taints = item.get("taints", ())
    shown = ["=".join(filter(None, (taint["key"], taint.get("value")))).removeprefix(health) for taint in taints]
    times = [seconds(taint.get("timeAdded")) for taint in taints]
    identity = item.get("attributes", {}).get("id", {}).get("string") or item["name"]
    return Device(identity, ", ".join(shown), min(filter(None, times), default=None), used)


def _requested(cluster: Cluster, drivers: Mapping[str, str]) -> Mapping[tuple[Owner, str], int]:
    """Return how many phones pods request by claims that are not allocated yet."""
    classes = {name: name for name in drivers}
    for each in cluster.classes or ():
        for driver, resource in drivers.items():
            spec = each["spec"]
            selects = any(f'"{driver}"' in selector["cel"]["expression"] for selector in spec.get("selectors", ()))
            if selects or spec.get("extendedResourceName") == resource:
                classes[each["metadata"]["name"]] = driver
    waiting = {
        (claim.namespace, claim.name): [
            (drivers[classes[name]], count) for name, count in claim.classes.items() if name in classes
        ]
        for claim in cluster.claims or ()
        if not claim.devices
    }
    requested: dict[tuple[Owner, str], int] = collections.defaultdict(int)
    for pod in cluster.pods or ():
        for name in pod.claims:
            for resource, count in waiting.get((pod.namespace, name), ()):
                requested[(pod.namespace, pod.name), resource] += count
    return requested
