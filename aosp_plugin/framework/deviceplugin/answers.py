"""ContainerEdits encoded as the kubelet's ContainerAllocateResponse.

Encoded by hand, because a kubelet waits, and building objects of protobuf takes as long as finding the devices.
Concatenating encoded messages concatenates their lists and merges their maps, so parts of an answer can be encoded in
advance, and joined. The numbers of the fields are those in ``api/deviceplugin.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aosp_plugin.framework.edits import ContainerEdits, DeviceNode, Mount

# The tags of the fields with these numbers, all of which have a length: number << 3 | 2.
_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH = b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a"
_READ_ONLY = b"\x18\x01"
_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
"""The encoded numbers of one byte: nearly all lengths."""


def encode(edits: ContainerEdits) -> bytes:
    """Return a ContainerAllocateResponse."""
    return b"".join(
        (
            environment(edits.environment),
            mounts(edits.mounts),
            devices(edits.devices),
            _map(_FOURTH, edits.annotations),
            *[_field(_FIFTH, _text(_FIRST, name)) for name in edits.cdi_devices],
        )
    )


def environment(variables: Mapping[str, str]) -> bytes:
    """Return a ContainerAllocateResponse with these environment variables."""
    return _map(_FIRST, variables)


def map_key(key: str) -> bytes:
    """Return the first part of the entries of a map that have this key."""
    return _text(_FIRST, key)


def map_entry(key: bytes, value: bytes) -> bytes:
    """Return a ContainerAllocateResponse with one environment variable, whose name is ``map_key`` of it."""
    return _field(_FIRST, key + _field(_SECOND, value))


def mounts(items: Iterable[Mount]) -> bytes:
    """Return a ContainerAllocateResponse with these mounts."""
    return b"".join(
        [
            _field(
                _SECOND,
                _text(_FIRST, mount.container_path)
                + _text(_SECOND, mount.host_path)
                + (_READ_ONLY if mount.read_only else b""),
            )
            for mount in items
        ]
    )


def devices(items: Iterable[DeviceNode]) -> bytes:
    """Return a ContainerAllocateResponse with these device nodes."""
    return b"".join([device(node.container_path, node.host_path, permissions(node.permissions)) for node in items])


def device(container_path: str, host_path: str, encoded_permissions: bytes) -> bytes:
    """Return a ContainerAllocateResponse with one device node, whose permissions are those of ``permissions``."""
    path, source = container_path.encode(), host_path.encode()
    parts = (_FIRST, _varint(len(path)), path, _SECOND, _varint(len(source)), source, encoded_permissions)
    return _field(_THIRD, b"".join(parts))


def permissions(text: str) -> bytes:
    """Return the part of a device node that is the same for all devices of a resource."""
    return _text(_THIRD, text)


def response(containers: Iterable[bytes]) -> bytes:
    """Return the AllocateResponse with these ContainerAllocateResponses."""
    return b"".join([_field(_FIRST, container) for container in containers])


def _map(tag: bytes, values: Mapping[str, str]) -> bytes:
    return b"".join([_field(tag, _text(_FIRST, key) + _text(_SECOND, value)) for key, value in values.items()])


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode())


def _field(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Encode seven bits a byte, the lowest first; all bytes but the last have the eighth bit."""
    if number < len(_ONE_BYTE):
        return _ONE_BYTE[number]
    encoded = b""
    while rest := number >> 7:
        encoded += bytes((number & 0x7F | 0x80,))
        number = rest
    return encoded + bytes((number,))
