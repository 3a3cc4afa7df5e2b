"""Rows and problems from the objects of a cluster."""

from typing import Any

import pytest

from kubectl_phones.fleet import fleet, has_problems
from kubectl_phones.gather import Cluster, Selection
from kubectl_phones.report import Fleet
from kubectl_phones.tests.clusters import (
    DRIVER,
    NOW,
    PHONE,
    claim,
    cluster,
    condition,
    daemon_set,
    event,
    node,
    plugin_pod,
    pod,
    slice_of,
    time,
)

TAINT = {"key": f"{DRIVER}/unhealthy", "value": "missing", "effect": "NoSchedule", "timeAdded": time(30)}


def kinds(found: Fleet) -> list[tuple[str, str]]:
    """Return node and kind of each problem."""
    return [(problem.node, problem.kind) for problem in found.problems]


def only(found: Fleet) -> tuple[str, str, float | None]:
    """Return kind, detail and time of the only problem."""
    (problem,) = found.problems
    return problem.kind, problem.detail, problem.since


def test_a_healthy_cluster_has_no_problems() -> None:
    found = fleet(cluster(pods=[pod()]))
    assert not has_problems(found)
    assert found.complete
    (row,) = found.nodes
    assert (row.phones, row.allocatable, row.used, row.unhealthy) == (4, 4, 1, 0)
    assert (row.plugin, row.plugin_pod, row.since) == ("ready", "kube-system/plugin-n1", NOW - 3590)
    (phone,) = found.phones
    assert (phone.namespace, phone.pod, phone.node, phone.count, phone.state) == ("a", "p1", "n1", 1, "running")


def test_a_node_without_the_plugins_pod_is_reported_with_the_phones_it_has() -> None:
    found = fleet(cluster(nodes=[node(allocatable=0)], plugin_pods=[], pods=[pod(), pod("p2", phones=2)]))
    assert only(found)[:2] == ("plugin-absent", "the node has no pod of the plugin; 3 phones in use")
    assert found.nodes[0].unhealthy == 0  # the kubelet has no healthy device, which says nothing about the devices


@pytest.mark.parametrize(
    ("spec", "labels", "absent"),
    [
        ({"nodeSelector": {"aosp.io/binder": "true"}}, {"aosp.io/binder": "true"}, True),
        ({"nodeSelector": {"aosp.io/binder": "true"}}, {}, False),
        ({"affinity": {}}, {}, False),
    ],
)
def test_a_node_that_never_had_a_plugin_is_absent_if_the_daemon_set_selects_it(
    spec: dict[str, Any], labels: dict[str, str], *, absent: bool
) -> None:
    nodes = [node(), node("n2", None, labels=labels)]
    found = fleet(cluster(nodes=nodes, daemon_sets=[daemon_set(**spec)]))
    assert kinds(found) == ([("n2", "plugin-absent")] if absent else [])
    assert len(found.nodes) == 1 + absent


def test_a_plugin_outside_the_cluster_is_no_problem() -> None:
    found = fleet(cluster(plugin_pods=[], daemon_sets=[]))
    assert not has_problems(found)
    assert found.nodes[0].plugin == "outside"


def test_a_capacity_of_0_remains_after_the_plugin_was_removed_and_is_no_problem() -> None:
    found = fleet(cluster(nodes=[node(), node("n2", 0)], daemon_sets=[]))
    assert [row.node for row in found.nodes] == ["n1"]
    assert not has_problems(found)


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
UNSCHEDULABLE = condition("PodScheduled", "False", age=10, reason="Unschedulable", message="0/3 nodes are available")
TERMS = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}
NOT_SCHEDULED = {
    "spec": {"nodeName": "", "affinity": AFFINITY},
    "status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]},
}


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({}, "its pod is not-ready"),
        ({"status": {"containerStatuses": [{"ready": False, "state": BACK_OFF}]}}, "CrashLoopBackOff: back-off 40s"),
        ({"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}}, "Evicted: disk"),
        ({"metadata": {"deletionTimestamp": time(5)}}, "its pod is terminating"),
        (NOT_SCHEDULED, "0/3 nodes are available"),
    ],
)
def test_a_plugin_that_is_not_ready_is_reported_with_what_its_pod_says(fields: dict[str, Any], detail: str) -> None:
    found = fleet(cluster(nodes=[node(allocatable=0)], plugin_pods=[plugin_pod(ready=False, **fields)]))
    assert only(found)[:2] == ("plugin-not-ready", detail)


def test_the_new_pod_of_a_plugin_counts_while_the_old_one_is_deleted() -> None:
    old = plugin_pod(name="old", metadata={"deletionTimestamp": time(0)})
    given = cluster(plugin_pods=[old, plugin_pod(name="new", metadata={"creationTimestamp": time(5)})])
    assert fleet(given).nodes[0].plugin_pod == "kube-system/new"
    assert not has_problems(fleet(given))


