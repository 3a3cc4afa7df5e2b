"""Requests of Allocate, decoded without protobuf if they are as a kubelet encodes them.

Each ``container_requests`` and each ``devices_ids`` is field 1 of its message, a length and that many bytes. Making
protobuf's objects and lists takes as long as the whole answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TAG = 0x0A
"""Field 1 with a length."""
_ONE_BYTE = 0x7F
"""The highest number that is encoded in one byte."""


def decode(data: bytes) -> Sequence[Sequence[str]]:
    """Return the device IDs that are requested for each container. Raises InvalidRequestError."""
    try:
        return _containers(data)
    except (ValueError, IndexError):  # protobuf decides whether it is valid nevertheless
        return _by_protobuf(data)


def _containers(data: bytes) -> list[list[str]]:
    """Decode what a kubelet encodes. Raises ValueError or IndexError for anything else."""
    containers = []
    position = 0
    while position < len(data):
        size, first = _size(data, position)
        position = first + size
        ids = []
        while first < position:
            size = data[first + 1]
            if data[first] != _TAG or size > _ONE_BYTE:
                raise ValueError(first)
            first += 2 + size
            ids.append(data[first - size : first].decode())
        containers.append(ids)
        if first != position:
            raise ValueError(first)
    if position != len(data):
        raise ValueError(position)
    return containers


def _size(data: bytes, position: int) -> tuple[int, int]:
    """Return the size of the container's request at a position, and where it starts."""
    if data[position] != _TAG:
        raise ValueError(position)
    size = data[position + 1]
    if size <= _ONE_BYTE:
        return size, position + 2
    second = data[position + 2]
    if second > _ONE_BYTE:
        raise ValueError(position)
    return size & 0x7F | second << 7, position + 3


def _by_protobuf(data: bytes) -> list[list[str]]:
    try:
        return [[*container.devices_ids] for container in pb.AllocateRequest.FromString(data).container_requests]
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a valid v1beta1.AllocateRequest: {error}") from error
