"""The device manager's checkpoint and its JSON encoding. ``directory.py`` reads and writes the file.

See pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go. The file has no checksum, which only the kubelet verifies.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

FILE_NAME: Final = "kubelet_internal_checkpoint"


class CorruptCheckpointError(ValueError):
    """The content is not a checkpoint of this version."""


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
    return json.dumps({"Data": data}, separators=(",", ":"), ensure_ascii=False).encode()


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

    Raises CorruptCheckpointError if it is not JSON, or has another version's structure.
    """
    try:
        data = json.loads(content)["Data"]
        return Checkpoint(
            entries=tuple(map(_entry, data["PodDeviceEntries"] or ())),
            registered={name: tuple(ids) for name, ids in data["RegisteredDevices"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"checkpoint cannot be parsed: {error!r}") from error