def test_unhealthy_phones_of_a_device_plugin_are_counted() -> None:
    found = fleet(cluster(nodes=[node(allocatable=3)]))
    assert only(found)[:2] == ("unhealthy", "1 of 4 phones")
    assert found.totals.unhealthy == 1


def test_a_ready_plugin_without_phones_is_reported() -> None:
    assert kinds(fleet(cluster(nodes=[node(capacity=None)]))) == [("n1", "no-phones")]


def test_a_cluster_without_phones_and_plugin_is_reported() -> None:
    found = fleet(cluster(nodes=[node(capacity=None)], plugin_pods=[], daemon_sets=[]))
    assert kinds(found) == [("", "no-phones")]


def test_a_node_that_is_not_ready_is_reported_with_its_phones() -> None:
    message = "Kubelet stopped posting node status."
    down = condition(status="Unknown", age=90, reason="NodeStatusUnknown", message=message)
    found = fleet(cluster(nodes=[node(ready=down)], pods=[pod()]))
    assert only(found) == ("node-not-ready", f"NodeStatusUnknown: {message}", NOW - 90)
    (row,) = found.phones
    assert (row.state, row.reason, row.problem) == ("lost", "node not ready: NodeStatusUnknown", True)


def test_a_startup_taint_is_reported_and_taints_of_others_are_not() -> None:
    taints = [{"key": "aosp.io/starting", "effect": "NoSchedule"}, {"key": "example.com/a", "effect": "NoSchedule"}]
    found = fleet(cluster(nodes=[node(taints=taints)]))
    assert only(found)[:2] == ("startup-taint", "the taint aosp.io/starting keeps pods away")


# Events


def test_what_the_plugin_reports_in_events_is_a_problem() -> None:
    """Devices that it has lost are another Event, which has no end."""
    lost = event("DevicesLost", f"1 device of {PHONE} lost: 1 missing", 60)
    found = fleet(cluster(events=[lost, event("SecondPlugin", f"{PHONE}: another plugin", 60)]))
    assert only(found) == ("second-plugin", "another plugin", NOW - 160)


ENDED = "aosp.io/phone: no longer: the kubelet has fewer devices"


@pytest.mark.parametrize(
    ("other", "ended"),
    [
        (event("KubeletDisagreesEnded", ENDED, 30), True),
        (event("KubeletDisagreesEnded", ENDED, 90), False),
        (event("KubeletDisagreesEnded", ENDED.replace(PHONE, "aosp.io/phone2"), 30), False),
        (event("NotRegisteredEnded", f"{PHONE}: no longer: Not registered with the kubelet", 30), False),
    ],
)
def test_an_event_ends_the_problem_of_the_earlier_event_of_its_kind_and_resource(
    other: dict[str, Any], *, ended: bool
) -> None:
    found = fleet(cluster(events=[event("KubeletDisagrees", f"{PHONE}: lost", 60), other]))
    assert has_problems(found) is not ended


def test_an_event_of_an_earlier_process_of_the_plugin_is_no_problem() -> None:
    assert not has_problems(fleet(cluster(events=[event("SecondPlugin", f"{PHONE}: another plugin", 3600)])))


# Pods

GATED = condition("PodScheduled", "False", age=10, reason="SchedulingGated")
CREATING = [{"ready": False, "state": {"waiting": {"reason": "ContainerCreating"}}}]
CRASHING = [{"ready": False, "state": {"waiting": {}}}, {"ready": False, "state": BACK_OFF}]
PENDING = {"phase": "Pending", "conditions": [], "containerStatuses": CREATING}
FAILING = {"conditions": [], "containerStatuses": CRASHING}
NEW = {"creationTimestamp": time(5)}


@pytest.mark.parametrize(
    ("fields", "state", "reason", "problem"),
    [
        ({"node": "", "status": {"conditions": [UNSCHEDULABLE]}}, "waiting", UNSCHEDULABLE["message"], True),
        ({"node": "", "status": {"conditions": [GATED]}}, "waiting", "SchedulingGated", False),
        ({"node": "", "metadata": NEW, "status": {"conditions": []}}, "waiting", "", False),
        ({"node": "", "status": {"conditions": []}}, "waiting", "no scheduler has handled it", True),
        ({"status": {"phase": "Failed", "reason": "A", "message": "b"}}, "failed", "A: b", True),
        ({"metadata": {"deletionTimestamp": time(5)}}, "terminating", "", False),
        ({"metadata": {"deletionTimestamp": time(400)}}, "terminating", "should have ended 400 s ago", True),
        ({"metadata": NEW, "status": PENDING}, "starting", "ContainerCreating", False),
        ({"status": PENDING}, "starting", "ContainerCreating", True),
        ({"status": FAILING}, "failing", "CrashLoopBackOff: back-off 40s", True),
        ({"status": {"conditions": [condition(status="False", age=10, message="m")]}}, "not-ready", "m", False),
        ({"status": {"conditions": [condition(status="False", age=301, reason="r")]}}, "not-ready", "r", True),
    ],
)
def test_a_pod_that_does_not_run_has_state_and_reason(
    fields: dict[str, Any], state: str, reason: str, *, problem: bool
) -> None:
    found = fleet(cluster(pods=[pod(**fields)]))
    (row,) = found.phones
    assert (row.state, row.reason, row.problem) == (state, reason, problem)
    assert has_problems(found) is problem


