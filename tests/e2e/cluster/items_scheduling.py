"""Items: what cordon, drain, labels, taints, priorities and disruption budgets do to phones and to the plugin."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.history import NodeHistory
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import devices_held, healthy, owners
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import (
    INSUFFICIENT,
    LABEL,
    NO_HELP,
    NO_VICTIMS,
    PHONES,
    assert_unschedulable,
    events,
    prepare,
    undisturbed,
    waiting,
    web,
    why,
)
from tests.e2e.common.report import say
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster

item = Items()

NUMA: Final = {"aosp_binder0": 0, "aosp_binder3": 0, "aosp_binder6": 1, "aosp_binder9": 1}
"""The NUMA node of each phone."""
TAINT: Final = "maintenance"
WHILE: Final = 3.0
"""Seconds for which something that must not change is watched."""


@contextlib.contextmanager
def plugin_stays(cluster: Cluster) -> Iterator[None]:
    """Check at the end that the plugin's pod is the same, and that the Node object has shown the same amounts."""
    before = plugin.pod_on(cluster, cluster.machine)
    with NodeHistory(cluster, cluster.machine) as history:
        yield
    after = plugin.pod_on(cluster, cluster.machine)
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "the plugin's pod is another one"
    assert phones.container_of(after) == phones.container_of(before), "the plugin has restarted"
    assert history.amounts == [(PHONES, PHONES)], f"the Node object has shown {history}"


@item(
    "cordon: running phones stay, a new one waits; drain: phones leave and wait, the plugin stays; uncordon: they run"
)
def drain(cluster: Cluster) -> None:
    node = cluster.machine.name
    with web(cluster, PHONES - 1) as pods, plugin_stays(cluster):
        with undisturbed(cluster, pods):
            cluster.kubectl("cordon", node)
            phones.create(cluster, phones.pod("late"))
            (late,) = waiting(cluster, "late", 1)
            reason = "node(s) were unschedulable"
            assert_unschedulable(cluster, late, why(reason, NO_HELP))
        text = cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
        assert "ignoring DaemonSet-managed Pods: kube-system/aosp-device-plugin" in text, text
        assert not phones.running(cluster, "web"), "phones run after drain"
        waiting(cluster, "web", PHONES - 1)
        started = time.monotonic()
        cluster.kubectl("uncordon", node)
        found = phones.wait_running(cluster, "web", PHONES - 1) + phones.wait_running(cluster, "late", 1)
        say(f"# uncordoned; {time.monotonic() - started:.1f} s later all phones run")
        owners(cluster, found)
    phones.remove(cluster, "Pod", "late")


