"""Phones as people run them: Deployments, StatefulSets and pods; what a phone sees from inside, and whose it is."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.e2e.cluster import outside
from tests.e2e.cluster.api import APPS, CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.plugin import PHONE, SIZE, VALUES
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kubelet.node import natural_sort
from tests.e2e.kubelet.pods import PREFIX, STAY, ContainerView, container, parse

DEFAULT: Final = "default"
PATHS: Final[Sequence[str]] = VALUES["config"]["container_paths"]
RETRIED: Final = 5 * PATIENCE
"""Seconds within which a pod runs whose claim the kubelet could not prepare at first: it tries again after a minute.
That happens without a fault of the driver, if the API server does not know yet that the node may read the claim."""


def template(app: str, *, resource: str = PHONE, count: int = 1, then: str = STAY, **spec: Any) -> dict[str, Any]:
    """Return the pod template of a phone: a container that reports what it sees, and runs the script ``then``."""
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container("main", count, then=then, resource=resource)],
        }
        | spec,
    }


def pod(name: str, **options: Any) -> dict[str, Any]:
    """Return the manifest of a phone that no controller owns; the options are those of :func:`template`."""
    body = template(name, **options)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": body["metadata"] | {"name": name}, "spec": body["spec"]}


def deployment(name: str, replicas: int, **options: Any) -> dict[str, Any]:
    """Return the manifest of a Deployment of phones; the options are those of :func:`template`."""
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": replicas, "selector": selector, "template": template(name, **options)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def stateful_set(name: str, replicas: int) -> dict[str, Any]:
    """Return the manifest of a StatefulSet of phones, without a Service."""
    manifest = deployment(name, replicas) | {"kind": "StatefulSet"}
    manifest["spec"] |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return manifest


def collection(kind: str) -> str:
    """Return the path of a collection."""
    return f"{CORE if kind == 'Pod' else APPS}/namespaces/{DEFAULT}/{kind.lower()}s"


def create(cluster: Cluster, manifest: dict[str, Any]) -> None:
    """Create an object."""
    cluster.api.create(collection(manifest["kind"]), manifest)


def of(cluster: Cluster, app: str) -> list[dict[str, Any]]:
    """Return the pods of an app, without those that are being deleted."""
    pods = cluster.api.list(collection("Pod"), labelSelector=f"app={app}")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def running(cluster: Cluster, app: str) -> list[dict[str, Any]]:
    """Return the running pods of an app."""
    return [pod for pod in of(cluster, app) if pod["status"].get("phase") == "Running"]


def wait_running(cluster: Cluster, app: str, count: int, *, seconds: float = 2 * PATIENCE) -> list[dict[str, Any]]:
    """Wait until exactly this number of an app's pods is running, and return them, sorted by name."""

    def reached() -> list[dict[str, Any]]:
        pods = running(cluster, app)
        states = [f"{pod['metadata']['name']}: {reason(pod)}" for pod in of(cluster, app)]
        assert len(pods) == count, f"{len(pods)} run; {'; '.join(states)}"
        return pods or [{}]

    pods = until(reached, f"{count} pods of {app} run", seconds=seconds)
    return sorted((pod for pod in pods if pod), key=lambda pod: str(pod["metadata"]["name"]))


def run(cluster: Cluster, manifest: dict[str, Any], *, seconds: float = 0) -> list[dict[str, Any]]:
    """Create a pod or a controller of pods, wait until the pods run, and return them, sorted by name."""
    create(cluster, manifest)
    spec = manifest["spec"]
    claims = "resourceClaims" in spec.get("template", manifest)["spec"]
    limit = seconds or (RETRIED if claims else 2 * PATIENCE)
    return wait_running(cluster, manifest["metadata"]["name"], spec.get("replicas", 1), seconds=limit)


