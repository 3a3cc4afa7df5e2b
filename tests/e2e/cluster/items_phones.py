"""Items: phones that the scheduler places, as Deployment and StatefulSet, with a quota, and with a second resource."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import documented, phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import devices_held, healthy, owners, phone_of
from tests.e2e.cluster.plugin import PHONE, SIZE
from tests.e2e.cluster.scenes import (
    INSUFFICIENT,
    NO_HELP,
    NO_VICTIMS,
    PHONES,
    assert_unschedulable,
    events,
    prepare,
    why,
)
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.cluster.cluster import Cluster

item = Items()

REPORT: Final = 10.0
"""Seconds between two reports of the kubelet to the API server."""
NAMESPACE: Final = "tenant"
QUOTA: Final = f"requests.{PHONE}"
SIDECAR: Final = "aosp.io/sidecar"
SIDECAR_PREFIX: Final = "sidecar_binder"


@item("A Deployment's phones have a phone each, at Android's paths; the kubelet and the pods agree on which")
def deployment(cluster: Cluster) -> None:
    prepare(cluster)
    phones.create(cluster, phones.deployment("web", PHONES))
    assert len(owners(cluster, phones.wait_running(cluster, "web", PHONES))) == PHONES
    phones.remove(cluster, "Deployment", "web")


@item("A container that restarts has the same phone as before")
def restart(cluster: Cluster) -> None:
    prepare(cluster)
    phones.create(cluster, phones.deployment("web", PHONES))
    pods = phones.wait_running(cluster, "web", PHONES)
    before, (container, restarts) = owners(cluster, pods), phones.container_of(pods[0])
    name = pods[0]["metadata"]["name"]
    phones.end_container(cluster, name)

    def restarted() -> bool:
        now = phones.container_of(cluster.api.get(f"{phones.collection('Pod')}/{name}"))
        return now[0] != container and now[1] == restarts + 1

    until(restarted, f"the container of {name} has restarted")
    after = owners(cluster, phones.wait_running(cluster, "web", PHONES))
    assert after == before, f"before: {before}, after: {after}"
    phones.remove(cluster, "Deployment", "web")


@item("A StatefulSet's pod that is deleted comes back with its name, as another pod, and has a phone")
def stateful_set(cluster: Cluster) -> None:
    prepare(cluster)
    phones.create(cluster, phones.stateful_set("phone", PHONES))
    pods = phones.wait_running(cluster, "phone", PHONES)
    names = [pod["metadata"]["name"] for pod in pods]
    assert names == [f"phone-{number}" for number in range(PHONES)], f"{names}"
    before = owners(cluster, pods)
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
    cluster.api.delete(f"{phones.collection('Pod')}/phone-1")

    def replaced() -> bool:
        pod = cluster.api.get(f"{phones.collection('Pod')}/phone-1")
        return bool(pod["metadata"]["uid"] != uids["phone-1"])

    until(replaced, "phone-1 is another pod")
    pods = phones.wait_running(cluster, "phone", PHONES)
    after = owners(cluster, pods)
    kept = {name: pod for name, pod in after.items() if name != "phone-1"}
    assert kept == {name: before[name] for name in kept}, f"before: {before}, after: {after}"
    assert [pod["metadata"]["uid"] for pod in pods if pod["metadata"]["name"] != "phone-1"] == [
        uid for name, uid in uids.items() if name != "phone-1"
    ], "other pods were replaced"
    phones.remove(cluster, "StatefulSet", "phone")


@item("Phones beyond the node's number are Pending with the scheduler's reason, and run as soon as devices appear")
def pending(cluster: Cluster) -> None:
    prepare(cluster)
    total = PHONES + 2
    phones.create(cluster, phones.deployment("many", total))
    phones.wait_running(cluster, "many", PHONES)
    waiting = [pod for pod in phones.of(cluster, "many") if pod["status"]["phase"] == "Pending"]
    expected = why(INSUFFICIENT, NO_VICTIMS)
    for pod in waiting:
        assert_unschedulable(cluster, pod, expected)
    machine = cluster.machine
    shown = documented.runbook(cluster, "HEALTHY:").split()
    expected_words = ["NODE", "ALL", "HEALTHY", machine.name, str(PHONES), str(PHONES), "Allocated", "resources:"]
    assert shown[: len(expected_words)] == expected_words, f"{shown}"
    assert shown[shown.index(PHONE) :][:3] == [PHONE, str(PHONES), str(PHONES)], f"{shown}"
    pod = plugin.pod_on(cluster, machine)
    started = time.monotonic()

    def after(condition: Callable[[], object], what: str) -> float:
        until(condition, what, seconds=REPORT + 20)
        return time.monotonic() - started

    machine.nodes("create", "--stand-ins", "--count", str(total * SIZE))
    published = after(lambda: plugin.metric(cluster, pod, "devices", health="healthy") == total, "the plugin publishes")
    known = after(lambda: len(healthy(machine)) == total, "the kubelet knows the devices")
    reported = after(lambda: plugin.capacity(cluster, machine) == (total, total), "the Node object has the devices")
    running = after(lambda: len(phones.running(cluster, "many")) == total, "all phones run")
    say(
        f"# devices created; {published:.1f} s later published, {known:.1f} s known to the kubelet, "
        f"{reported:.1f} s on the Node object, {running:.1f} s all phones run"
    )
    assert known < REPORT / 2, f"the kubelet knew the devices after {known:.1f} s"
    assert reported < REPORT + 3, f"the Node object had the devices after {reported:.1f} s"
    owners(cluster, phones.running(cluster, "many"))
    phones.remove(cluster, "Deployment", "many")
    machine.nodes("delete")
    machine.nodes("create", "--stand-ins", "--count", str(DEVICES))


@item("A phone that no node could ever have waits: the scheduler says that preemption does not help")
def too_large(cluster: Cluster) -> None:
    prepare(cluster)
    phones.create(cluster, phones.pod("large", count=PHONES + 1))
    (pod,) = phones.of(cluster, "large")
    assert_unschedulable(cluster, pod, why(INSUFFICIENT, NO_HELP))
    phones.remove(cluster, "Pod", "large")


@item("A ResourceQuota limits the phones of a namespace: the API server refuses further pods, with its usage")
def quota(cluster: Cluster) -> None:
    prepare(cluster)
    cluster.api.create(f"{CORE}/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"{CORE}/namespaces/{NAMESPACE}/serviceaccounts/default"
    until(lambda: cluster.api.find(account), "the namespace has its service account")
    quotas = f"{CORE}/namespaces/{NAMESPACE}/resourcequotas"
    cluster.api.create(quotas, {"metadata": {"name": "phones"}, "spec": {"hard": {QUOTA: "2"}}})
    until(lambda: cluster.api.get(f"{quotas}/phones")["status"].get("used") == {QUOTA: "0"}, "the quota is counted")
    phones.create(cluster, phones.deployment("web", 3), NAMESPACE)
    owners(cluster, phones.wait_running(cluster, "web", 2, NAMESPACE))
    usage = f"exceeded quota: phones, requested: {QUOTA}=1, used: {QUOTA}=2, limited: {QUOTA}=2"
    error = phones.refused(cluster, phones.pod("third"), NAMESPACE)
    assert str(error) == f'403 Forbidden: pods "third" is forbidden: {usage}', f"{error}"
    (replicas,) = cluster.api.list(phones.collection("ReplicaSet", NAMESPACE))
    messages = until(lambda: [m for r, m in events(cluster, replicas) if r == "FailedCreate"], "the event")
    # After ten events, the API has one with the prefix "(combined from similar events): ".
    assert all("Error creating: pods " in message and usage in message for message in messages), f"{messages}"
    # Other namespaces are not limited.
    phones.create(cluster, phones.pod("other"))
    phones.wait_running(cluster, "other", 1)
    phones.remove(cluster, "Pod", "other")
    # The controller of ReplicaSets does not watch quotas, and tries again ever later; a change of the object ends that.
    cluster.api.patch(f"{quotas}/phones", {"spec": {"hard": {QUOTA: "3"}}})
    cluster.kubectl("annotate", f"--namespace={NAMESPACE}", f"replicaset/{replicas['metadata']['name']}", "retry=1")
    started = time.monotonic()
    phones.wait_running(cluster, "web", 3, NAMESPACE)
    say(f"# quota raised and ReplicaSet annotated; {time.monotonic() - started:.1f} s later the third phone runs")
    cluster.kubectl("delete", "namespace", NAMESPACE)


@item("A pod that requests two resources of one plugin has the devices of both; if one lacks, the scheduler names it")
def two_resources(cluster: Cluster) -> None:
    machine = cluster.machine
    machine.nodes("create", "--stand-ins", "--count", "1", "--prefix", SIDECAR_PREFIX)
    config = plugin.VALUES["config"]
    keys = ("resource_name", "sets", "container_paths")
    resources = [
        {key: config[key] for key in keys},
        {"resource_name": SIDECAR, "device_prefix": SIDECAR_PREFIX, "visible_devices_env": "SIDECARS"},
    ]
    plugin.install(cluster, plugin.values(resources=resources, **dict.fromkeys(keys)))
    plugin.wait_allocatable(cluster, machine, PHONES)
    plugin.wait_allocatable(cluster, machine, 1, SIDECAR)
    manifest = phones.deployment("both", 2)
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {PHONE: 1, SIDECAR: 1}
    phones.create(cluster, manifest)
    (pod,) = phones.wait_running(cluster, "both", 1)
    view, name = phones.view(cluster, pod), pod["metadata"]["name"]
    sidecar = f"{SIDECAR_PREFIX}0"
    assert view.environment["SIDECARS"] == sidecar, f"{view.environment}"
    assert view.named(SIDECAR_PREFIX) == {sidecar} <= view.opened, f"{view.devices} {view.opened}"
    held = devices_held(machine, phones.DEFAULT, name, SIDECAR)
    assert held == {sidecar}, f"the kubelet says {held}"
    view.opened.discard(sidecar)
    assert {phone_of(view)} == devices_held(machine, phones.DEFAULT, name), f"{view.visible}"
    (waiting,) = (other for other in phones.of(cluster, "both") if other["metadata"]["name"] != name)
    assert_unschedulable(cluster, waiting, why(f"Insufficient {SIDECAR}", NO_VICTIMS))
    phones.remove(cluster, "Deployment", "both")
    plugin.uninstall(cluster)
    machine.nodes("delete", "--prefix", SIDECAR_PREFIX)