@item("drain refuses a phone without a controller, and evicts nothing; --force deletes it for good")
def drain_bare_pod(cluster: Cluster) -> None:
    node = cluster.machine.name
    with web(cluster, 1) as pods, plugin_stays(cluster):
        phones.create(cluster, phones.pod("bare"))
        phones.wait_running(cluster, "bare", 1)
        with undisturbed(cluster, pods):
            text = refused(cluster, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
            assert "cannot delete Pods that declare no controller (use --force to override): default/bare" in text, text
        cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force")
        cluster.kubectl("uncordon", node)
        phones.wait_running(cluster, "web", 1)
        assert not phones.of(cluster, "bare"), "the pod without a controller is back"


def refused(cluster: Cluster, *words: str) -> str:
    """Run kubectl, which must fail, and return its output."""
    try:
        text = cluster.kubectl(*words)
    except AssertionError as error:
        return str(error)
    raise AssertionError(f"kubectl {' '.join(words)} succeeded: {text}")


@item(
    "A PodDisruptionBudget lets drain evict one phone; its successor waits for the node, so drain does not get further"
)
def disruption_budget(cluster: Cluster) -> None:
    node = cluster.machine.name
    budgets = f"/apis/policy/v1/namespaces/{phones.DEFAULT}/poddisruptionbudgets"
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    with web(cluster, PHONES), plugin_stays(cluster):
        cluster.api.create(budgets, {"metadata": {"name": "web"}, "spec": spec})
        budget = f"{budgets}/web"
        until(lambda: cluster.api.get(budget)["status"]["disruptionsAllowed"] == 1, "the budget is counted")
        text = refused(cluster, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=8s")
        assert "Cannot evict pod as it would violate the pod's disruption budget." in text, text
        phones.wait_running(cluster, "web", PHONES - 1)
        waiting(cluster, "web", 1)
        cluster.kubectl("uncordon", node)
        phones.wait_running(cluster, "web", PHONES)
        cluster.api.delete(budget)


@item(
    "The node's label removed: the plugin's pod goes, phones run on and restart; new ones wait until the label is back"
)
def label(cluster: Cluster) -> None:
    machine = cluster.machine
    with web(cluster, PHONES - 1) as pods:
        with undisturbed(cluster, pods[1:]):
            before = owners(cluster, pods)
            started = time.monotonic()
            cluster.kubectl("label", "node", machine.name, f"{LABEL}-")
            until(lambda: not plugin.pods(cluster), "the plugin's pod is gone")
            until(lambda: plugin.capacity(cluster, machine) == (PHONES, 0), "allocatable is 0, capacity is not")
            say(f"# label removed; {time.monotonic() - started:.1f} s later the Node object shows {PHONES} and 0")
            # The kubelet has kept the plugin's answer.
            name = pods[0]["metadata"]["name"]
            phones.end_container(cluster, name)
            path = f"{phones.collection('Pod')}/{name}"
            until(lambda: phones.container_of(cluster.api.get(path))[1] == 1, "the container has restarted")
            assert owners(cluster, phones.wait_running(cluster, "web", PHONES - 1)) == before
            phones.create(cluster, phones.pod("late"))
            (late,) = waiting(cluster, "late", 1)
            # Not "No preemption victims found": the node has no devices that a preempted phone could leave behind.
            assert_unschedulable(cluster, late, why(INSUFFICIENT, NO_HELP))
            started = time.monotonic()
            cluster.kubectl("label", "node", machine.name, f"{LABEL}=true")
            (late,) = phones.wait_running(cluster, "late", 1)
            say(f"# label back; {time.monotonic() - started:.1f} s later the phone that waited runs")
            assert len(owners(cluster, [*phones.running(cluster, "web"), late])) == PHONES
        phones.remove(cluster, "Pod", "late")


@item("A taint NoSchedule keeps new phones away; NoExecute makes phones leave; the plugin stays with both")
def taints(cluster: Cluster) -> None:
    node = cluster.machine.name
    with web(cluster, PHONES - 1) as pods, plugin_stays(cluster):
        with undisturbed(cluster, pods):
            cluster.kubectl("taint", "node", node, f"{TAINT}=yes:NoSchedule")
            phones.create(cluster, phones.pod("late"))
            (late,) = waiting(cluster, "late", 1)
            assert_unschedulable(cluster, late, why("node(s) had untolerated taint(s)", NO_HELP))
        started = time.monotonic()
        cluster.kubectl("taint", "node", node, f"{TAINT}=yes:NoExecute")
        waiting(cluster, "web", PHONES - 1)
        say(f"# tainted NoExecute; {time.monotonic() - started:.1f} s later all phones wait")
        cluster.kubectl("taint", "node", node, f"{TAINT}-")
        owners(cluster, phones.wait_running(cluster, "web", PHONES - 1) + phones.wait_running(cluster, "late", 1))
    phones.remove(cluster, "Pod", "late")


@item("A phone of high priority preempts one of low priority, and gets its device; the other waits")
def preemption(cluster: Cluster) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    cluster.api.create(classes, {"metadata": {"name": "urgent"}, "value": 1000})
    with web(cluster, PHONES) as pods, plugin_stays(cluster):
        before = owners(cluster, pods)
        started = time.monotonic()
        phones.create(cluster, phones.pod("urgent", priorityClassName="urgent"))
        (urgent,) = phones.wait_running(cluster, "urgent", 1)
        say(f"# a phone of high priority runs {time.monotonic() - started:.1f} s after it was created")
        after = owners(cluster, [*phones.running(cluster, "web"), urgent])
        (victim,) = before.keys() - after.keys()
        assert after.pop("urgent") == before.pop(victim), f"before: {before}, after: {after}"
        assert after == before, f"before: {before}, after: {after}"
        (gone,) = (pod for pod in pods if pod["metadata"]["name"] == victim)
        found = ("Preempted", f"Preempted by pod {urgent['metadata']['uid']} on node {cluster.machine.name}")
        assert found in events(cluster, gone), f"{events(cluster, gone)}"
        (late,) = waiting(cluster, "web", 1)
        reason = why(INSUFFICIENT, NO_VICTIMS)
        assert_unschedulable(cluster, late, reason)
        phones.remove(cluster, "Pod", "urgent")
        phones.wait_running(cluster, "web", PHONES)
    cluster.api.delete(f"{classes}/urgent")


@item("A pod with nodeName passes the scheduler by: without a free phone the kubelet rejects it for good")
def node_name(cluster: Cluster) -> None:
    with web(cluster, PHONES) as pods, plugin_stays(cluster), undisturbed(cluster, pods):
        phones.create(cluster, phones.pod("direct", nodeName=cluster.machine.name))
        rejected = until(
            lambda: [p for p in phones.of(cluster, "direct") if p["status"]["phase"] == "Failed"], "rejected"
        )
        assert phones.reason(rejected[0]) == (
            "Failed UnexpectedAdmissionError Pod was rejected: Allocate failed due to requested number of devices "
            f"unavailable for {PHONE}. Requested: 1, Available: 0, which is unexpected"
        ), phones.reason(rejected[0])
        started = time.monotonic()
        phones.create(cluster, phones.deployment("flood", 1, nodeName=cluster.machine.name))
        until(lambda: len(phones.of(cluster, "flood")) > 3, "the Deployment has made several pods")
        holds(lambda: not phones.running(cluster, "flood"), "none of them runs", seconds=WHILE)
        count = len(phones.of(cluster, "flood"))
        say(f"# a Deployment of one phone with nodeName: {count} pods after {time.monotonic() - started:.1f} s")
        phones.remove(cluster, "Deployment", "flood")
    phones.remove(cluster, "Pod", "direct")


@item("single-numa-node: a pod whose two phones are on two NUMA nodes is rejected for good; on one node it runs")
def numa(cluster: Cluster) -> None:
    machine = cluster.machine
    plugin.uninstall(cluster)
    machine.run("sh", "-ec", FAKE_NODES)
    machine.kubelet.end()
    machine.configuration["topologyManagerPolicy"] = "single-numa-node"
    machine.start_kubelet()
    try:
        cluster.wait_node(machine)
        plugin.install(cluster, plugin.values(numa={"0-5": 0, "6-11": 1}))
        until(lambda: len(healthy(machine)) == PHONES, "the kubelet has the phones")
        prepare(cluster)
        for name in ("first", "second", "third"):
            phones.create(cluster, phones.pod(name))
            phones.wait_running(cluster, name, 1)
        held = owners(cluster, [phones.running(cluster, name)[0] for name in ("first", "second", "third")])
        near = {NUMA[held[name][1]] for name in ("first", "second")}
        assert near == {0}, f"{held}"
        assert NUMA[held["third"][1]] == 1, f"{held}"
        phones.remove(cluster, "Pod", "first")
        # One phone is free on each NUMA node.
        phones.create(cluster, phones.pod("apart", count=2))
        (pod,) = until(lambda: [pod for pod in phones.of(cluster, "apart") if "reason" in pod["status"]], "rejected")
        text = "Failed TopologyAffinityError Pod was rejected: Resources cannot be allocated with Topology locality"
        assert phones.reason(pod) == text, phones.reason(pod)
        phones.remove(cluster, "Pod", "second")
        phones.create(cluster, phones.pod("near", count=2))
        phones.wait_running(cluster, "near", 1)
        both = devices_held(machine, phones.DEFAULT, "near")
        assert {NUMA[phone] for phone in both} == {0}, f"{both}"
        for name in ("near", "apart", "third"):
            phones.remove(cluster, "Pod", name)
    finally:
        machine.kubelet.end()
        del machine.configuration["topologyManagerPolicy"]
        run(*machine.enter(), "umount", "/sys/devices/system/node")
        machine.start_kubelet()
        cluster.wait_node(machine)


FAKE_NODES: Final = """
directory=/run/numa
for node in 0 1; do
    mkdir -p $directory/node$node/hugepages
    ln -s /sys/devices/system/cpu/cpu$node $directory/node$node/cpu$node
    echo $node >$directory/node$node/cpulist
    cp /sys/devices/system/node/node0/meminfo $directory/node$node/meminfo
done
echo 10 20 >$directory/node0/distance
echo 20 10 >$directory/node1/distance
for file in has_cpu has_memory has_normal_memory online possible; do echo 0-1 >$directory/$file; done
mount --bind $directory /sys/devices/system/node
"""
"""Two NUMA nodes, with a processor each and the same memory, in the machine's mount namespace."""


@item("The group leaves no plugin behind")
def end(cluster: Cluster) -> None:
    plugin.uninstall(cluster)
