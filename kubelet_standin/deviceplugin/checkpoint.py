"""The device manager's checkpoint: its data, checksum and JSON encoding. ``directory.py`` reads and writes the file.

pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go and pkg/util/hash: the checksum is the FNV-1a hash of
the text that go-spew prints for the data with ``%#v``.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FILE_NAME: Final = "kubelet_internal_checkpoint"

_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_MASK: Final = 0xFFFFFFFF


class CorruptCheckpointError(ValueError):
    """The content is not a checkpoint of this version, or its checksum is wrong."""


@dataclass(frozen=True)
class CheckpointEntry:
    """An allocation of one resource to one container: IDs by NUMA node, and the serialized Allocate response."""

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, Sequence[str]]
    response: bytes

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Each ID once, although a device with several NUMA nodes is listed under each of them."""
        return tuple(dict.fromkeys(device for ids in self.devices.values() for device in ids))


@dataclass(frozen=True)
class Checkpoint:
    """The state that survives a kubelet restart. ``registered`` has the healthy IDs of each resource."""

    entries: Sequence[CheckpointEntry] = ()
    registered: Mapping[str, Sequence[str]] = field(default_factory=dict)


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def _words(words: Iterable[object]) -> str:
    return f"[{' '.join(map(str, words))}]"


def _entry_text(entry: CheckpointEntry) -> str:
    devices = _words(f"{numa}:{_words(ids)}" for numa, ids in sorted(entry.devices.items()))
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container} "
        f"ResourceName:(string){entry.resource} DeviceIDs:(checkpoint.DevicesPerNUMA)map{devices} "
        f"AllocResp:([]uint8){_words(entry.response)}}}"
    )


def spew_text(checkpoint: Checkpoint) -> str:
    """Return the text that go-spew prints for the data (``%#v``, sorted keys); a slice without entries is nil."""
    entries = _words(map(_entry_text, checkpoint.entries)) if checkpoint.entries else "<nil>"
    registered = _words(f"{name}:{_words(ids)}" for name, ids in sorted(checkpoint.registered.items()))
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} "
        f"RegisteredDevices:(map[string][]string)map{registered}}}"
    )


def checksum(checkpoint: Checkpoint) -> int:
    """Return the checksum that the kubelet stores with the data and verifies when it reads the file."""
    return fnv1a_32(spew_text(checkpoint).encode())


def _entry_json(entry: CheckpointEntry) -> dict[str, Any]:
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": {str(numa): list(ids) for numa, ids in sorted(entry.devices.items(), key=lambda i: str(i[0]))},
        "AllocResp": base64.b64encode(entry.response).decode(),
    }


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the file content as Go's encoding/json writes it: compact, with map keys sorted as strings."""
    data = {
        "PodDeviceEntries": [_entry_json(entry) for entry in checkpoint.entries] or None,
        "RegisteredDevices": {name: list(ids) for name, ids in sorted(checkpoint.registered.items())},
    }
    document = {"Data": data, "Checksum": checksum(checkpoint)}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _entry(data: Mapping[str, Any]) -> CheckpointEntry:
    return CheckpointEntry(
        pod_uid=data["PodUID"],
        container=data["ContainerName"],
        resource=data["ResourceName"],
        devices={int(numa): tuple(ids) for numa, ids in data["DeviceIDs"].items()},
        response=base64.b64decode(data["AllocResp"], validate=True),
    )


def decode(content: bytes) -> Checkpoint:
    """Parse a file's content.

    Raises CorruptCheckpointError if it is not JSON, has another version's structure, or has a wrong checksum.
    """
    try:
        document = json.loads(content)
        data = document["Data"]
        checkpoint = Checkpoint(
            entries=tuple(map(_entry, data["PodDeviceEntries"] or ())),
            registered={name: tuple(ids) for name, ids in data["RegisteredDevices"].items()},
        )
        expected = document["Checksum"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"checkpoint cannot be parsed: {error!r}") from error
    if checksum(checkpoint) != expected:
        raise CorruptCheckpointError("checkpoint is corrupted")
    return checkpoint
