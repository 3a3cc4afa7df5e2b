"""Items: phones with a binderfs for each claim on a real binder driver, with Android's binder software in them.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE
from tests.e2e.cluster import binder, dra, phones, plugin
from tests.e2e.cluster.binder import APP, COUNT, RESTRICTED, SCRIPT, check_all, check_undisturbed, running
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_rollout import restart_plugin
from tests.e2e.cluster.outside import CDI
from tests.e2e.kernel.phones import DIRECTORY
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.guest import GuestMachine

item = Items()

_SPECS: Final = " ".join(f"/{directory}/{dra.DRIVER}-claim_*" for directory in CDI)


def left(machine: GuestMachine) -> list[str]:
    """Return the directories of phones and the CDI specs of claims on the machine."""
    return machine.run("sh", "-c", f"ls {DIRECTORY} 2>/dev/null; ls {_SPECS} 2>/dev/null; true", seconds=SLOW).split()


@item("the chart with api: dra: pods with a claim each have a binderfs each, in which Android's binder software works")
def claimed(cluster: Cluster) -> None:
    """The slices have what the kernel says; no other phone is mounted; the device plugin offers nothing."""
    machine = binder.node(cluster)
    binder.install(cluster, binder.values(api="dra", phones={"count": COUNT + 1}))
    dra.create(cluster, dra.template(dra.TEMPLATE, dra.request()))
    dra.wait_published(cluster, machine, COUNT + 1, seconds=SLOW)
    attributes = dra.devices(cluster, machine)["phone0"]["attributes"]
    assert attributes["binderDevices"]["int"] == 3, attributes
    plugin.require_not_offered(cluster, machine)
    assert not left(machine), left(machine)
    options = dra.claiming()
    resources = options["containers"][0]["resources"]
    options["containers"] = [container("main", then=SCRIPT, resources=resources, securityContext=RESTRICTED)]
    phones.create(cluster, phones.deployment(APP, COUNT, **options))
    found = running(cluster)
    check_all(found)
    assert binder.mounted(machine, CLAIM_SOURCE).keys() == {phone.phone() for phone in found}


@item("the driver is killed and rolled out again: phones, service managers and mounts are as before")
def driver_replaced(cluster: Cluster) -> None:
    """The kubelet starts the killed one again; a rollout replaces its pod."""
    machine, found = binder.node(cluster), running(cluster)
    before, (identifier, restarts) = (
        binder.mounted(machine, CLAIM_SOURCE),
        phones.container_of(plugin.pod_on(cluster, machine)),
    )
    machine.runtime.kill(identifier.removeprefix("containerd://"))

    def restarted() -> bool:
        return phones.container_of(plugin.pod_on(cluster, machine))[1] > restarts

    until(restarted, "the driver is started again", seconds=SLOW)
    check_undisturbed(running(cluster), found)
    restart_plugin(cluster, SLOW)
    dra.wait_published(cluster, machine, COUNT + 1, seconds=SLOW)
    check_undisturbed(running(cluster), found)
    assert binder.mounted(machine, CLAIM_SOURCE) == before, f"before: {before}"


@item("the driver and the node are removed")
def removed(cluster: Cluster) -> None:
    """The group leaves the cluster as it was."""
    machine = binder.node(cluster)
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    until(lambda: not left(machine), "nothing of claims is left", seconds=SLOW)
    dra.remove(cluster)
    cluster.api.delete(dra.SLICES, fieldSelector=f"spec.driver={dra.DRIVER}")  # the kubelet ends before it does so
    binder.remove_node(cluster)
