"""Rows and problems from the objects of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from aosp_plugin.cli.fleet.cluster import Claim, Cluster, Condition, DaemonSet, DeviceClass, DeviceHealth, SliceDevice
from aosp_plugin.cli.fleet.fleet import Selection, fleet, has_problems
from aosp_plugin.cli.fleet.report import Fleet, Kind, PhoneState, PluginState
from tests.unit.fleet.clusters import (
    DRIVER,
    NOW,
    PHONE,
    answers,
    claim,
    cluster,
    device,
    node,
    plugin_pod,
    pod,
    resource,
    slice_of,
)

DOWN = Condition("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", NOW - 90)


def kinds(found: Fleet) -> list[tuple[str, str]]:
    """Return node and kind of each problem."""
    return [(problem.node, problem.kind) for problem in found.problems]


def only(found: Fleet) -> tuple[str, str, float | None]:
    """Return kind, detail and time of the only problem."""
    (problem,) = found.problems
    return problem.kind, problem.detail, problem.since


def test_a_healthy_cluster_has_no_problems() -> None:
    found = fleet(cluster(pods=(pod(),), answers=answers(resource(allocated=1, kubelet_allocatable=4))))
    assert not has_problems(found)
    assert found.complete
    (row,) = found.nodes
    assert (row.phones, row.allocatable, row.used, row.unhealthy) == (4, 4, 1, 0)
    assert (row.plugin, row.plugin_pod, row.source) == (PluginState.READY, "kube-system/plugin-n1", "status")
    (phone,) = found.phones
    assert (phone.namespace, phone.pod, phone.node, phone.count, phone.state) == ("a", "p1", "n1", 1, "running")


def test_a_node_without_the_plugins_pod_is_reported_with_the_phones_it_has() -> None:
    found = fleet(cluster(nodes=(node(allocatable=0),), plugin_pods=(), pods=(pod(), pod("p2", phones=2))))
    assert only(found)[:2] == (Kind.PLUGIN_ABSENT, "the node has no pod of the plugin; 3 phones in use")
    assert found.nodes[0].unhealthy == 0  # the kubelet has no healthy device, which says nothing about the devices


@pytest.mark.parametrize(
    ("selector", "labels", "absent"),
    [({"aosp.io/binder": "true"}, {"aosp.io/binder": "true"}, True), ({"aosp.io/binder": "true"}, {}, False)],
)
def test_a_node_that_never_had_a_plugin_is_absent_if_the_daemon_set_selects_it(
    selector: dict[str, str], labels: dict[str, str], *, absent: bool
) -> None:
    nodes = (node(), node("n2", None, labels=labels))
    sets = (DaemonSet("kube-system", "aosp-device-plugin", selector, affinity=False),)
    found = fleet(cluster(nodes=nodes, daemon_sets=sets))
    assert kinds(found) == ([("n2", Kind.PLUGIN_ABSENT)] if absent else [])
    assert len(found.nodes) == 1 + absent


def test_a_plugin_outside_the_cluster_is_no_problem() -> None:
    found = fleet(cluster(plugin_pods=(), daemon_sets=()))
    assert not has_problems(found)
    assert found.nodes[0].plugin is PluginState.OUTSIDE


def test_a_capacity_of_0_remains_after_the_plugin_was_removed_and_is_no_problem() -> None:
    found = fleet(cluster(nodes=(node(), node("n2", 0)), daemon_sets=()))
    assert [row.node for row in found.nodes] == ["n1"]
    assert not has_problems(found)


@pytest.mark.parametrize(
    ("ready", "detail"), [("", "CrashLoopBackOff: back-off 40s"), ("waiting for kubelet", "waiting for kubelet")]
)
def test_a_plugin_that_is_not_ready_says_why_itself_or_else_its_pod_does(ready: str, detail: str) -> None:
    pods = (plugin_pod(ready=False, since=NOW - 60, problem="CrashLoopBackOff: back-off 40s"),)
    found = fleet(
        cluster(nodes=(node(allocatable=0),), plugin_pods=pods, answers=answers(source="readyz", ready=ready))
    )
    assert only(found) == (Kind.PLUGIN_NOT_READY, detail, NOW - 60)


def test_the_new_pod_of_a_plugin_counts_while_the_old_one_is_deleted() -> None:
    pods = (plugin_pod(name="old", deleted=NOW, created=NOW - 10), plugin_pod(name="new", created=NOW - 5))
    assert fleet(cluster(plugin_pods=pods)).nodes[0].plugin_pod == "kube-system/new"
    assert not has_problems(fleet(cluster(plugin_pods=pods)))


@pytest.mark.parametrize(
    ("fields", "allocatable", "detail"),
    [
        ({"kubelet_allocatable": 2, "kubelet_published": 4}, 4, "the kubelet has 2 healthy phones, the plugin 4"),
        ({"kubelet_allocatable": 2}, 2, "the kubelet has 2 healthy phones, the plugin 4"),
        ({"kubelet_allocatable": 4}, 0, "the Node object has 0 allocatable phones, the plugin 4 healthy"),
        ({}, 3, "the Node object has 3 allocatable phones, the plugin 4 healthy"),
    ],
)
def test_a_kubelet_that_disagrees_is_reported(fields: dict[str, Any], allocatable: int, detail: str) -> None:
    found = fleet(cluster(nodes=(node(allocatable=allocatable),), answers=answers(resource(**fields))))
    assert only(found)[:2] == (Kind.KUBELET_DISAGREES, detail)


def test_a_device_that_became_unhealthy_after_the_kubelets_answer_is_no_disagreement() -> None:
    reported = resource(3, unhealthy={"missing": 1}, kubelet_allocatable=4, kubelet_published=4)
    assert kinds(fleet(cluster(nodes=(node(allocatable=3),), answers=answers(reported)))) == [("n1", Kind.UNHEALTHY)]


def test_unhealthy_devices_have_their_reasons_and_the_earliest_time() -> None:
    devices = (
        device("phone0", "unhealthy", reason="missing", since=NOW - 50),
        device("phone1", "unhealthy", reason="missing", since=NOW - 70),
        device("phone2", pods=()),
    )
    reported = resource(2, unhealthy={"missing": 2}, devices=devices)
    found = fleet(cluster(nodes=(node(allocatable=2),), answers=answers(reported)))
    assert only(found) == (Kind.UNHEALTHY, "2 of 4 phones: 2 missing", NOW - 70)
    assert [(row.devices, row.state, row.reason, row.problem) for row in found.phones] == [
        (("phone0",), "unhealthy", "missing", True),
        (("phone1",), "unhealthy", "missing", True),
        (("phone2",), "free", "", False),
    ]


def test_unhealthy_devices_are_counted_without_an_answer_of_the_plugin() -> None:
    found = fleet(cluster(nodes=(node(allocatable=3),)))
    assert only(found)[:2] == (Kind.UNHEALTHY, "1 of 4 phones")
    assert found.totals.unhealthy == 1


def test_a_pod_on_an_unhealthy_device_is_a_problem() -> None:
    devices = (
        device("phone0", "unhealthy", reason="missing", detail="missing: phone0", pods=(("a", "p1"),), since=1.0),
    )
    reported = resource(3, unhealthy={"missing": 1}, devices=devices)
    found = fleet(cluster(nodes=(node(allocatable=3),), pods=(pod(),), answers=answers(reported)))
    (row,) = found.phones
    assert (row.pod, row.devices, row.state, row.reason) == ("p1", ("phone0",), PhoneState.UNHEALTHY, "missing: phone0")
    assert (row.problem, row.since) == (True, 1.0)


def test_a_leaked_device_is_a_problem() -> None:
    reported = resource(4, leaked=1, devices=(device("phone0", "leaked"),))
    found = fleet(cluster(answers=answers(reported)))
    assert only(found)[:2] == (Kind.LEAKED, "1 phone")
    assert (found.phones[0].state, found.phones[0].problem) == (PhoneState.LEAKED, True)


def test_phones_that_are_provisioned_but_do_not_exist_are_reported() -> None:
    found = fleet(cluster(answers=answers(resource(4, expected=6))))
    assert only(found)[:2] == (Kind.PHONES_MISSING, "4 of 6 provisioned phones exist")


def test_a_ready_plugin_without_phones_is_reported() -> None:
    found = fleet(cluster(nodes=(node(capacity=None),)))
    assert kinds(found) == [("n1", Kind.NO_PHONES)]


def test_a_cluster_without_phones_and_plugin_is_reported() -> None:
    found = fleet(cluster(nodes=(node(capacity=None),), plugin_pods=(), daemon_sets=()))
    assert kinds(found) == [("", Kind.NO_PHONES)]
    assert found.totals.nodes_with_problems == 0


def test_a_node_that_is_not_ready_is_reported_with_its_phones() -> None:
    found = fleet(cluster(nodes=(node(ready=DOWN),), pods=(pod(),)))
    assert only(found) == (
        Kind.NODE_NOT_READY,
        "NodeStatusUnknown: Kubelet stopped posting node status.",
        NOW - 90,
    )
    (row,) = found.phones
    assert (row.state, row.reason, row.problem) == (PhoneState.LOST, "node not ready: NodeStatusUnknown", True)


def condition(status: str = "False", reason: str = "", message: str = "", age: float = 10.0) -> Condition:
    return Condition(status, reason, message, NOW - age)


UNSCHEDULABLE = condition(reason="Unschedulable", message="0/3 nodes are available: 3 Insufficient aosp.io/phone.")


@pytest.mark.parametrize(
    ("fields", "state", "reason", "problem"),
    [
        (
            {"node": "", "phase": "Pending", "conditions": {"PodScheduled": UNSCHEDULABLE}},
            "waiting",
            UNSCHEDULABLE.message,
            True,
        ),
        (
            {"node": "", "phase": "Pending", "conditions": {"PodScheduled": condition(reason="SchedulingGated")}},
            "waiting",
            "SchedulingGated",
            False,
        ),
        ({"node": "", "phase": "Pending", "created": NOW - 5}, "waiting", "", False),
        ({"node": "", "phase": "Pending"}, "waiting", "no scheduler has handled it", True),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no"}, "failed", None, True),
        ({"deleted": NOW - 5}, "terminating", "", False),
        ({"deleted": NOW - 400}, "terminating", "should have ended 400 s ago", True),
        ({"phase": "Pending", "waiting": (("ContainerCreating", ""),), "created": NOW - 5}, "starting", None, False),
        ({"phase": "Pending", "waiting": (("ContainerCreating", ""),)}, "starting", "ContainerCreating", True),
        ({"waiting": (("", ""), ("CrashLoopBackOff", "back-off"))}, "failing", "CrashLoopBackOff: back-off", True),
        ({"conditions": {"Ready": condition(message="unready: [android]")}}, "not-ready", "unready: [android]", False),
        ({"conditions": {"Ready": condition(age=301)}}, "not-ready", "", True),
    ],
)
def test_a_pod_that_does_not_run_has_state_and_reason(
    fields: dict[str, Any], state: str, reason: str | None, *, problem: bool
) -> None:
    found = fleet(cluster(pods=(pod(**{"ready": False, **fields}),)))
    (row,) = found.phones
    assert (row.state, row.problem) == (state, problem)
    assert reason is None or row.reason == reason
    assert has_problems(found) is problem


def test_a_failed_pod_has_no_phone_any_more() -> None:
    assert fleet(cluster(pods=(pod(phase="Failed"),))).nodes[0].used == 0


def test_pods_without_phones_have_no_rows() -> None:
    assert fleet(cluster(pods=(pod(phones=0, limits={"nvidia.com/gpu": 1}),))).phones == ()


def test_the_kubelets_device_ids_are_shown_if_the_plugin_does_not_report_them() -> None:
    found = fleet(cluster(pods=(pod(devices=(DeviceHealth(PHONE, "phone3", "Healthy"),)),)))
    assert found.phones[0].devices == ("phone3",)


# DRA


def dra(**fields: Any) -> Cluster:
    """Return a cluster with a node that publishes two phones in a slice."""
    given: dict[str, Any] = {"nodes": (node(capacity=None),), "slices": (slice_of("phone0", "phone1"),)}
    return cluster(**(given | fields))


def test_claims_give_pods_their_phones() -> None:
    found = fleet(dra(pods=(pod("p1", phones=0),), claims=(claim("c", "phone1", "p1"),)))
    (row,) = found.nodes
    assert (row.api, row.phones, row.allocatable, row.used) == ("dra", 2, 2, 1)
    rows = [(row.pod, row.devices, row.state) for row in found.phones]
    assert rows == [("", ("phone0",), "free"), ("p1", ("phone1",), "running")]
    assert not has_problems(found)


def test_a_shared_claim_is_one_phone_of_several_pods() -> None:
    pods = (pod("p1", phones=0), pod("p2", phones=0))
    found = fleet(dra(pods=pods, claims=(claim("c", "phone1", "p1", "p2"),)))
    assert [row.devices for row in found.phones if row.pod] == [("phone1",), ("phone1",)]
    assert found.nodes[0].used == 1


def test_an_extended_resource_claim_counts_once() -> None:
    """The pod requests the resource as a limit, and has a claim that the scheduler made."""
    found = fleet(dra(pods=(pod("p1", phones=1),), claims=(claim("c", "phone1", "p1"),)))
    (row,) = (row for row in found.phones if row.pod)
    assert (row.count, row.devices) == (1, ("phone1",))
    assert found.nodes[0].used == 1


def test_a_tainted_device_is_unhealthy_and_its_taint_is_the_reason() -> None:
    tainted = SliceDevice("phone0", "phone0", (f"{DRIVER}/unhealthy=missing",), NOW - 30)
    found = fleet(
        dra(slices=(slice_of(tainted, "phone1"),), pods=(pod(phones=0),), claims=(claim("c", "phone0", "p1"),))
    )
    assert (found.nodes[0].allocatable, found.nodes[0].unhealthy) == (1, 1)
    (row, free) = found.phones
    assert (row.pod, row.state, row.reason, row.since, free.state) == ("p1", "unhealthy", "missing", NOW - 30, "free")


def test_a_device_id_differs_from_the_name_in_the_slice() -> None:
    named = SliceDevice("aosp-binder7", "aosp_binder7", (), None)
    found = fleet(dra(slices=(slice_of(named),), pods=(pod(phones=0),), claims=(claim("c", "aosp-binder7", "p1"),)))
    assert found.phones[0].devices == ("aosp_binder7",)


def test_a_pool_with_too_few_slices_is_reported_and_old_generations_do_not_count() -> None:
    old, new = slice_of("phone0", generation=1), slice_of("phone1", generation=2, wanted=2)
    found = fleet(dra(slices=(old, new)))
    assert only(found)[:2] == (Kind.SLICES_INCOMPLETE, "the pool n1/00000 has 1 of 2 ResourceSlices")
    assert found.nodes[0].phones == 1


def test_slices_that_the_driver_could_not_write_are_reported() -> None:
    found = fleet(dra(answers=answers(resource(2, slices=3, slices_confirmed=2))))
    detail = "the API server has 2 of 3 ResourceSlices as they should be"
    assert only(found)[:2] == (Kind.SLICES_INCOMPLETE, detail)


def test_a_pod_whose_claim_is_not_allocated_waits_for_the_phones_of_its_class() -> None:
    wanted = Claim("a", "c", NOW, ("fast-phone", "fast-phone", "gpu"), (), ())
    classes = (DeviceClass("fast-phone", (f'device.driver == "{DRIVER}"',), ""), DeviceClass("gpu", ("true",), ""))
    waiting = pod("p1", "", 0, phase="Pending", ready=False, claims=("c",), conditions={"PodScheduled": UNSCHEDULABLE})
    found = fleet(dra(pods=(waiting,), claims=(wanted,), classes=classes))
    row = found.phones[0]
    assert (row.pod, row.resource, row.count, row.state) == ("p1", PHONE, 2, PhoneState.WAITING)
    assert found.totals.waiting == 2


def test_pods_that_cannot_be_read_are_named_by_their_claims() -> None:
    found = fleet(dra(pods=None, claims=(claim("c", "phone1", "p1"),)))
    assert ("a", "p1", ("phone1",), "unknown") in [
        (row.namespace, row.pod, row.devices, row.state) for row in found.phones
    ]
    assert not found.complete


# Selections


def test_other_resources_than_those_of_aosp_io_are_found_in_answers_or_chosen() -> None:
    other = "example.com/android"
    nodes = (node(resource=other),)
    assert {row.resource for row in fleet(cluster(nodes=nodes)).nodes} == {""}
    assert {row.resource for row in fleet(cluster(nodes=nodes, answers=answers(resource(name=other)))).nodes} == {other}
    chosen = fleet(cluster(nodes=nodes), Selection(resources=(other,)))
    assert {row.resource for row in chosen.nodes} == {other}


def two_nodes(**fields: Any) -> Cluster:
    """Return a cluster with two nodes, of which the second has no plugin, and a pod in each of two namespaces."""
    pods = (pod("p1", "n1"), pod("p2", "n2", namespace="b"))
    nodes = (node("n1"), node("n2", allocatable=0))
    return cluster(**({"nodes": nodes, "pods": pods} | fields))


def test_a_node_can_be_selected() -> None:
    found = fleet(two_nodes(), Selection(nodes=("n1",)))
    assert [row.node for row in found.nodes] == ["n1"]
    assert [row.pod for row in found.phones] == ["p1"]
    assert found.problems == ()


def test_unhealthy_shows_only_what_has_a_problem_and_counts_everything() -> None:
    found = fleet(two_nodes(), Selection(unhealthy=True))
    assert [row.node for row in found.nodes] == ["n2"]
    assert found.phones == ()
    assert (found.totals.nodes, found.totals.phones, found.totals.nodes_with_problems) == (2, 8, 1)


def test_of_a_namespace_only_its_nodes_are_shown_and_their_use_is_what_the_plugin_reports() -> None:
    given = two_nodes(pods=(pod("p1", "n1"),), answers=answers(resource(allocated=3)))
    found = fleet(given, Selection(namespace="a"))
    assert [(row.node, row.used) for row in found.nodes] == [("n1", 3)]
    without = fleet(two_nodes(pods=(pod("p2", "n2"),)), Selection(namespace="a"))
    assert [(row.node, row.used) for row in without.nodes] == [("n2", None)]


def test_problems_come_first() -> None:
    pods = (pod("p1"), pod("p2", ready=False, waiting=(("CrashLoopBackOff", ""),)))
    found = fleet(two_nodes(pods=pods))
    assert [row.node for row in found.nodes] == ["n2", "n1"]
    assert [row.pod for row in found.phones] == ["p2", "p1"]


def test_what_cannot_be_read_is_not_complete() -> None:
    for part in ("nodes", "pods", "plugin_pods"):
        assert not fleet(cluster(**{part: None})).complete
    assert fleet(cluster(plugin_pods=None)).nodes[0].plugin is PluginState.UNKNOWN
