"""Incremental encoding of a device list as a ListAndWatchResponse.

Encoding a hundred thousand devices takes 10 ms, which would delay the report of a single change. Concatenating the
bytes of protobuf messages concatenates their repeated fields. The list is therefore encoded in chunks, and chunks whose
devices have not changed are reused.

The bytes are written without protobuf's objects, which take ten times as long. The fields are those of api.proto::

    message ListAndWatchResponse { repeated Device devices = 1; }
    message Device { string ID = 1; string health = 2; TopologyInfo topology = 3; }
    message TopologyInfo { repeated NUMANode nodes = 1; }
    message NUMANode { int64 ID = 1; }
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aosp_plugin.framework.devices import Device, Devices

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
"""The two states that the kubelet knows (pkg/apis/deviceplugin/v1beta1/constants.go)."""

CHUNK = 1000
"""Devices in a chunk, which take a tenth of a millisecond to encode."""

_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
"""Tags of fields whose value has a length: the number of the field, and wire type 2."""

_INT64_FIELD_1 = b"\x08"
"""Tag of a field whose value is a varint."""

_ONE_BYTE = 0x80
"""Numbers below this one are a single byte as a varint."""


class Chunk(NamedTuple):
    """Consecutive devices."""

    ids: Sequence[str]
    special: Mapping[str, Device]
    """See ``Devices.special``."""
    data: bytes
    max_size: int
    """Bytes if all of the devices were unhealthy."""


def chunks(devices: Devices, previous: Sequence[Chunk] = ()) -> list[Chunk]:
    """Return ``devices`` in chunks, and reuse those of ``previous`` that are unchanged at both ends of the list."""
    first, last = 0, len(devices)
    front: list[Chunk] = []
    for chunk in previous:
        if not _has(devices, first, chunk):
            break
        first += len(chunk.ids)
        front.append(chunk)
    back: list[Chunk] = []
    for chunk in reversed(previous[len(front) :]):
        start = last - len(chunk.ids)
        if start < first or not _has(devices, start, chunk):
            break
        last = start
        back.append(chunk)
    while front and last - first < CHUNK // 4:  # otherwise, many changes would leave many small chunks
        first -= len(front.pop().ids)
    return [*front, *_encoded(devices, first, last), *reversed(back)]


def _has(devices: Devices, first: int, chunk: Chunk) -> bool:
    """Return whether the devices from position ``first`` on are those of the chunk."""
    ids = devices.ids[first : first + len(chunk.ids)]
    return ids == chunk.ids and devices.among(ids) == chunk.special


def _encoded(devices: Devices, first: int, last: int) -> Iterator[Chunk]:
    """Yield the devices in pieces of about the same length, with at most ``CHUNK`` devices each."""
    count = -(-(last - first) // CHUNK)
    for piece in range(count):
        start, end = (first + (last - first) * part // count for part in (piece, piece + 1))
        ids = devices.ids[start:end]
        yield _chunk(ids, devices.among(ids))


def fitting(all_chunks: Iterable[Chunk], limit: int) -> tuple[bytes, int]:
    """Return a message with as many devices as fit into ``limit`` bytes, and their number.

    Each device counts with its size when unhealthy, so that a change of health never displaces another device.
    """
    parts: list[bytes] = []
    count = 0
    for chunk in all_chunks:
        if chunk.max_size > limit:
            for device_id in chunk.ids:
                device = _chunk([device_id], chunk.special)
                limit -= device.max_size
                if limit < 0:
                    break
                parts.append(device.data)
                count += 1
            break
        limit -= chunk.max_size
        parts.append(chunk.data)
        count += len(chunk.ids)
    return b"".join(parts), count


def encode(devices: Devices) -> bytes:
    """Return the ListAndWatchResponse of ``devices``."""
    return _chunk(devices.ids, devices.special).data


def _chunk(ids: Sequence[str], special: Mapping[str, Device]) -> Chunk:
    """Encode devices, at once all those in a row whose bytes differ in the ID only."""

    def kind(device_id: str) -> tuple[bool, tuple[int, ...]]:
        device = special.get(device_id)
        return _PLAIN if device is None else (not device.reason, device.numa_nodes)

    parts: list[bytes] = []
    max_size = 0
    for (healthy, numa_nodes), run in groupby(ids, kind) if special else [(_PLAIN, iter(ids))]:
        end, unhealthy_end = _end(HEALTHY if healthy else UNHEALTHY, numa_nodes), _end(UNHEALTHY, numa_nodes)
        for length, group in groupby(map(str.encode, run), len):
            names = [*group]
            start = _start(length, len(end))
            parts += (start, (end + start).join(names), end)
            max_size += len(names) * (len(_start(length, len(unhealthy_end))) + length + len(unhealthy_end))
    return Chunk(ids, special, b"".join(parts), max_size)


_PLAIN: tuple[bool, tuple[int, ...]] = (True, ())
"""Healthy, without NUMA nodes."""


@lru_cache
def _start(length: int, end: int) -> bytes:
    """Return what precedes the ID of a device: ``length`` and ``end`` are the bytes of the ID and those after it."""
    id_tag = _FIELD_1 + _varint(length) if length else b""
    return _FIELD_1 + _varint(len(id_tag) + length + end) + id_tag


@lru_cache
def _end(health: str, numa_nodes: tuple[int, ...]) -> bytes:
    """Return what follows the ID of a device. Without NUMA nodes, there is no topology; node 0 is an empty message."""
    nodes = [_field(_FIELD_1, _INT64_FIELD_1 + _varint(node) if node else b"") for node in numa_nodes]
    return _field(_FIELD_2, health.encode()) + (_field(_FIELD_3, b"".join(nodes)) if nodes else b"")


def _field(tag: bytes, value: bytes) -> bytes:
    return tag + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first. Negative ones as 64 bits in two's complement."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    groups = bytearray()
    while number >= _ONE_BYTE:
        groups.append(number % _ONE_BYTE + _ONE_BYTE)
        number //= _ONE_BYTE
    groups.append(number)
    return bytes(groups)
