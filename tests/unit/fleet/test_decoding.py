"""Objects of the API server in protobuf, and the lists that they come in."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from aosp_plugin.cli.fleet import decoding
from aosp_plugin.cli.fleet.api import Items
from aosp_plugin.cli.fleet.cluster import Claim, Condition, DeviceHealth, SliceDevice
from aosp_plugin.framework.api import objects_pb2
from aosp_plugin.framework.apiserver.errors import ApiUnavailableError, Request

REQUEST = Request("list", "/api/v1/pods")
CREATED = {"seconds": 1000}


def pod_bytes(**fields: Any) -> bytes:
    """Return a pod with a phone; the fields are those of the message."""
    container = {"resources": {"limits": {"aosp.io/phone": {"string": "1"}, "cpu": {"string": "2"}}}}
    pod = {
        "metadata": {"name": "p", "namespace": "a", "creation_timestamp": CREATED, **fields.pop("metadata", {})},
        "spec": {"node_name": "n1", "containers": [container], **fields.pop("spec", {})},
        "status": {"phase": "Running", "container_statuses": [{"ready": True}], **fields.pop("status", {})},
    }
    return ParseDict(pod, objects_pb2.Pod()).SerializeToString()


def limits(count: str, **fields: str) -> dict[str, Any]:
    """Return a container that requests phones."""
    return {"resources": {"limits": {"aosp.io/phone": {"string": count}}}, **fields}


def test_a_running_pod_has_its_extended_resources_only() -> None:
    pod = decoding.pod(pod_bytes())
    assert pod is not None
    assert (pod.namespace, pod.name, pod.node, pod.created, pod.deleted) == ("a", "p", "n1", 1000.0, None)
    assert (pod.limits, pod.phase, pod.ready, pod.conditions) == ({"aosp.io/phone": 1}, "Running", True, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"spec": {"containers": [{"resources": {"limits": {"cpu": {"string": "1"}}}}]}},
        {"status": {"phase": "Succeeded"}},
    ],
)
def test_pods_without_extended_resources_and_pods_that_have_succeeded_are_skipped(fields: dict[str, Any]) -> None:
    assert decoding.pod(pod_bytes(**fields)) is None


@pytest.mark.parametrize(
    ("containers", "initial", "count"),
    [
        ([limits("1"), limits("2")], [], 3),
        ([limits("1")], [limits("2"), limits("3")], 3),
        ([limits("4")], [limits("3")], 4),
        ([limits("1")], [limits("2", restart_policy="Always")], 3),
    ],
)
def test_limits_of_init_containers_count_as_the_scheduler_counts_them(
    containers: list[Any], initial: list[Any], count: int
) -> None:
    pod = decoding.pod(pod_bytes(spec={"containers": containers, "init_containers": initial}))
    assert pod is not None
    assert pod.limits == {"aosp.io/phone": count}


def test_a_pod_that_is_not_ready_has_conditions_and_what_its_containers_wait_for() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "last_transition_time": CREATED}
    statuses = [
        {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}},
        {"state": {"terminated": {"reason": "Error", "exit_code": 137}}},
        {"ready": True},
    ]
    pod = decoding.pod(pod_bytes(status={"conditions": [scheduled], "container_statuses": statuses}))
    assert pod is not None
    assert not pod.ready
    assert pod.conditions == {"PodScheduled": Condition("False", "Unschedulable", "", 1000.0)}
    assert pod.waiting == (("CrashLoopBackOff", "back-off"), ("Error", "exit code 137"))


def test_a_pod_has_the_names_of_its_claims_and_the_health_of_its_devices() -> None:
    named = [{"name": "x", "resource_claim_name": "shared"}, {"name": "y"}]
    made = [{"name": "y", "resource_claim_name": "p-y-abc"}]
    health = [{"name": "aosp.io/phone", "resources": [{"resource_id": "phone3", "health": "Unhealthy"}]}]
    status = {
        "resource_claim_statuses": made,
        "container_statuses": [{"ready": True, "allocated_resources_status": health}],
    }
    pod = decoding.pod(pod_bytes(spec={"resource_claims": named}, status=status))
    assert pod is not None
    assert pod.claims == ("shared", "p-y-abc")
    assert pod.devices == (DeviceHealth("aosp.io/phone", "phone3", "Unhealthy"),)


OWNER = {"owner_references": [{"kind": "DaemonSet", "name": "aosp-device-plugin"}]}


def test_only_pods_of_a_daemon_set_are_plugins() -> None:
    """The pod of ``helm test`` has the same label."""
    assert decoding.plugin_pod(pod_bytes()) is None
    assert decoding.plugin_pod(pod_bytes(metadata=OWNER)) is not None


def test_a_ready_plugin_has_address_port_and_revision() -> None:
    metadata = {**OWNER, "labels": {"controller-revision-hash": "abc"}}
    ready = {"type": "Ready", "status": "True", "last_transition_time": {"seconds": 1010}}
    spec = {"containers": [{"ports": [{"name": "http", "container_port": 9999}]}]}
    plugin = decoding.plugin_pod(
        pod_bytes(metadata=metadata, spec=spec, status={"conditions": [ready], "pod_ip": "10.0.0.7"})
    )
    assert plugin is not None
    assert (plugin.node, plugin.revision, plugin.address, plugin.port) == ("n1", "abc", "10.0.0.7", 9999)
    assert (plugin.ready, plugin.since, plugin.problem) == (True, 1010.0, "")


def test_a_plugin_that_is_not_scheduled_belongs_to_the_node_that_it_waits_for() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
    fields = [{"key": "metadata.name", "values": ["n7"]}]
    affinity = {"node_affinity": {"required": {"terms": [{"fields": fields}]}}}
    status = {"phase": "Pending", "conditions": [scheduled], "pod_ip": ""}
    plugin = decoding.plugin_pod(pod_bytes(metadata=OWNER, spec={"node_name": "", "affinity": affinity}, status=status))
    assert plugin is not None
    assert (plugin.node, plugin.ready, plugin.problem) == ("n7", False, "Unschedulable: Insufficient cpu")


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"container_statuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, "ImagePullBackOff"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted: disk"),
        ({}, "the readiness probe fails"),
    ],
)
def test_a_plugin_that_is_not_ready_has_the_reason_of_its_pod(status: dict[str, Any], problem: str) -> None:
    conditions = {"conditions": [{"type": "Ready", "status": "False"}]}
    plugin = decoding.plugin_pod(pod_bytes(metadata=OWNER, status={**conditions, **status}))
    assert plugin is not None
    assert plugin.problem == problem


def test_a_node_has_its_extended_resources_and_whether_it_is_ready() -> None:
    amounts = {"cpu": {"string": "8"}, "aosp.io/phone": {"string": "1k"}}
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    message = {
        "metadata": {"name": "n1", "labels": {"a": "b"}},
        "status": {"capacity": amounts, "allocatable": {"aosp.io/phone": {"string": "999"}}, "conditions": [ready]},
    }
    node = decoding.node(ParseDict(message, objects_pb2.Node()).SerializeToString())
    assert (node.name, node.labels, node.capacity) == ("n1", {"a": "b"}, {"aosp.io/phone": 1000})
    assert (node.allocatable, node.ready.status, node.ready.reason) == (
        {"aosp.io/phone": 999},
        "Unknown",
        "NodeStatusUnknown",
    )


def test_a_slice_has_the_ids_and_taints_of_its_devices() -> None:
    taints = [{"key": "phone.aosp.io/unhealthy", "value": "missing", "effect": "NoSchedule", "time_added": CREATED}]
    devices = [
        {"name": "aosp-binder7", "attributes": {"id": {"string": "aosp_binder7"}}},
        {"name": "phone1", "taints": taints},
    ]
    pool = {"name": "n1/00000", "generation": 2, "resource_slice_count": 3}
    spec = {"driver": "phone.aosp.io", "node_name": "n1", "pool": pool, "devices": devices}
    found = decoding.resource_slice(ParseDict({"spec": spec}, objects_pb2.ResourceSlice()).SerializeToString())
    assert found is not None
    assert (found.driver, found.node, found.pool, found.generation, found.wanted) == (
        "phone.aosp.io",
        "n1",
        "n1/00000",
        2,
        3,
    )
    assert found.devices == (
        SliceDevice("aosp-binder7", "aosp_binder7", (), None),
        SliceDevice("phone1", "phone1", ("phone.aosp.io/unhealthy=missing",), 1000.0),
    )


def test_a_claim_that_is_not_allocated_has_the_classes_of_its_requests() -> None:
    requests = [
        {"exactly": {"device_class_name": "phone", "count": 2}},
        {"first_available": [{"device_class_name": "fast"}, {"device_class_name": "slow"}]},
    ]
    message = {"metadata": {"name": "c", "namespace": "a"}, "spec": {"devices": {"requests": requests}}}
    found = decoding.claim(ParseDict(message, objects_pb2.ResourceClaim()).SerializeToString())
    assert found == Claim("a", "c", 0.0, ("phone", "phone", "fast"), (), ())


def test_an_allocated_claim_has_its_devices_and_pods() -> None:
    results = [{"driver": "phone.aosp.io", "pool": "n1/00000", "device": "phone1"}]
    consumers = [{"resource": "pods", "name": "p", "uid": "u"}, {"resource": "others", "name": "x", "uid": "v"}]
    message = {
        "metadata": {"name": "c", "namespace": "a"},
        "spec": {"devices": {"requests": [{"exactly": {"device_class_name": "phone"}}]}},
        "status": {"allocation": {"devices": {"results": results}}, "reserved_for": consumers},
    }
    found = decoding.claim(ParseDict(message, objects_pb2.ResourceClaim()).SerializeToString())
    assert found == Claim("a", "c", 0.0, (), (("phone.aosp.io", "n1/00000", "phone1"),), (("p", "u"),))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("120", 120),
        ("1k", 1000),
        ("2Ki", 2048),
        ("12e3", 12000),
        ("0", 0),
        ("500m", 1),
        ("1500m", 2),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1.5Gi", 3 * 2**29),
        ("", 0),
        ("many", 0),
        ("1e999", 0),
    ],
)
def test_amounts_of_resources(text: str, number: int) -> None:
    assert decoding.amount(text) == number


def listed(items: list[bytes]) -> bytes:
    """Return a list as the API server answers it, with metadata before the items and fields after the list."""
    metadata = b"\x0a\x04\x12\x0242"
    raw = metadata + objects_pb2.List(items=items).SerializeToString()
    envelope = objects_pb2.Envelope(type_meta=b"\x0a\x02v1", raw=raw)
    return b"k8s\0" + envelope.SerializeToString() + b"\x1a\x00\x22\x00"


@given(
    items=st.lists(st.binary(max_size=300), max_size=8),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=8),
)
def test_items_are_the_same_however_the_body_is_cut(items: list[bytes], sizes: list[int]) -> None:
    body, reader, found, position = listed(items), Items(REQUEST), [], 0
    while position < len(body):
        size = sizes[position % len(sizes)]
        found += reader.feed(body[position : position + size])
        position += size
    reader.end()
    assert found == items


def test_a_body_that_ends_early_or_is_not_protobuf_is_an_error() -> None:
    reader = Items(REQUEST)
    reader.feed(listed([b"x" * 50])[:-20])
    with pytest.raises(ApiUnavailableError, match="incomplete"):
        reader.end()
    with pytest.raises(ApiUnavailableError, match="not protobuf"):
        Items(REQUEST).feed(b'{"kind": "PodList"}')
    with pytest.raises(ApiUnavailableError, match="incomplete"):
        Items(REQUEST).end()
