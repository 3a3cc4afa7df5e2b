"""The ResourceSlices that a driver wants, and their comparison with those of the API server."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.framework.apiserver.protocol import ApiUnavailableError
from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.dra.slices import (
    DEVICES_PER_SLICE,
    NUMA_ATTRIBUTE,
    Identity,
    StoredSlice,
    WantedSlices,
    device_name,
    has_taints,
    label_value,
    pool_name,
    replacement,
    stored_slice,
    taint_probe,
    typed_attributes,
    wanted_slices,
)

WHO = Identity("phone.aosp.io", "node-a", "11111111-uid")
IDS = st.one_of(
    st.integers(0, 300).map("phone{}".format),
    st.integers(0, 300).map("aosp_binder{}".format),
    st.text(alphabet="aB_-.7ü", min_size=1, max_size=63),
)
DEVICES = st.lists(
    st.builds(Device, id=IDS, reason=st.sampled_from(["", "", "missing"])), max_size=200, unique_by=lambda d: d.id
)
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def wanted(devices: Sequence[Device], *, taints: bool = True, who: Identity = WHO) -> WantedSlices:
    return wanted_slices(devices, lambda _: {}, who, taints=taints)


def phones(count: int, **reasons: str) -> list[Device]:
    return [Device(f"phone{number}", reasons.get(f"phone{number}", "")) for number in range(count)]


def as_stored(wanted_slice: Mapping[str, Any], **spec: Any) -> StoredSlice:
    """Return a slice as an API server has it, with what it adds."""
    stored = copy.deepcopy(dict(wanted_slice))
    stored["metadata"] |= {"uid": "u", "resourceVersion": "7", "managedFields": [{"manager": "phone-driver"}]}
    for device in stored["spec"].get("devices", []):
        for taint in device.get("taints", []):
            taint["timeAdded"] = "2026-01-01T00:00:00Z"
    stored["spec"] |= spec
    return stored_slice("get", json.loads(json.dumps(stored)))


def test_devices_are_divided_into_blocks_by_number_each_with_a_pool_of_one_slice() -> None:
    slices = wanted(phones(130)).slices
    assert list(slices) == [f"0000{block}-phone.aosp.io-node-a" for block in range(3)]
    for block, each in enumerate(slices.values()):
        spec = each["spec"]
        assert spec["pool"] == {"name": f"node-a/0000{block}", "generation": 1, "resourceSliceCount": 1}
        assert (spec["driver"], spec["nodeName"]) == ("phone.aosp.io", "node-a")
        assert each["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "11111111-uid", "controller": True}
        ]
    assert [len(each["spec"]["devices"]) for each in slices.values()] == [64, 64, 2]


def test_a_driver_without_devices_publishes_one_empty_slice() -> None:
    ((name, each),) = wanted([]).slices.items()
    assert (name, each["spec"].get("devices")) == ("00000-phone.aosp.io-node-a", None)


def test_an_unhealthy_device_has_a_taint_with_the_reason() -> None:
    """So has the device of the probe for taints, without a reason."""
    (each,) = wanted(phones(2, phone1="not_binder")).slices.values()
    healthy, unhealthy = each["spec"]["devices"]
    assert "taints" not in healthy
    assert unhealthy["taints"] == [{"key": "phone.aosp.io/unhealthy", "value": "not_binder", "effect": "NoSchedule"}]
    probe = taint_probe(WHO)
    assert has_taints(probe)
    assert probe["metadata"]["name"] == "probe-phone.aosp.io-node-a"


def test_devices_that_do_not_fit_into_their_block_are_reported() -> None:
    slices = wanted([Device(f"{kind}{number}") for kind in ("tty", "usb") for number in range(40)])
    assert [len(each["spec"]["devices"]) for each in slices.slices.values()] == [64]
    assert set(slices.left_out) == {f"usb{number}" for number in range(24, 40)}


@given(devices=DEVICES, taints=st.booleans())
@settings(max_examples=30)
def test_no_slice_exceeds_the_limits_and_every_device_is_published_or_reported(
    *, devices: list[Device], taints: bool
) -> None:
    slices = wanted(devices, taints=taints)
    published = [device for each in slices.slices.values() for device in each["spec"].get("devices", [])]
    for each in slices.slices.values():
        in_slice = [device["name"] for device in each["spec"].get("devices", [])]
        assert len(in_slice) <= DEVICES_PER_SLICE
        assert len(in_slice) == len(set(in_slice))
        assert all(LABEL.fullmatch(name) for name in in_slice)
    pools = [each["spec"]["pool"]["name"] for each in slices.slices.values()]
    assert len(pools) == len(set(pools))
    assert slices.left_out == wanted(devices, taints=not taints).left_out, "an unhealthy device keeps its place"
    hidden = 0 if taints else sum(d.reason != "" and d.id not in slices.left_out for d in devices)
    assert len(published) + len(slices.left_out) + hidden == len(devices)


@given(DEVICES, st.data())
@settings(max_examples=30)
def test_a_device_stays_in_its_slice_when_others_come_and_go(
    devices: list[Device],
    data: st.DataObject,
) -> None:
    def places(slices: WantedSlices) -> dict[str, str]:
        return {
            device["attributes"]["id"]["string"]: name
            for name, each in slices.slices.items()
            for device in each["spec"].get("devices", [])
            if "attributes" in device
        }

    before = wanted(devices)
    remaining = [device for device in devices if data.draw(st.booleans())]
    after = wanted(remaining)
    for device_id, name in places(after).items():
        assert places(before).get(device_id, name) == name
    assert set(after.left_out) <= set(before.left_out)


def test_each_type_has_its_field_and_the_id_and_the_numa_node_are_added() -> None:
    typed = typed_attributes(
        Device("aosp_binder7", numa_nodes=(1,)),
        {"rust": True, "number": 7, "driver": "c", "example.com/kind": "a", "id": "other"},
    )
    assert typed == {
        "rust": {"bool": True},
        "number": {"int": 7},
        "driver": {"string": "c"},
        "example.com/kind": {"string": "a"},
        "id": {"string": "aosp_binder7"},
        NUMA_ATTRIBUTE: {"int": 1},
    }
    assert NUMA_ATTRIBUTE not in typed_attributes(Device("a", numa_nodes=(0, 1)), {})


def test_a_text_that_the_api_server_would_refuse_is_omitted() -> None:
    """It would refuse the whole slice."""
    attributes = {"long": "ü" * 33, "surrogates": "\udcff" * 65, "fits": "ü" * 32}
    assert set(typed_attributes(Device("x" * 63), attributes)) == {"fits", "id"}
    assert not typed_attributes(Device("ü" * 63), {})


def test_only_what_the_server_adds_is_no_difference() -> None:
    (each,) = wanted(phones(2, phone1="missing")).slices.values()
    (other,) = wanted(phones(2, phone1="missing"), who=WHO._replace(node_uid="2")).slices.values()
    assert as_stored(each, sharedCounters=None, perDeviceNodeSelection=None).is_as(each)
    assert not as_stored(each).is_as(other)
    devices, pool = each["spec"]["devices"], {**each["spec"]["pool"], "generation": 2}
    for changed in (
        {"devices": devices[::-1]},
        {"devices": devices[:1]},
        {"pool": pool},
        {"future": {"enabled": False}},
    ):
        assert not as_stored(each, **changed).is_as(each)


def test_an_update_keeps_what_others_added_to_the_metadata_but_not_the_owner() -> None:
    (before,) = wanted(phones(3, phone1="missing"), who=WHO._replace(node_uid="2")).slices.values()
    before["metadata"] |= {"labels": {"a": "b"}, "finalizers": ["example.com/x"]}
    stored = as_stored(before)
    (after,) = wanted(phones(3, phone1="missing", phone2="replaced")).slices.values()
    update = replacement(after, stored)
    assert update == {**after, "metadata": {**stored.metadata, **after["metadata"]}}
    assert update["metadata"]["labels"] == {"a": "b"}
    assert update["metadata"]["ownerReferences"] == after["metadata"]["ownerReferences"]


def test_different_devices_have_different_names() -> None:
    names = {device_id: device_name(device_id) for device_id in ("gpu7", "gpu_7", "gpu-7", "gpu--7", "GPU7", "ttyUSB0")}
    assert (names["gpu7"], names["gpu_7"], names["ttyUSB0"]) == ("gpu7", "gpu-7", "ttyusb0--8acffaea")
    assert device_name("g" * 63) == "g" * 63
    assert len({*names.values()}) == len(names)


def test_an_object_that_is_no_slice_is_an_invalid_answer() -> None:
    metadata = {"name": "a", "uid": "u", "resourceVersion": "1"}
    no_slices: list[Any] = [{}, None, {"metadata": metadata | {"resourceVersion": 1}, "spec": {}}]
    for garbage in (*no_slices, {"metadata": metadata, "spec": None}):
        with pytest.raises(ApiUnavailableError, match="the object is not a ResourceSlice"):
            stored_slice("get", garbage)


@given(st.text(max_size=100))
def test_every_reason_becomes_a_valid_value_of_a_label(reason: str) -> None:
    assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", label_value(reason))
    assert len(label_value(reason)) <= 63


def test_names_of_a_long_node_name_are_valid_and_its_own() -> None:
    """They have the beginning of the node's name, which the policy of the API server compares."""
    for node in (f"{'n.' * 74}aa", f"{'n.' * 74}aaa", f"{'n.' * 70}.a", f"{'n-' * 90}a", f"{'n' * 251}.a"):
        name, other = pool_name(node, "0" * 17), pool_name(node, "00001")
        assert name != other
        assert name != pool_name(f"{node[:-1]}b", "0" * 17)
        driver = f"{'d' * 59}.io"
        (slice_name,) = wanted(phones(1), who=WHO._replace(node_name=node, driver=driver)).slices
        assert max(len(name), len(slice_name)) <= 253
        for each in (name.removesuffix(f"/{'0' * 17}"), slice_name):
            assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", each)
            assert node[:142] in each
        assert (node in slice_name) == (len(node) <= 150)
