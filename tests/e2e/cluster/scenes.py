"""Phones under test: a Deployment of them, what must not happen to them, and why pods wait."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import DEVICES, Machine
from tests.e2e.cluster.phones import owners
from tests.e2e.cluster.plugin import PHONE, SIZE
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kubelet.pods import PREFIX

PHONES: Final = DEVICES // SIZE
"""The phones of a machine."""
RUNNING: Final = 2
"""The phones that run during an update or a failure; others are free."""
LABEL: Final = "aosp.io/binder"
INSUFFICIENT: Final = f"Insufficient {PHONE}"


def prepare(cluster: Cluster) -> None:
    """Install the plugin if it is not installed, and wait until all phones are allocatable."""
    if not plugin.pods(cluster):
        plugin.install(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)


@contextlib.contextmanager
def web(cluster: Cluster, replicas: int = PHONES) -> Iterator[list[dict[str, Any]]]:
    """Run a Deployment of phones, whose pods are the result; at the end remove it, and label the node."""
    prepare(cluster)
    try:
        yield phones.run(cluster, phones.deployment("web", replicas))
    finally:
        cluster.kubectl("label", "node", cluster.machine.name, f"{LABEL}=true", "--overwrite")
        phones.remove(cluster, "Deployment", "web")


@contextlib.contextmanager
def without(cluster: Cluster, phone: str) -> Iterator[None]:
    """Remove the second binder device of a phone of the first machine, and create it again at the end."""
    cluster.machine.run("rm", f"/dev/{PREFIX}{int(phone.removeprefix(PREFIX)) + 1}")
    try:
        yield
    finally:
        cluster.machine.create_devices()


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


def free_phone(cluster: Cluster) -> None:
    """Check that one more phone starts."""
    assert len(owners(cluster, phones.run(cluster, phones.pod("further")))) == 1
    phones.remove(cluster, "Pod", "further")


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


def kill_plugin(cluster: Cluster, machine: Machine, *, seconds: float = 2 * PATIENCE) -> None:
    """Kill the plugin's process on a machine, and wait until the kubelet has started it again and it is ready."""
    container, restarts = phones.container_of(plugin.pod_on(cluster, machine))
    machine.runtime.kill(container.removeprefix("containerd://"))

    def ready() -> bool:
        status = plugin.pod_on(cluster, machine)["status"]["containerStatuses"][0]
        return bool(status["restartCount"] > restarts and status["ready"])

    until(ready, "the plugin was started again", seconds=seconds)


def restart_plugin(cluster: Cluster, seconds: float = 120) -> None:
    """Restart the plugin's pods by a rolling update, as people do."""
    target = (f"daemonset/{plugin.NAME}", f"--namespace={plugin.NAMESPACE}")
    cluster.kubectl("rollout", "restart", *target, seconds=seconds)
    cluster.kubectl("rollout", "status", *target, f"--timeout={seconds:.0f}s", seconds=seconds + 10)


def events(cluster: Cluster, thing: dict[str, Any]) -> list[tuple[str, str]]:
    """Return reason and message of each event of an object."""
    metadata = thing["metadata"]
    selector = f"involvedObject.uid={metadata['uid']}"
    found = cluster.api.list(f"{CORE}/namespaces/{metadata['namespace']}/events", fieldSelector=selector)
    return [(event["reason"], event["message"]) for event in found]