def test_a_failed_pod_has_no_phone_any_more() -> None:
    assert fleet(cluster(pods=[pod(status={"phase": "Failed"})])).nodes[0].used == 0


@pytest.mark.parametrize(("health", "state"), [("Healthy", "running"), ("Unhealthy", "unhealthy")])
def test_a_kubelet_that_reports_the_devices_of_a_pod_says_which_and_how_they_are(health: str, state: str) -> None:
    entry = {"name": PHONE, "resources": [{"resourceID": "phone3", "health": health}]}
    statuses = [{"ready": True, "allocatedResourcesStatus": [entry]}]
    (row,) = fleet(cluster(pods=[pod(status={"containerStatuses": statuses})])).phones
    assert (row.devices, row.state) == (("phone3",), state)


# DRA


def dra(**fields: Any) -> Cluster:
    """Return a cluster with a node that publishes two phones in a slice."""
    given: dict[str, Any] = {"nodes": [node(capacity=None)], "slices": [slice_of("phone0", "phone1")]}
    return cluster(**(given | fields))


def claiming(name: str = "p1", node: str = "n1", **fields: Any) -> dict[str, Any]:
    """Return a pod whose claim has been made from a template."""
    claims = {"resourceClaimStatuses": [{"name": "phone", "resourceClaimName": "c"}]}
    spec = {"resourceClaims": [{"name": "phone"}]}
    return pod(name, node, 0, spec=spec, status=claims | fields.pop("status", {}), **fields)


def test_claims_give_pods_their_phones() -> None:
    found = fleet(dra(pods=[claiming()], claims=[claim("c", "phone1", "p1")]))
    (row,) = found.nodes
    assert (row.api, row.phones, row.allocatable, row.used) == ("dra", 2, 2, 1)
    assert [(row.pod, row.devices, row.state) for row in found.phones] == [("p1", ("phone1",), "running")]
    assert not has_problems(found)


def test_a_shared_claim_is_one_phone_of_several_pods() -> None:
    found = fleet(dra(pods=[claiming("p1"), claiming("p2")], claims=[claim("c", "phone1", "p1", "p2")]))
    assert [row.devices for row in found.phones if row.pod] == [("phone1",), ("phone1",)]
    assert found.nodes[0].used == 1


def test_an_extended_resource_claim_counts_once() -> None:
    """The pod requests the resource as a limit, and has a claim that the scheduler made."""
    found = fleet(dra(pods=[pod("p1", phones=1)], claims=[claim("c", "phone1", "p1")]))
    (row,) = (row for row in found.phones if row.pod)
    assert (row.count, row.devices) == (1, ("phone1",))
    assert found.nodes[0].used == 1


def test_a_tainted_device_is_unhealthy_and_its_taint_is_the_reason() -> None:
    devices = ({"name": "phone0", "taints": [TAINT]}, "phone1")
    found = fleet(dra(slices=[slice_of(*devices)], pods=[claiming()], claims=[claim("c", "phone0", "p1")]))
    assert only(found) == ("unhealthy", "1 of 2 phones: 1 missing", NOW - 30)
    assert (found.nodes[0].allocatable, found.nodes[0].unhealthy) == (1, 1)
    (row,) = found.phones
    assert (row.pod, row.state, row.reason, row.since) == ("p1", "unhealthy", "missing", NOW - 30)


def test_a_device_that_no_pod_has_can_be_unhealthy() -> None:
    (row,) = fleet(dra(slices=[slice_of({"name": "phone0", "taints": [TAINT]})])).phones
    assert (row.pod, row.devices, row.state, row.problem) == ("", ("phone0",), "unhealthy", True)


def test_a_device_id_differs_from_the_name_in_the_slice() -> None:
    named = {"name": "aosp-binder7", "attributes": {"id": {"string": "aosp_binder7"}}}
    found = fleet(dra(slices=[slice_of(named)], pods=[claiming()], claims=[claim("c", "aosp-binder7", "p1")]))
    assert found.phones[0].devices == ("aosp_binder7",)


