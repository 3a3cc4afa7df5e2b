"""Device selection, and the merge of plugin responses. Pure functions; the random generator is an argument.

pkg/kubelet/cm/devicemanager/manager.go (devicesToAllocate) and pod_devices.go (deviceRunContainerOptions),
with the topology manager's policy ``none``: NUMA nodes do not influence the selection.
"""

import logging
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from kubelet_standin.api import deviceplugin_pb2 as pb
from kubelet_standin.deviceplugin.checkpoint import CheckpointEntry
from kubelet_standin.deviceplugin.pods import ContainerAllocation, DeviceSpec, Mount

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class SelectionError(Exception):
    """The devices of a container cannot be selected. The text is the kubelet's."""


@dataclass(frozen=True)
class AllocationRequest:
    """A container's request for one resource, and the state that the selection depends on."""

    pod_uid: str
    container: str
    resource: str
    count: int
    held: tuple[str, ...] | None
    """IDs that were allocated to the container before; None if there are none."""
    healthy: AbstractSet[str] | None
    """None if no plugin of this resource is known."""
    in_use: AbstractSet[str]
    reusable: AbstractSet[str]
    """Devices of this pod's init containers, which have ended before this container starts."""


@dataclass(frozen=True)
class Selection:
    """A partial selection: ``reused`` is fixed, ``missing`` devices are still to be taken from ``available``."""

    reused: tuple[str, ...]
    missing: int
    available: AbstractSet[str]


def sample(candidates: Iterable[str], count: int, rng: random.Random) -> tuple[str, ...]:
    """Return at most ``count`` candidates in random order, which stands for the iteration order of Go's maps."""
    ordered = sorted(candidates)
    return tuple(rng.sample(ordered, min(count, len(ordered))))


def _check_held(request: AllocationRequest, held: Collection[str]) -> None:
    if len(held) != request.count:
        raise SelectionError(
            f'pod "{request.pod_uid}" container "{request.container}" changed request for resource '
            f'"{request.resource}" from {len(held)} to {request.count}'
        )


def _check_healthy(request: AllocationRequest, healthy: AbstractSet[str]) -> None:
    if not healthy:
        raise SelectionError(f"no healthy devices present; cannot allocate unhealthy devices {request.resource}")
    if request.held is not None and not healthy >= set(request.held):
        raise SelectionError(
            f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {request.resource}"
        )


def start_selection(request: AllocationRequest, rng: random.Random) -> Selection | None:
    """Select the reused devices and determine the available ones; None if nothing has to be allocated.

    Raises SelectionError with the kubelet's text.
    """
    if request.held is not None:
        _check_held(request, request.held)
    if request.healthy is None:
        raise SelectionError(f"cannot allocate unregistered device {request.resource}")
    _check_healthy(request, request.healthy)
    if request.held is not None or request.count == 0:
        return None
    reused = sample(request.reusable, request.count, rng)
    missing = request.count - len(reused)
    available = request.healthy - request.in_use - set(reused) if missing else frozenset[str]()
    if len(available) < missing:
        raise SelectionError(
            f"requested number of devices unavailable for {request.resource}. "
            f"Requested: {missing}, Available: {len(available)}"
        )
    return Selection(reused, missing, available)


def complete_selection(selection: Selection, preferred: Collection[str], rng: random.Random) -> tuple[str, ...]:
    """Return the selected IDs in random order: the reused, then the preferred, then other available devices.

    Preferred IDs that are not available are ignored. If the plugin prefers too many, a random part is used.
    """
    chosen = sample(selection.available & set(preferred), selection.missing, rng)
    rest = sample(selection.available - set(chosen), selection.missing - len(chosen), rng)
    return sample((*selection.reused, *chosen, *rest), len(selection.reused) + selection.missing, rng)


def group_by_numa_node(ids: Sequence[str], topology: Mapping[str, tuple[int, ...]]) -> dict[int, tuple[str, ...]]:
    """Group IDs by NUMA node. IDs without a node are listed under -1, IDs with two nodes under both."""
    nodes: dict[int, list[str]] = {}
    for device in ids:
        for node in topology.get(device) or (-1,):
            nodes.setdefault(node, []).append(device)
    return {node: tuple(devices) for node, devices in nodes.items()}


def _keep_first(values: dict[str, _T], key: str, value: _T, option: str) -> None:
    """Add a value unless the key exists; log a conflicting value (pod_devices.go:227-323)."""
    kept = values.setdefault(key, value)
    if kept != value:
        _log.error("Container runtime option has conflicting setting for %s %s: %s and %s", option, key, kept, value)


def merge_responses(container: str, entries: Sequence[CheckpointEntry], rng: random.Random) -> ContainerAllocation:
    """Merge the responses for a container's resources, in random order, into the container runtime's options."""
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
