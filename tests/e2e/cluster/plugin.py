"""The plugin in the cluster: installed by its chart, with a configuration for stand-in devices."""

import copy
import json
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster.api import APPS, CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.deploy.parts import CHART
from tests.e2e.kubelet.parts import PLUGIN_IMAGE

NAMESPACE: Final = "kube-system"
NAME: Final = "aosp-device-plugin"
LABEL: Final = f"app.kubernetes.io/name={NAME}"
PHONE: Final = "aosp.io/phone"
SIZE: Final = 3
"""Binder devices of a phone."""
DAEMON_SET: Final = f"{APPS}/namespaces/{NAMESPACE}/daemonsets/{NAME}"
PODS: Final = f"{CORE}/namespaces/{NAMESPACE}/pods"

_REPOSITORY, _, _TAG = PLUGIN_IMAGE.rpartition(":")
VALUES: Final[dict[str, Any]] = {
    "image": {"repository": _REPOSITORY, "tag": _TAG},
    "config": {
        "version": "v1",
        # The devices are stand-ins: character devices that are not binder.
        "verify": "char",
        "resource_name": PHONE,
        "sets": {"size": SIZE},
        "container_paths": ["/dev/binder", "/dev/hwbinder", "/dev/vndbinder"],
    },
}
"""The chart's values: three stand-ins form a phone."""


def values(**config: Any) -> dict[str, Any]:
    """Return VALUES with more configuration keys; None removes a key."""
    changed = copy.deepcopy(VALUES)
    changed["config"] = {key: value for key, value in (changed["config"] | config).items() if value is not None}
    return changed


def install(cluster: Cluster, values: dict[str, Any] = VALUES, *options: str, seconds: float = 4 * PATIENCE) -> None:
    """Install or upgrade the release, and wait until the plugin is rolled out."""
    release(cluster, values, *options)
    # Helm accepts maxUnavailable pods that are not ready, which is one on a single node.
    until(lambda: _rolled_out(cluster), "all pods of the plugin are new and ready", seconds=seconds)


def release(cluster: Cluster, values: dict[str, Any], *options: str) -> None:
    """Install or upgrade the release."""
    path = cluster.directory / "values.json"
    path.write_text(json.dumps(values))
    words = ("upgrade", "--install", NAME, str(CHART), f"--namespace={NAMESPACE}", f"--values={path}")
    cluster.helm(*words, "--wait", "--timeout=120s", *options)


def _rolled_out(cluster: Cluster) -> bool:
    daemon_set = cluster.api.get(DAEMON_SET)
    status, desired = daemon_set["status"], daemon_set["status"]["desiredNumberScheduled"]
    current = status.get("observedGeneration") == daemon_set["metadata"]["generation"]
    return bool(current and desired and status.get("updatedNumberScheduled", 0) == status["numberReady"] == desired)


def uninstall(cluster: Cluster) -> None:
    """Uninstall the release if it is installed, and wait until the plugin's pods have ended."""
    cluster.helm("uninstall", NAME, f"--namespace={NAMESPACE}", "--ignore-not-found", "--wait")
    until(lambda: not pods(cluster), "the plugin's pods have ended", seconds=2 * PATIENCE)


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the plugin's pods."""
    return cluster.api.list(PODS, labelSelector=LABEL)


def pod_on(cluster: Cluster, machine: Machine) -> dict[str, Any]:
    """Return the plugin's pod on a machine. Raises LookupError if there is not exactly one that is not ending."""
    found = [
        pod
        for pod in pods(cluster)
        if pod["spec"].get("nodeName") == machine.name and "deletionTimestamp" not in pod["metadata"]
    ]
    if len(found) != 1:
        raise LookupError(f"{machine.name} has {len(found)} pods of the plugin")
    return found[0]


def status(cluster: Cluster, machine: Machine, *, seconds: float = 120) -> dict[str, Any]:
    """Return what ``aosp-plugin status`` reports on a machine."""
    words = ("exec", f"--namespace={NAMESPACE}", pod_on(cluster, machine)["metadata"]["name"], "--")
    found: dict[str, Any] = json.loads(cluster.kubectl(*words, "aosp-plugin", "status", "--json", seconds=seconds))
    return found


def log(cluster: Cluster) -> str:
    """Return the log of the plugin on the first machine."""
    return cluster.api.text("GET", f"{PODS}/{pod_on(cluster, cluster.machine)['metadata']['name']}/log")


def capacity(cluster: Cluster, machine: Machine) -> tuple[int, int]:
    """Return capacity and allocatable of the Node object; 0 if it does not list the resource."""
    status = cluster.api.get(f"{CORE}/nodes/{machine.name}")["status"]
    return int(status["capacity"].get(PHONE, 0)), int(status["allocatable"].get(PHONE, 0))


def wait_allocatable(cluster: Cluster, machine: Machine, count: int, *, seconds: float = 2 * PATIENCE) -> None:
    """Wait until the Node object has this number of allocatable devices; the kubelet reports it every 10 s."""
    what = f"{machine.name} has {count} allocatable {PHONE}"
    until(lambda: capacity(cluster, machine)[1] == count, what, seconds=seconds)


def require_not_offered(cluster: Cluster, machine: Machine) -> None:
    """Check that the device plugin API offers no phone on a machine.

    The sockets are current. The Node object lags, and may still list the devices of an earlier installation.
    """
    entries = machine.run("ls", "/var/lib/kubelet/device-plugins").split()
    assert not [name for name in entries if name.startswith("aosp-") and name.endswith(".sock")], entries
    wait_allocatable(cluster, machine, 0)


def metric(cluster: Cluster, pod: dict[str, Any], name: str, **labels: str) -> float:
    """Return the sum of a metric's series that have these labels. Raises LookupError if there is none."""
    text = cluster.api.text("GET", f"{PODS}/{pod['metadata']['name']}:9478/proxy/metrics")
    found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    series = f"aosp_plugin_{name}"
    values = [each.value for each in found if each.name == series and labels.items() <= each.labels.items()]
    if not values:
        raise LookupError(f"no metric {name} with {labels}")
    return sum(values)
