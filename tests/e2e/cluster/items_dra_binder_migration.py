"""Items: the machine with a real binder driver moves from the device plugin to DRA and back, with the same pods.

With the newest Kubernetes: 1.34 uses DRA only on nodes that do not list the resource, not even with 0.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE
from tests.e2e.cluster import binder, binder_claims, dra, phones, plugin
from tests.e2e.cluster.binder import APP, COUNT, check_all, check_undisturbed, mounted, running
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_dra_migration import LABEL, RELEASE
from tests.e2e.cluster.items_dra_newest import upgrade
from tests.e2e.deploy.parts import CHART
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.guest import GuestMachine

item = Items()

HERE: Final = {"aosp.io/e2e": "guest"}


def prepare(cluster: Cluster) -> GuestMachine:
    """Install both releases, unless they are: the device plugin where the label is true, the driver where it is dra."""
    upgrade(cluster)
    machine = binder.node(cluster)
    if RELEASE in cluster.helm("list", "--short", f"--namespace={plugin.NAMESPACE}").split():
        return machine
    plugin.install(cluster, binder.values() | {"nodeSelector": HERE | {LABEL: "true"}}, f"--timeout={SLOW:.0f}s")
    path = cluster.directory / "dra.json"
    values = binder_claims.values(phones={"count": COUNT}) | {"nodeSelector": HERE | {LABEL: "dra"}}
    path.write_text(json.dumps(values))
    cluster.helm("install", RELEASE, str(CHART), f"--namespace={plugin.NAMESPACE}", f"--values={path}")
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    return machine


def move(cluster: Cluster, machine: GuestMachine, label: str) -> None:
    """Change the node's label, and wait until the other API offers all phones and the first one none."""
    cluster.kubectl("label", "node", machine.name, f"{LABEL}={label}", "--overwrite", seconds=SLOW)
    plugin.wait_allocatable(cluster, machine, 0 if label == "dra" else COUNT, seconds=SLOW)
    if label == "dra":
        dra.wait_published(cluster, machine, COUNT, seconds=SLOW)
        # Until then the kubelet wants PreStartContainer for containers with the extended resource.
        forgotten = f"the kubelet of {machine.name} has forgotten the device plugin"
        until(lambda: plugin.capacity(cluster, machine)[0] == 0, forgotten, seconds=2 * SLOW)
    else:
        until(lambda: not dra.slices(cluster, machine), "the slices are gone", seconds=SLOW)


def by_dra(found: list[binder.BinderPhone]) -> list[bool]:
    """Return of each pod whether it has its phone by a claim."""
    return ["extendedResourceClaimStatus" in phone.pod["status"] for phone in found]


@item("a drained node moves to DRA and back: unchanged pods have whole phones by either API, in which the clients work")
def there_and_back(cluster: Cluster) -> None:
    """After each move, every phone that is mounted belongs to the API that offers it."""
    machine = prepare(cluster)
    phones.create(cluster, binder.deployment())
    check_all(running(cluster))
    for label in ("dra", "true"):
        cluster.kubectl("drain", machine.name, "--ignore-daemonsets", f"--timeout={SLOW:.0f}s", seconds=SLOW)
        move(cluster, machine, label)
        cluster.kubectl("uncordon", machine.name, seconds=SLOW)
        found = running(cluster)
        assert by_dra(found) == [label == "dra"] * COUNT, f"{label}: {by_dra(found)}"
        check_all(found)
        seen = binder_claims.phones_of(found)
        own, other = mounted(machine, CLAIM_SOURCE), mounted(machine)
        if label == "true":
            own, other = other, own
        assert own.keys() == seen, f"{label}: mounted: {own}, the pods have {seen}"
        assert not other, f"{label}: phones of the other API are mounted: {other}"
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)


@item("a node moves to DRA under running pods: they run on, and their phones are offered when they have ended")
def under_running_pods(cluster: Cluster) -> None:
    """A claim gets the phone that no pod has."""
    machine = prepare(cluster)
    phones.create(cluster, binder.deployment() | {"spec": binder.deployment()["spec"] | {"replicas": COUNT - 1}})
    found = running(cluster, COUNT - 1)
    containers, taken = [phone.container for phone in found], binder_claims.phones_of(found)
    before = mounted(machine)
    cluster.kubectl("label", "node", machine.name, f"{LABEL}=dra", "--overwrite", seconds=SLOW)
    dra.wait_published(cluster, machine, 1, seconds=SLOW)
    dra.create(cluster, dra.template(dra.TEMPLATE, dra.request()))
    new = binder_claims.run_pod(cluster, binder_claims.pod("claiming"))
    assert new.phone() not in taken, f"{new.phone()}, taken: {taken}"
    binder.check(new, found[0])
    check_undisturbed(running(cluster, COUNT - 1), containers)
    after = mounted(machine)
    assert {name: after.get(name) for name in taken} == {name: before[name] for name in taken}, f"{after}"
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    dra.wait_published(cluster, machine, COUNT, seconds=SLOW)
    binder_claims.end(cluster, "claiming")
    binder_claims.wait_nothing(machine)
    move(cluster, machine, "true")


@item("both releases and the node are removed")
def removed(cluster: Cluster) -> None:
    """The group leaves the cluster as it was."""
    cluster.helm("uninstall", RELEASE, f"--namespace={plugin.NAMESPACE}", "--ignore-not-found", "--wait")
    binder_claims.remove(cluster)
