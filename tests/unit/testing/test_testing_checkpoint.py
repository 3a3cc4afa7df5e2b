"""The checkpoint's text, checksum and JSON, against vectors computed with the kubelet's own libraries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aosp_plugin.testing.checkpoint import (
    Checkpoint,
    CorruptCheckpointError,
    Entry,
    checksum,
    decode,
    encode,
    fnv1a_32,
    spew_text,
)

ENTRY = Entry(
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
def test_fnv1a_has_its_published_values(data: bytes, value: int) -> None:
    """The vectors of the FNV authors."""
    assert fnv1a_32(data) == value


@pytest.mark.parametrize(
    ("checkpoint", "value"),
    [
        (Checkpoint(), 3467439661),
        (Checkpoint((ENTRY,), REGISTERED), 2463016169),
        (Checkpoint((), REGISTERED), 1753728320),
    ],
)
def test_checksum_is_the_kubelets(checkpoint: Checkpoint, value: int) -> None:
    """Three states whose checksum the kubelet's own code gave."""
    assert checksum(checkpoint) == value


def test_text_of_an_empty_state() -> None:
    """No entries are a nil slice, no resources an empty map."""
    assert spew_text(Checkpoint()) == EMPTY_TEXT


def test_text_of_a_full_state() -> None:
    """Bytes are printed as numbers, and each value with its Go type."""
    assert spew_text(Checkpoint((ENTRY,), REGISTERED)) == FULL_TEXT


def test_text_sorts_numa_nodes_by_number_and_resources_by_name() -> None:
    """Map keys are sorted by value, entries of a list stay as they are."""
    entry = Entry("u", "c", "r", {10: ("b",), 2: ("z", "a"), -1: ()}, b"")
    text = spew_text(Checkpoint((entry, entry), {"b/b": (), "a/a": ("2", "1")}))
    assert "map[-1:[] 2:[z a] 10:[b]] AllocResp:([]uint8)[]} {PodUID" in text
    assert text.endswith("map[a/a:[2 1] b/b:[]]}")


def test_json_is_the_kubelets() -> None:
    """Compact JSON with the data, base64 for the plugin's answer, and the checksum."""
    assert encode(Checkpoint((ENTRY,), REGISTERED)) == FULL_JSON


def test_json_of_an_empty_state_has_null_entries() -> None:
    """Go writes a nil slice as null."""
    assert encode(Checkpoint()) == (b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}')


def test_json_sorts_map_keys_as_strings() -> None:
    """Go sorts the keys of a map by their text, numbers too."""
    data = json.loads(encode(Checkpoint((Entry("u", "c", "r", {2: ("x",), 10: ("y",)}, b""),), {"b/b": (), "a/a": ()})))
    assert list(data["Data"]["PodDeviceEntries"][0]["DeviceIDs"]) == ["10", "2"]
    assert list(data["Data"]["RegisteredDevices"]) == ["a/a", "b/b"]


@pytest.mark.parametrize("checkpoint", [Checkpoint(), Checkpoint((ENTRY,), REGISTERED)])
def test_what_is_written_can_be_read(checkpoint: Checkpoint) -> None:
    """Decoding gives back what was encoded."""
    assert decode(encode(checkpoint)) == checkpoint


def test_ids_of_an_entry_are_listed_once() -> None:
    """A device that spans two NUMA nodes is one device."""
    assert Entry("u", "c", "r", {0: ("a", "b"), 1: ("b",)}, b"").device_ids == ("a", "b")


def _damaged(**changes: Any) -> bytes:
    whole = json.loads(FULL_JSON)
    whole["Data"].update({key: value for key, value in changes.items() if key != "Checksum"})
    whole.update({key: value for key, value in changes.items() if key == "Checksum"})
    return json.dumps(whole).encode()


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
    ],
)
def test_damage_is_noticed(content: bytes) -> None:
    """What is no checkpoint, or not the one that was written, is refused."""
    with pytest.raises(CorruptCheckpointError):
        decode(content)


def test_the_first_version_of_the_format_counts_as_damaged() -> None:
    """Kubelets up to 1.19 stored ids as a list; later ones can't read that."""
    entry = json.loads(FULL_JSON)["Data"]["PodDeviceEntries"][0] | {"DeviceIDs": ["aosp_binder1"]}
    with pytest.raises(CorruptCheckpointError):
        decode(_damaged(PodDeviceEntries=[entry]))
