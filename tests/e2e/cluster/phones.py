"""Phones as people run them: Deployments, StatefulSets and pods, and what a phone sees from inside."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster.api import APPS, CORE
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.kubelet.pods import STAY, ContainerView, container, parse
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

DEFAULT: Final = "default"


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
    """Return the manifest of a Deployment of phones."""
    return _controller("Deployment", name, replicas, **options)


def stateful_set(name: str, replicas: int, **options: Any) -> dict[str, Any]:
    """Return the manifest of a StatefulSet of phones, without a Service."""
    manifest = _controller("StatefulSet", name, replicas, **options)
    manifest["spec"] |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    return manifest


def _controller(kind: str, name: str, replicas: int, **options: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, **options),
        },
    }


_COLLECTIONS: Final = {
    "Pod": (CORE, "pods"),
    "Deployment": (APPS, "deployments"),
    "StatefulSet": (APPS, "statefulsets"),
    "ReplicaSet": (APPS, "replicasets"),
}


def collection(kind: str) -> str:
    """Return the path of a collection."""
    group, plural = _COLLECTIONS[kind]
    return f"{group}/namespaces/{DEFAULT}/{plural}"


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


def view(cluster: Cluster, pod: dict[str, Any], container: str = "") -> ContainerView:
    """Return what a container sees, by default the only one, from its log, which the kubelet has."""
    metadata = pod["metadata"]
    path = f"{collection('Pod')}/{metadata['name']}/log"
    query = {"container": container} if container else {}
    return until(
        lambda: parse(cluster.api.text("GET", path, query=query).splitlines()),
        f"the report of {metadata['name']}",
        seconds=PATIENCE,
    )


def container_of(pod: dict[str, Any]) -> tuple[str, int]:
    """Return the ID and the restarts of a pod's first container."""
    status = pod["status"]["containerStatuses"][0]
    return status["containerID"], status["restartCount"]


def end_container(cluster: Cluster, name: str) -> None:
    """End the first process of a phone, so that the kubelet restarts the container."""
    # kubectl fails if the container ends before the command does.
    with contextlib.suppress(AssertionError):
        cluster.kubectl("exec", name, "--", "/bin/busybox", "kill", "1")


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
