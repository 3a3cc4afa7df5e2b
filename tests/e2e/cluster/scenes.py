"""Phones under test: a Deployment of them, what must not happen to them, and why pods wait."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.ownership import owners
from tests.e2e.cluster.plugin import PHONE, SIZE
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster

PHONES: Final = DEVICES // SIZE
"""The phones of a machine."""
LABEL: Final = "aosp.io/binder"
INSUFFICIENT: Final = f"Insufficient {PHONE}"


def prepare(cluster: Cluster) -> None:
    """Install the plugin if it is not installed, and wait until all phones are allocatable."""
    if not plugin.pods(cluster):
        plugin.install(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)


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
def without(cluster: Cluster, phone: str) -> Iterator[None]:
    """Remove the second binder device of a phone of the first machine, and create it again at the end."""
    cluster.machine.run("rm", f"/dev/{PREFIX}{int(phone.removeprefix(PREFIX)) + 1}")
    try:
        yield
    finally:
        restore(cluster)


def restore(cluster: Cluster) -> None:
    """Create the missing binder devices of the first machine."""
    cluster.machine.device_tool("create", "--stand-ins", "--count", str(DEVICES))


def containers(pods: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """Return container and restarts of each pod, by the pod's UID."""
    return {pod["metadata"]["uid"]: phones.container_of(pod) for pod in pods}


@contextlib.contextmanager
def undisturbed(cluster: Cluster, pods: list[dict[str, Any]]) -> Iterator[None]:
    """Check at the end that pods are the same, run the same containers, and have the same phones."""
    before, devices = containers(pods), owners(cluster, pods)
    yield
    app = pods[0]["metadata"]["labels"]["app"]
    now = containers(phones.running(cluster, app))
    assert before.items() <= now.items(), f"before: {before}, now: {now}"
    after = owners(cluster, pods)
    assert after == devices, f"before: {devices}, after: {after}"


def waiting(cluster: Cluster, app: str, count: int, reason: str) -> None:
    """Wait until this number of an app's pods is Pending, with this in the scheduler's reason, which an event has."""

    def pending() -> bool:
        pods = [pod for pod in phones.of(cluster, app) if pod["status"]["phase"] == "Pending"]
        texts = [phones.reason(pod) for pod in pods]
        assert len(pods) == count, f"{len(pods)} are Pending"
        assert all("Unschedulable" in text and reason in text for text in texts), texts
        return all(
            any(kind == "FailedScheduling" and reason in text for kind, text in events(cluster, pod)) for pod in pods
        )

    until(pending, f"{count} pods of {app} are Pending")


def events(cluster: Cluster, thing: dict[str, Any]) -> list[tuple[str, str]]:
    """Return reason and message of each event of an object."""
    metadata = thing["metadata"]
    selector = f"involvedObject.uid={metadata['uid']}"
    found = cluster.api.list(f"{CORE}/namespaces/{metadata['namespace']}/events", fieldSelector=selector)
    return [(event["reason"], event["message"]) for event in found]
