"""Phones under test: a Deployment of them, what must not happen to them, and why pods wait."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.ownership import owners
from tests.e2e.cluster.plugin import PHONE, SIZE
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster

PHONES: Final = DEVICES // SIZE
"""The phones of a machine."""
LABEL: Final = "aosp.io/binder"
INSUFFICIENT: Final = f"Insufficient {PHONE}"
NO_VICTIMS: Final = "No preemption victims found for incoming pod"
NO_HELP: Final = "Preemption is not helpful for scheduling"


def prepare(cluster: Cluster) -> None:
    """Install the plugin if it is not installed, and wait until all phones are allocatable."""
    if not plugin.pods(cluster):
        plugin.install(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)


def here(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return the part of a pod's specification that binds it to the first machine."""
    return {"nodeSelector": {"kubernetes.io/hostname": cluster.machine.name}}


@contextlib.contextmanager
def web(cluster: Cluster, replicas: int = PHONES, **options: Any) -> Iterator[list[dict[str, Any]]]:
    """Run a Deployment of phones, whose pods are the result; at the end remove it, and what keeps pods off the node."""
    prepare(cluster)
    phones.create(cluster, phones.deployment("web", replicas, **options))
    try:
        yield phones.wait_running(cluster, "web", replicas)
    finally:
        usual = {"metadata": {"labels": {LABEL: "true"}}, "spec": {"unschedulable": None, "taints": None}}
        cluster.api.patch(f"{CORE}/nodes/{cluster.machine.name}", usual)
        phones.remove(cluster, "Deployment", "web")


@contextlib.contextmanager
def undisturbed(cluster: Cluster, pods: list[dict[str, Any]]) -> Iterator[None]:
    """Check at the end that pods are the same, run the same containers, and have the same phones."""
    before = owners(cluster, pods)
    yield
    now = {pod["metadata"]["uid"]: pod for pod in phones.running(cluster, pods[0]["metadata"]["labels"]["app"])}
    for pod in pods:
        name, same = pod["metadata"]["name"], now.get(pod["metadata"]["uid"])
        assert same, f"{name} no longer runs"
        was, is_ = phones.container_of(pod), phones.container_of(same)
        assert was == is_, f"the container of {name} was {was}, and is {is_}"
    after = owners(cluster, pods)
    assert after == before, f"before: {before}, after: {after}"


def waiting(cluster: Cluster, app: str, count: int) -> list[dict[str, Any]]:
    """Wait until this number of an app's pods is Pending, and return them."""

    def pending() -> list[dict[str, Any]]:
        pods = [pod for pod in phones.of(cluster, app) if pod["status"]["phase"] == "Pending"]
        return pods if len(pods) == count else []

    return until(pending, f"{count} pods of {app} are Pending")


def why(reason: str, then: str) -> str:
    """Return the scheduler's message about a pod that fits none of one node; ``then`` is about preemption."""
    nodes = "0/1 nodes are available: 1"
    return f"{nodes} {reason}. no new claims to deallocate, preemption: {nodes} {then}."


def assert_unschedulable(cluster: Cluster, pod: dict[str, Any], message: str) -> None:
    """Check that a pod waits for the scheduler with this message, in its status and in its events."""
    expected = f"Pending Unschedulable {message}"
    path = f"{phones.collection('Pod', pod['metadata']['namespace'])}/{pod['metadata']['name']}"
    reason = until(lambda: phones.reason(cluster.api.get(path)).removeprefix("Pending").strip(), "the reason")
    assert f"Pending {reason}" == expected, reason
    until(lambda: ("FailedScheduling", message) in events(cluster, pod), "an event has the message")


def events(cluster: Cluster, thing: dict[str, Any]) -> list[tuple[str, str]]:
    """Return reason and message of each event of an object."""
    metadata = thing["metadata"]
    selector = f"involvedObject.uid={metadata['uid']}"
    found = cluster.api.list(f"{CORE}/namespaces/{metadata['namespace']}/events", fieldSelector=selector)
    return [(event["reason"], event["message"]) for event in found]
