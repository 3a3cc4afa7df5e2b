"""The kubelet's checkpoints, as leak detection reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.report.leak_detector import parse_checkpoint, parse_claims_checkpoint
from kubelet_standin import checkpoint as kubelet_checkpoint

RESOURCE = "aosp.io/binder"


def entry(pod: str, devices: dict[int, list[str]], resource: str = RESOURCE) -> kubelet_checkpoint.CheckpointEntry:
    return kubelet_checkpoint.CheckpointEntry(pod, "c", resource, devices, b"")


def test_checkpoint_lists_the_owners_of_each_device() -> None:
    """Devices are grouped by NUMA node, may have several owners, and other resources are ignored."""
    entries = [
        entry("p1", {-1: ["b1", "b2"]}),
        entry("p2", {0: ["b3"], 1: ["b4"]}),
        entry("p3", {-1: ["b1"]}),
        entry("p4", {-1: ["b5"]}, "aosp.io/phone"),
        entry("p5", {-1: ["b6"]}, "example.com/gpu"),
    ]
    text = kubelet_checkpoint.encode(kubelet_checkpoint.Checkpoint(entries, {RESOURCE: ["b1", "b9"]}))
    assert parse_checkpoint(text, RESOURCE) == {
        "b1": {"p1", "p3"},
        "b2": {"p1"},
        "b3": {"p2"},
        "b4": {"p2"},
    }


def test_checkpoint_without_pods_has_no_owners() -> None:
    """The kubelet writes null instead of an empty list."""
    text = kubelet_checkpoint.encode(kubelet_checkpoint.Checkpoint(registered={RESOURCE: ["b1"]}))
    assert b'"PodDeviceEntries":null' in text
    assert parse_checkpoint(text, RESOURCE) == {}


def test_invalid_checkpoint_raises() -> None:
    """The last case is the format before 1.20. Reading it as "no owners" would report every holder as a leak."""
    for text in (
        b"",
        b"\xff\xfe",
        b'{"Data":null}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"p"}]}}',
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"p","ResourceName":"r","DeviceIDs":["b1"]}]}}',
    ):
        with pytest.raises(HostError, match=r"kubelet_internal_checkpoint does not have the format of kubelet 1\.20"):
            parse_checkpoint(text, "r")


def claims(*entries: Any) -> bytes:
    """Return what a kubelet 1.34 writes."""
    data = {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": [*entries] or None,
    }
    return json.dumps({"Data": json.dumps(data), "Checksum": 1}).encode()


def claim(pods: list[str], **devices: list[str]) -> dict[str, Any]:
    states = {
        f"{driver}.aosp.io": {"Devices": [{"PoolName": "node/00000", "DeviceName": name} for name in names]}
        for driver, names in devices.items()
    }
    return {"ClaimUID": "u", "PodUIDs": {pod: {} for pod in pods} or None, "DriverState": states}


def test_claims_of_a_driver_have_owners() -> None:
    text = claims(
        claim(["p1", "p2"], phone=["phone1"], binder=["aosp-binder7"]),
        claim(["p3"], phone=["phone2", "phone1"]),
        claim([], phone=["phone3"]),
    )
    assert parse_claims_checkpoint(text, "phone.aosp.io", ()) == {
        "phone1": {"p1", "p2", "p3"},
        "phone2": {"p3"},
        "phone3": frozenset(),
    }
    assert parse_claims_checkpoint(text, "binder.aosp.io", ()) == {"aosp_binder7": {"p1", "p2"}}
    assert parse_claims_checkpoint(claims(), "phone.aosp.io", ()) == {}


def test_invalid_checkpoint_of_claims_raises() -> None:
    nameless = claims({"PodUIDs": {}, "DriverState": {"phone.aosp.io": {"Devices": [{}]}}})
    for text in (b"", b'{"Data":null}', b'{"Data":"x"}', b'{"version":"v1","entries":[]}', nameless):
        with pytest.raises(HostError, match=r"dra_manager_state does not have the format of kubelet 1\.34"):
            parse_claims_checkpoint(text, "phone.aosp.io", ())
