"""The checkpoint's text, checksum and JSON, compared with values from the kubelet's own libraries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aosp_plugin.testing.checkpoint import (
    Checkpoint,
    CheckpointEntry,
    CorruptCheckpointError,
    checksum,
    decode,
    encode,
    fnv1a_32,
    spew_text,
)

ENTRY = CheckpointEntry(
    pod_uid="3a1f0c9e-0000-4000-8000-000000000001",
    container="c1",
    resource="waydroid.io/binder",
    devices={-1: ("aosp_binder1",)},
    response=bytes([10, 7, 10, 1, 65, 18, 2, 98, 49]),
)
REGISTERED = {"waydroid.io/binder": ("aosp_binder1", "aosp_binder2")}
EMPTY_TEXT = (
    "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> "
    "RegisteredDevices:(map[string][]string)map[]}"
)
FULL_TEXT = (
    "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"
    "[{PodUID:(string)3a1f0c9e-0000-4000-8000-000000000001 ContainerName:(string)c1 "
    "ResourceName:(string)waydroid.io/binder DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[aosp_binder1]] "
    "AllocResp:([]uint8)[10 7 10 1 65 18 2 98 49]}] RegisteredDevices:(map[string][]string)"
    "map[waydroid.io/binder:[aosp_binder1 aosp_binder2]]}"
)
FULL_JSON = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"3a1f0c9e-0000-4000-8000-000000000001","ContainerName":"c1",'
    b'"ResourceName":"waydroid.io/binder","DeviceIDs":{"-1":["aosp_binder1"]},"AllocResp":"CgcKAUESAmIx"}],'
    b'"RegisteredDevices":{"waydroid.io/binder":["aosp_binder1","aosp_binder2"]}},"Checksum":2463016169}'
)


@pytest.mark.parametrize(("data", "value"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)])
def test_fnv1a_matches_the_published_values(data: bytes, value: int) -> None:
    assert fnv1a_32(data) == value


@pytest.mark.parametrize(
    ("checkpoint", "value"),
    [
        (Checkpoint(), 3467439661),
        (Checkpoint((ENTRY,), REGISTERED), 2463016169),
        (Checkpoint((), REGISTERED), 1753728320),
    ],
)
def test_checksum_matches_the_kubelets(checkpoint: Checkpoint, value: int) -> None:
    """The values were computed by the kubelet's own code."""
    assert checksum(checkpoint) == value


def test_spew_text_prints_values_with_their_go_types() -> None:
    """No entries are a nil slice, no resources an empty map, and bytes are numbers."""
    assert spew_text(Checkpoint()) == EMPTY_TEXT
    assert spew_text(Checkpoint((ENTRY,), REGISTERED)) == FULL_TEXT


def test_spew_text_sorts_map_keys_by_value() -> None:
    """The entries of a list keep their order."""
    entry = CheckpointEntry("u", "c", "r", {10: ("b",), 2: ("z", "a"), -1: ()}, b"")
    text = spew_text(Checkpoint((entry, entry), {"b/b": (), "a/a": ("2", "1")}))
    assert "map[-1:[] 2:[z a] 10:[b]] AllocResp:([]uint8)[]} {PodUID" in text
    assert text.endswith("map[a/a:[2 1] b/b:[]]}")


def test_json_matches_the_kubelets() -> None:
    """Go writes a nil slice as null, and bytes in base64."""
    assert encode(Checkpoint((ENTRY,), REGISTERED)) == FULL_JSON
    assert encode(Checkpoint()) == (b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}')


def test_json_sorts_map_keys_as_strings() -> None:
    """Go sorts numeric map keys by their text as well."""
    entry = CheckpointEntry("u", "c", "r", {2: ("x",), 10: ("y",)}, b"")
    data = json.loads(encode(Checkpoint((entry,), {"b/b": (), "a/a": ()})))
    assert list(data["Data"]["PodDeviceEntries"][0]["DeviceIDs"]) == ["10", "2"]
    assert list(data["Data"]["RegisteredDevices"]) == ["a/a", "b/b"]


@pytest.mark.parametrize("checkpoint", [Checkpoint(), Checkpoint((ENTRY,), REGISTERED)])
def test_decode_reverses_encode(checkpoint: Checkpoint) -> None:
    assert decode(encode(checkpoint)) == checkpoint


def test_device_ids_lists_a_device_with_two_numa_nodes_once() -> None:
    assert CheckpointEntry("u", "c", "r", {0: ("a", "b"), 1: ("b",)}, b"").device_ids == ("a", "b")


def _damaged(**changes: Any) -> bytes:
    document = json.loads(FULL_JSON)
    document["Data"].update({key: value for key, value in changes.items() if key != "Checksum"})
    document.update({key: value for key, value in changes.items() if key == "Checksum"})
    return json.dumps(document).encode()


_VERSION_1 = json.loads(FULL_JSON)["Data"]["PodDeviceEntries"][0] | {"DeviceIDs": ["aosp_binder1"]}
"""An entry in the format of kubelets up to 1.19, which stored the IDs as a list."""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"Data":null,"Checksum":1}',
        FULL_JSON[:-30],
        _damaged(Checksum=1),
        _damaged(RegisteredDevices={}),
        _damaged(RegisteredDevices=[]),
        _damaged(PodDeviceEntries=[{"PodUID": "u"}]),
        _damaged(PodDeviceEntries=[_VERSION_1]),
    ],
)
def test_decode_rejects_corrupt_content(content: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode(content)
