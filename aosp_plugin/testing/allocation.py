"""Which devices a container gets, and how the plugins' answers become one. Pure: randomness is passed in.

pkg/kubelet/cm/devicemanager/manager.go (devicesToAllocate) and pod_devices.go (deviceRunContainerOptions),
under the topology manager's policy ``none``: no device is closer to a container than another.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.testing.behaviour import Behaviour
from aosp_plugin.testing.pods import ContainerAllocation, DeviceSpec, Mount

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from aosp_plugin.testing.checkpoint import Entry

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class SelectionError(Exception):
    """No devices for this container; the text is the kubelet's."""


@dataclass(frozen=True)
class Want:
    """What one container asks of one resource, and all that the choice depends on."""

    pod_uid: str
    container: str
    resource: str
    count: int
    held: tuple[str, ...] | None
    """What the container was given before; None if nothing."""
    healthy: AbstractSet[str] | None
    """None: no plugin of this resource is known."""
    in_use: AbstractSet[str]
    reusable: AbstractSet[str]
    """Devices of this pod's init containers, which have ended when this container starts."""


@dataclass(frozen=True)
class Choice:
    """``taken`` are certain; ``missing`` more come out of ``available``, as the plugin prefers."""

    taken: tuple[str, ...]
    missing: int
    available: AbstractSet[str]


def pick(candidates: Iterable[str], count: int, rng: random.Random) -> tuple[str, ...]:
    """Take at most ``count`` candidates in random order: Go's maps yield them so, here the seed decides."""
    ordered = sorted(candidates)
    return tuple(rng.sample(ordered, min(count, len(ordered))))


def _check_held(want: Want, held: Collection[str]) -> None:
    if len(held) != want.count:
        raise SelectionError(
            f'pod "{want.pod_uid}" container "{want.container}" changed request for resource '
            f'"{want.resource}" from {len(held)} to {want.count}'
        )


def _check_healthy(want: Want, healthy: AbstractSet[str]) -> None:
    if not healthy:
        raise SelectionError(f"no healthy devices present; cannot allocate unhealthy devices {want.resource}")
    if want.held is not None and not healthy >= set(want.held):
        raise SelectionError(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {want.resource}"
        )


def choose(want: Want, behaviour: Behaviour, rng: random.Random) -> Choice | None:
    """Begin the choice: None if nothing is to be allocated, else what is taken and what is open.

    Raises SelectionError with the kubelet's text.
    """
    if want.held is not None:
        _check_held(want, want.held)
    satisfied = want.held is not None or want.count == 0
    if satisfied and behaviour is Behaviour.OLD:
        return None
    if want.healthy is None:
        raise SelectionError(behaviour.unregistered(want.resource))
    if behaviour is not Behaviour.OLD:
        _check_healthy(want, want.healthy)
    if satisfied:
        return None
    taken = pick(want.reusable, want.count, rng)
    missing = want.count - len(taken)
    available = want.healthy - want.in_use - set(taken) if missing else frozenset[str]()
    if len(available) < missing:
        raise SelectionError(
            f"requested number of devices unavailable for {want.resource}. "
            f"Requested: {missing}, Available: {len(available)}"
        )
    return Choice(taken, missing, available)


def complete(choice: Choice, preferred: Collection[str], rng: random.Random) -> tuple[str, ...]:
    """Fill up a choice: first from what the plugin prefers, then from the rest. In random order.

    Preferred ids that are not available are ignored; of too many, a random part is taken.
    """
    wished = pick(choice.available & set(preferred), choice.missing, rng)
    rest = pick(choice.available - set(wished), choice.missing - len(wished), rng)
    return pick((*choice.taken, *wished, *rest), len(choice.taken) + choice.missing, rng)


def by_numa(ids: Sequence[str], topology: Mapping[str, tuple[int, ...]], default: int) -> dict[int, tuple[str, ...]]:
    """Sort ids under their NUMA nodes; one without any goes under ``default``, one with two under both."""
    nodes: dict[int, list[str]] = {}
    for device in ids:
        for node in topology.get(device) or (default,):
            nodes.setdefault(node, []).append(device)
    return {node: tuple(found) for node, found in nodes.items()}


def _keep_first(into: dict[str, _T], key: str, value: _T, what: str) -> None:
    """Let the first one win; a different second one is only logged (pod_devices.go:227-323)."""
    kept = into.setdefault(key, value)
    if kept != value:
        _log.error("Container runtime option has conflicting setting for %s %s: %s and %s", what, key, kept, value)


def merge(container: str, entries: Sequence[Entry], behaviour: Behaviour, rng: random.Random) -> ContainerAllocation:
    """Merge the answers of a container's resources, in random order, into what the container runtime gets."""
    envs: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    devices: dict[str, DeviceSpec] = {}
    cdi: dict[str, None] = {}
    for entry in rng.sample(entries, len(entries)):
        response = pb.ContainerAllocateResponse.FromString(entry.response)
        for key, value in response.envs.items():
            _keep_first(envs, key, value, "environment variable")
        for key, value in response.annotations.items():
            _keep_first(annotations, key, value, "annotation")
        for m in response.mounts:
            mount = Mount(m.container_path, m.host_path, m.read_only)
            _keep_first(mounts, mount.container_path, mount, "mount")
        for d in response.devices:
            device = DeviceSpec(d.container_path, d.host_path, d.permissions)
            _keep_first(devices, device.container_path, device, "device")
        if behaviour.knows_cdi:
            cdi.update(dict.fromkeys(named.name for named in response.cdi_devices))
    return ContainerAllocation(
        name=container,
        device_ids={entry.resource: entry.device_ids for entry in entries},
        envs=envs,
        mounts=tuple(mounts.values()),
        devices=tuple(devices.values()),
        annotations=annotations,
        cdi_devices=tuple(cdi),
    )
