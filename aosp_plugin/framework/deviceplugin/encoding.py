"""Incremental encoding of a device list as a ListAndWatchResponse.

Encoding a hundred thousand devices takes 60 ms, which would delay the report of a single change. Concatenating the
bytes of protobuf messages concatenates their repeated fields. The list is therefore encoded in chunks, and chunks whose
devices have not changed are reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aosp_plugin.framework.api.deviceplugin_pb2 import ListAndWatchResponse, NUMANode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aosp_plugin.framework.inventory import Device

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""The two states that the kubelet knows (pkg/apis/deviceplugin/v1beta1/constants.go)."""

CHUNK = 1000
"""Devices in a chunk, which take half a millisecond to encode."""


class Chunk(NamedTuple):
    """Consecutive devices."""

    devices: tuple[Device, ...]
    data: bytes
    max_size: int
    """Bytes if all of the devices were unhealthy."""


def chunks(devices: tuple[Device, ...], previous: Sequence[Chunk] = ()) -> list[Chunk]:
    """Return ``devices`` in chunks, and reuse those of ``previous`` that are unchanged at both ends of the list."""
    first, last = 0, len(devices)
    front: list[Chunk] = []
    for chunk in previous:
        if devices[first : first + len(chunk.devices)] != chunk.devices:
            break
        first += len(chunk.devices)
        front.append(chunk)
    back: list[Chunk] = []
    for chunk in reversed(previous[len(front) :]):
        start = last - len(chunk.devices)
        if start < first or devices[start:last] != chunk.devices:
            break
        last = start
        back.append(chunk)
    while front and last - first < CHUNK // 4:  # otherwise, many changes would leave many small chunks
        first -= len(front.pop().devices)
    return [*front, *map(_chunk, _cut(devices[first:last])), *reversed(back)]


def _cut(devices: tuple[Device, ...]) -> Iterator[tuple[Device, ...]]:
    """Yield the devices in pieces of about the same length, with at most ``CHUNK`` devices each."""
    count = -(-len(devices) // CHUNK)
    for piece in range(count):
        yield devices[len(devices) * piece // count : len(devices) * (piece + 1) // count]


def fitting(all_chunks: Iterable[Chunk], limit: int) -> tuple[bytes, int]:
    """Return a message with as many devices as fit into ``limit`` bytes, and their number.

    Each device counts with its size when unhealthy, so that a change of health never displaces another device.
    """
    parts: list[bytes] = []
    count = 0
    for chunk in all_chunks:
        if chunk.max_size > limit:
            if len(chunk.devices) > 1:
                rest, rest_count = fitting((_chunk((device,)) for device in chunk.devices), limit)
                return b"".join([*parts, rest]), count + rest_count
            break
        limit -= chunk.max_size
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
