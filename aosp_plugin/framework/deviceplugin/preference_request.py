"""Requests of GetPreferredAllocation, whose free devices are decoded only if a backend reads all of them.

The kubelet sends every free device in random order: a Python string for each of 10,000 takes longer than the answer.
A backend that prefers the lowest devices searches the encoded request for these (``AvailableIds.starting_with``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, overload

from google.protobuf.message import DecodeError

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.framework.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TAG = b"\n"
"""Precedes each free device: field 1 of ContainerPreferredAllocationRequest, and its wire type."""


LONG = 16 * 1024
"""Bytes of a request from which on a search takes less time than decoding: about 1000 free devices."""


class AvailableIds(Sequence[str]):
    """The IDs of the free devices in a request for one container. Decoded at the first use as a sequence.

    Reading them raises InvalidRequestError if they are not UTF-8.
    """

    def __init__(self, request: bytes) -> None:
        """``request`` is an encoded ContainerPreferredAllocationRequest."""
        self._request = request

    @property
    def is_long(self) -> bool:
        """Whether ``starting_with`` is faster than decoding."""
        return len(self._request) >= LONG

    def starting_with(self, prefix: str, length: int) -> set[str]:
        """Return the IDs that start with ``prefix`` and have ``length`` bytes, without decoding the others.

        An ID has no control characters (``inventory.id_problem``), so tag, length and prefix together occur nowhere
        else in a request. In a request with other IDs, which no kubelet sends, parts of them may be found.
        """
        start = prefix.encode()
        rest = length - len(start)
        _, *found = self._request.split(_TAG + _varint(length) + start)
        return {prefix + part[:rest].decode(errors="replace") for part in found}

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Return an ID, or several."""
        return self._ids[index]

    def __len__(self) -> int:
        """Return the number of IDs."""
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the IDs in the order of the request."""
        return iter(self._ids)

    @cached_property
    def _ids(self) -> Sequence[str]:
        try:
            # As a list: iterating over protobuf's container costs as much again.
            return pb.ContainerPreferredAllocationRequest.FromString(self._request).available_deviceIDs[:]
        except DecodeError as error:
            raise InvalidRequestError(f"the free devices in the request are invalid: {error}") from error


class PreferenceRequest(NamedTuple):
    """What the kubelet asks for one container."""

    available: AvailableIds
    must_include: Sequence[str]
    size: int


def decode(data: bytes) -> list[PreferenceRequest]:
    """Decode a PreferredAllocationRequest: one request for each container. Raises InvalidRequestError."""
    try:
        encoded = pb.EncodedPreferredAllocationRequest.FromString(data).container_requests
        constraints = [pb.PreferredAllocationConstraints.FromString(container) for container in encoded]
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a valid v1beta1.PreferredAllocationRequest: {error}") from error
    if not encoded:
        raise InvalidRequestError("the request names no container")
    return [
        PreferenceRequest(AvailableIds(container), constraint.must_include_deviceIDs, constraint.allocation_size)
        for container, constraint in zip(encoded, constraints, strict=True)
    ]


def _varint(number: int) -> bytes:
    """Encode a number below 2^14."""
    return bytes([number]) if number < 1 << 7 else bytes([number & 0x7F | 0x80, number >> 7])