def test_a_pool_of_the_same_name_on_another_node_hides_no_device() -> None:
    """A driver chooses the names and generations of its pools."""
    forged = slice_of("forged", node="n2", generation=999)
    forged["spec"]["pool"]["name"] = "n1/00000"
    found = fleet(dra(slices=[slice_of("phone0"), forged]))
    assert found.nodes[0].phones == 1


def test_slices_of_old_generations_do_not_count() -> None:
    found = fleet(dra(slices=[slice_of("phone0", generation=1), slice_of("phone1", generation=2)]))
    assert found.nodes[0].phones == 1


def test_slices_that_are_not_for_one_node_have_no_rows() -> None:
    for_all = slice_of("phone9")
    del for_all["spec"]["nodeName"]
    assert fleet(dra(slices=[slice_of("phone0"), for_all])).totals.phones == 1


def test_a_pod_whose_claim_is_not_allocated_waits_for_the_phones_of_its_class() -> None:
    def exactly(name: str, count: int) -> dict[str, Any]:
        return {"exactly": {"deviceClassName": name, "count": count}}

    requests = [exactly("fast-phone", 2), {"firstAvailable": [{"deviceClassName": "any-phone"}]}, exactly("gpu", 1)]
    wanted = {"metadata": {"namespace": "a", "name": "c"}, "spec": {"devices": {"requests": requests}}}
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    classes = [
        {"metadata": {"name": "fast-phone"}, "spec": {"selectors": [selector]}},
        {"metadata": {"name": "any-phone"}, "spec": {"extendedResourceName": PHONE}},
        {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}},
    ]
    waiting = claiming(node="", status={"phase": "Pending", "conditions": [UNSCHEDULABLE]})
    found = fleet(dra(pods=[waiting], claims=[wanted], classes=classes))
    row = found.phones[0]
    assert (row.pod, row.resource, row.count, row.state) == ("p1", PHONE, 3, "waiting")
    assert found.totals.waiting == 3


def test_a_claim_may_request_more_phones_than_there_is_memory_for() -> None:
    """Any user who may create claims chooses the number, and the API server has no limit."""
    request = {"exactly": {"deviceClassName": DRIVER, "count": 2**63 - 1}}
    wanted = {"metadata": {"namespace": "a", "name": "c"}, "spec": {"devices": {"requests": [request]}}}
    assert fleet(dra(pods=[claiming(node="")], claims=[wanted])).phones[0].count == 2**63 - 1


# Selections


def test_other_resources_than_those_of_aosp_io_are_chosen() -> None:
    other = "example.com/android"
    given = cluster(nodes=[node(resource=other)])
    assert {row.resource for row in fleet(given).nodes} == {""}
    assert {row.resource for row in fleet(given, Selection(resources=(other,))).nodes} == {other}


def two_nodes(**fields: Any) -> Cluster:
    """Return a cluster with two nodes, of which the second has no plugin, and a pod in each of two namespaces."""
    pods = [pod("p1", "n1"), pod("p2", "n2", metadata={"namespace": "b"})]
    return cluster(**({"nodes": [node("n1"), node("n2", allocatable=0)], "pods": pods} | fields))


def test_a_node_can_be_selected() -> None:
    found = fleet(two_nodes(), Selection(nodes=("n1",)))
    assert [row.node for row in found.nodes] == ["n1"]
    assert [row.pod for row in found.phones] == ["p1"]
    assert found.problems == ()


def test_unhealthy_shows_only_what_has_a_problem_and_counts_everything() -> None:
    found = fleet(two_nodes(), Selection(unhealthy=True))
    assert [row.node for row in found.nodes] == ["n2"]
    assert found.phones == ()
    assert (found.totals.nodes, found.totals.phones) == (2, 8)


def test_of_a_namespace_only_its_nodes_are_shown_and_their_use_is_unknown() -> None:
    found = fleet(two_nodes(pods=[pod("p1", "n1")]), Selection(namespace="a"))
    assert [(row.node, row.used) for row in found.nodes] == [("n1", None)]


def test_problems_come_first() -> None:
    found = fleet(two_nodes(pods=[pod("p1"), pod("p2", status=FAILING)]))
    assert [row.node for row in found.nodes] == ["n2", "n1"]
    assert [row.pod for row in found.phones] == ["p2", "p1"]


def test_what_cannot_be_read_is_not_complete() -> None:
    for part in ("nodes", "pods", "plugin_pods"):
        assert not fleet(cluster(**{part: None})).complete
    assert fleet(cluster(plugin_pods=None)).nodes[0].plugin == "unknown"
    assert fleet(cluster(pods=None)).totals.used is None
