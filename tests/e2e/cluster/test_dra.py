"""The plugin as a DRA driver, from its installation to its end; pods with claims; a kubelet that restarts."""

import signal

import pytest

from tests.e2e.cluster import dra, leftovers, phones, plugin, watching
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.dra import Undisturbed
from tests.e2e.cluster.scenes import PHONES
from tests.e2e.common.waiting import PATIENCE, until

pytestmark = pytest.mark.core


def test_installs(cluster: Cluster) -> None:
    """The chart with api: dra: a pod is ready when its node's phones are in ResourceSlices, which the Node owns."""
    plugin.install(cluster, dra.values())
    machine = cluster.machine
    # Ready means published: nothing is waited for here.
    published = dra.devices(cluster, machine)
    assert published.keys() == {f"aosp_binder{number}" for number in (0, 3, 6, 9)}, published
    assert {device["name"] for device in published.values()} == {f"aosp-binder{n}" for n in (0, 3, 6, 9)}, published
    node = cluster.api.get(f"{CORE}/nodes/{machine.name}")
    for found in dra.slices(cluster, machine):
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"]), owner
        pool = found["spec"]["pool"]
        assert (pool["generation"], pool["resourceSliceCount"]) == (1, 1), pool
    plugin.require_not_offered(cluster, machine)
    checked = cluster.api.get("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/aosp-device-plugin")
    warnings = checked.get("status", {}).get("typeChecking", {}).get("expressionWarnings", [])
    assert not warnings, f"the policy's expressions: {warnings}"
    assert dra.sockets(machine), "no socket of the driver"


def test_template(cluster: Cluster, driver: None) -> None:
    """Pods with claims of a template have a phone each; a deleted pod's claim is unprepared, its phone free again."""
    machine = cluster.machine
    pods = phones.run(cluster, dra.deployment("web", PHONES))
    assert len(dra.owners(cluster, pods)) == PHONES
    claims = [claim for pod in pods for claim in dra.claims_of(cluster, pod)]
    assert all(dra.prepared(machine, claim) for claim in claims)
    phones.remove(cluster, "Deployment", "web")
    dra.wait_unprepared(machine, *claims)
    assert not dra.specs(machine), dra.specs(machine)
    until(lambda: not cluster.api.list(dra.CLAIMS), "the claims are gone")
    assert len(dra.owners(cluster, phones.run(cluster, dra.deployment("web", PHONES)))) == PHONES
    phones.remove(cluster, "Deployment", "web")


def test_kubelet_restart(cluster: Cluster, pods: Undisturbed) -> None:
    """The kubelet restarts and deletes all slices: they are written again, and pods with claims run on."""
    own = phones.container_of(plugin.pod_on(cluster, cluster.machine))
    history = watching.of_slices(cluster, cluster.machine)
    cluster.machine.kubelet.end(signal.SIGKILL)
    cluster.machine.start_kubelet()

    def are_back() -> bool:
        events = [(found["metadata"]["name"], kind) for kind, found in history.events()]
        last = dict(events)
        return "DELETED" in {kind for _, kind in events} and "DELETED" not in last.values()

    # Shorter than Timings.slice_relist: by the watch.
    until(are_back, "the slices were deleted and are back", seconds=2 * PATIENCE)
    cluster.wait_node(cluster.machine)
    pods.check()
    assert phones.container_of(plugin.pod_on(cluster, cluster.machine)) == own, "the driver was started again"
    # The kubelet knows the driver again: it prepares another pod's claim, and unprepares those of the first ones.
    phones.run(cluster, dra.pod("later"))
    # The claims of earlier pods may go after the pods.
    until(lambda: len(cluster.api.list(dra.CLAIMS)) == 3, "each pod has a claim, and there are no others")
    phones.remove(cluster, "Pod", "later")
    pods.end()


def test_uninstall(cluster: Cluster, driver: None) -> None:
    """Uninstalled, the driver leaves no object, no slice, and no file on the node."""
    dra.remove(cluster)
    # The kubelet deletes them 30 s after the driver has ended.
    until(lambda: not dra.slices(cluster, cluster.machine), "the slices are gone", seconds=3 * PATIENCE)
    leftovers.require_none(cluster)
    assert not dra.sockets(cluster.machine), dra.sockets(cluster.machine)
    assert not dra.specs(cluster.machine), dra.specs(cluster.machine)
    named = cluster.kubectl("get", "deviceclasses", "--output=name")
    assert dra.DRIVER not in named, named
