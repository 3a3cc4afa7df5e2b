"""The checkpoint's JSON, compared with values from the kubelet's own libraries."""

import pytest

from kubelet_standin.deviceplugin.checkpoint import Checkpoint, CheckpointEntry, CorruptCheckpointError, decode, encode

ENTRY = CheckpointEntry(
    pod_uid="3a1f0c9e-0000-4000-8000-000000000001",
    container="c1",
    resource="waydroid.io/binder",
    devices={-1: ("aosp_binder1",)},
    response=bytes([10, 7, 10, 1, 65, 18, 2, 98, 49]),
)
REGISTERED = {"waydroid.io/binder": ("aosp_binder1", "aosp_binder2")}
FULL_JSON = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"3a1f0c9e-0000-4000-8000-000000000001","ContainerName":"c1",'
    b'"ResourceName":"waydroid.io/binder","DeviceIDs":{"-1":["aosp_binder1"]},"AllocResp":"CgcKAUESAmIx"}],'
    b'"RegisteredDevices":{"waydroid.io/binder":["aosp_binder1","aosp_binder2"]}}}'
)


def test_json_matches_the_kubelets() -> None:
    """Go writes a nil slice as null, and bytes in base64."""
    assert encode(Checkpoint((ENTRY,), REGISTERED)) == FULL_JSON
    assert encode(Checkpoint()) == b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}}}'


_V1_ENTRY = b'"DeviceIDs":["aosp_binder1"]'
"""Kubelets up to 1.19 stored the IDs as a list."""


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[]",
        b"{}",
        FULL_JSON[:-30],
        FULL_JSON.replace(b'{"waydroid.io/binder":["aosp_binder1","aosp_binder2"]}', b"[]"),
        FULL_JSON.replace(b'"DeviceIDs":{"-1":["aosp_binder1"]}', _V1_ENTRY),
    ],
)
def test_decode_rejects_corrupt_content(content: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode(content)
