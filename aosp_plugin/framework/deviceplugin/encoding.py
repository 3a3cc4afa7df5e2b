"""Devices as the bytes of a ListAndWatchResponse, of which a change encodes only what is near it.

A hundred thousand devices take 60 ms to encode, and one node that appears should not wait for them. Protobuf messages
may be joined by joining their bytes; repeated fields then add up. So the list is kept in chunks, and those whose
devices are the same as before are taken as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.api.deviceplugin_pb2 import ListAndWatchResponse, NUMANode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aosp_plugin.framework.inventory import Device

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""The two words the kubelet knows (pkg/apis/deviceplugin/v1beta1/constants.go)."""

CHUNK = 1000
"""Devices that are encoded together: half a millisecond."""


class Chunk(NamedTuple):
    """Some devices in a row."""

    devices: tuple[Device, ...]
    data: bytes
    size_at_most: int
    """Bytes where all of them were unhealthy."""


def chunks(devices: tuple[Device, ...], before: Sequence[Chunk] = ()) -> list[Chunk]:
    """Return all of ``devices`` in chunks, of which those at both ends that are the same in ``before`` are its."""
    first, last = 0, len(devices)
    front: list[Chunk] = []
    for chunk in before:
        if devices[first : first + len(chunk.devices)] != chunk.devices:
            break
        first += len(chunk.devices)
        front.append(chunk)
    back: list[Chunk] = []
    for chunk in reversed(before[len(front) :]):
        start = last - len(chunk.devices)
        if start < first or devices[start:last] != chunk.devices:
            break
        last = start
        back.append(chunk)
    while front and last - first < CHUNK // 4:  # else a list that changes often ends as one of small pieces
        first -= len(front.pop().devices)
    return [*front, *map(_chunk, _cut(devices[first:last])), *reversed(back)]


def _cut(devices: tuple[Device, ...]) -> Iterator[tuple[Device, ...]]:
    """Yield the devices in pieces of ``CHUNK`` at the most, and all about as long as each other."""
    count = -(-len(devices) // CHUNK)
    for piece in range(count):
        yield devices[len(devices) * piece // count : len(devices) * (piece + 1) // count]


def fitting(all_chunks: Iterable[Chunk], limit: int) -> tuple[bytes, int]:
    """Return as many devices as fit into a message of ``limit`` bytes, and how many they are.

    Each counts as long as it would be when unhealthy, so that a change of health never pushes another device out.
    """
    parts: list[bytes] = []
    size = count = 0
    for chunk in all_chunks:
        size += chunk.size_at_most
        if size > limit:
            rest, more = _fitting_one_by_one(chunk.devices, limit - (size - chunk.size_at_most))
            return b"".join([*parts, rest]), count + more
        parts.append(chunk.data)
        count += len(chunk.devices)
    return b"".join(parts), count


def encode(devices: Iterable[Device]) -> bytes:
    """Return the ListAndWatchResponse of ``devices``."""
    response = ListAndWatchResponse()
    add = response.devices.add
    for device in devices:
        message = add(ID=device.id, health=UNHEALTHY if device.reason else HEALTHY)
        if device.numa_nodes:
            message.topology.nodes.extend([NUMANode(ID=node) for node in device.numa_nodes])
    return response.SerializeToString()


def _chunk(devices: tuple[Device, ...]) -> Chunk:
    data = encode(devices)
    healthy = sum(not device.reason for device in devices)
    return Chunk(devices, data, len(data) + healthy * (len(UNHEALTHY) - len(HEALTHY)))


def _fitting_one_by_one(devices: Iterable[Device], limit: int) -> tuple[bytes, int]:
    parts: list[bytes] = []
    for device in devices:
        alone = _chunk((device,))
        limit -= alone.size_at_most
        if limit < 0:
            break
        parts.append(alone.data)
    return b"".join(parts), len(parts)