def remove(cluster: Cluster, kind: str, name: str, *, seconds: float = 2 * PATIENCE) -> None:
    """Delete an object, and wait until it and the pods of its app are gone."""
    cluster.api.delete(f"{collection(kind)}/{name}", propagationPolicy="Foreground")
    path = f"{collection(kind)}/{name}"
    until(lambda: cluster.api.find(path) is None, f"{kind} {name} is gone", seconds=seconds)
    pods = collection("Pod")
    until(
        lambda: not cluster.api.list(pods, labelSelector=f"app={name}"),
        f"the pods of {name} are gone",
        seconds=seconds,
    )


def view(cluster: Cluster, name: str, container: str = "main") -> ContainerView:
    """Return what a container of a pod sees, from its log, which the kubelet has."""
    path = f"{collection('Pod')}/{name}/log"
    return until(
        lambda: parse(cluster.api.text("GET", path, query={"container": container}).splitlines()),
        f"the report of {name}",
    )


def container_of(pod: dict[str, Any]) -> tuple[str, int]:
    """Return the ID and the restarts of a pod's first container."""
    status = pod["status"]["containerStatuses"][0]
    return status["containerID"], status["restartCount"]


def restart_container(cluster: Cluster, name: str) -> None:
    """End the first process of a phone, and wait until the kubelet has restarted the container."""
    path = f"{collection('Pod')}/{name}"
    _, restarts = container_of(cluster.api.get(path))
    # kubectl fails if the container ends before the command does.
    with contextlib.suppress(AssertionError):
        cluster.kubectl("exec", name, "--", "/bin/busybox", "kill", "1")

    def restarted() -> bool:
        (status,) = cluster.api.get(path)["status"]["containerStatuses"]
        return bool(status["restartCount"] == restarts + 1 and "running" in status["state"])

    until(restarted, f"the container of {name} has restarted")


def reason(pod: dict[str, Any]) -> str:
    """Return a pod's phase, and the reason and message of the state that explains it."""
    status = pod["status"]
    texts = [status.get("phase", ""), status.get("reason", ""), status.get("message", "")]
    for condition in status.get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            texts += [condition.get("reason", ""), condition.get("message", "")]
    for entry in status.get("containerStatuses", []):
        texts += map(str, entry["state"].get("waiting", {}).values())
    return " ".join(text for text in texts if text)


def phone_of(seen: ContainerView) -> str:
    """Return the device ID of a container's only phone. Raises AssertionError if it does not have a whole one.

    The names at the container's paths are those that the mount table has for the host's files.
    """
    members = natural_sort(seen.binder_devices)
    first = int(members[0].removeprefix(PREFIX)) if members else 0
    expected = [f"{PREFIX}{number}" for number in range(first, first + SIZE)]
    assert first % SIZE == 0, f"no phone begins with {members}"
    assert members == expected, f"in /dev: {members}"
    assert seen.visible == expected, f"in the environment: {seen.visible}, in /dev: {members}"
    bound = [seen.bound.get(path) for path in PATHS]
    assert bound == expected, f"{PATHS} are {bound}, in /dev: {members}"
    opened = {*expected, *(path.removeprefix("/dev/") for path in PATHS)}
    assert seen.opened == opened, f"opened: {seen.opened}, expected: {opened}"
    return expected[0]


def owners(
    cluster: Cluster,
    pods: Sequence[dict[str, Any]],
    held: Callable[[Machine, dict[str, Any]], set[str]] | None = None,
) -> dict[str, tuple[str, str]]:
    """Return node and device ID of the phone that each pod has, by the pod's name.

    Raises AssertionError if a pod does not have a whole phone, if two have the same one, or if ``held``, by default the
    kubelet, says that a pod has another one.
    """
    machines = {machine.name: machine for machine in cluster.machines}
    found: dict[str, tuple[str, str]] = {}
    for pod in pods:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        seen = phone_of(view(cluster, name))
        given = (held or outside.given)(machines[node], pod)
        assert given == {seen}, f"{name} sees {seen}, and the kubelet says {given}"
        found[name] = node, seen
    assert len(set(found.values())) == len(found), f"two pods have the same phone: {found}"
    return found
