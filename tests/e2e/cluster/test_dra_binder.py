"""Phones with a binderfs for each claim on a real binder driver, with Android's binder software in them.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`.
"""

from typing import Final

from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE
from tests.e2e.cluster import binder, dra, phones, plugin
from tests.e2e.cluster.binder import APP, COUNT, check_all, check_undisturbed, running
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.guest import SLOW, GuestMachine
from tests.e2e.cluster.outside import CDI
from tests.e2e.cluster.scenes import kill_plugin, restart_plugin
from tests.e2e.common.waiting import until
from tests.e2e.kernel.aosp import RESTRICTED, SCRIPT
from tests.e2e.kernel.phones import DIRECTORY
from tests.e2e.kubelet.pods import container

_SPECS: Final = " ".join(f"/{directory}/{dra.DRIVER}-claim_*" for directory in CDI)


def left(guest: GuestMachine) -> list[str]:
    """Return the directories of phones and the CDI specs of claims on the guest."""
    return guest.run("sh", "-c", f"ls {DIRECTORY} 2>/dev/null; ls {_SPECS} 2>/dev/null; true", seconds=SLOW).split()


def test_claimed(cluster: Cluster, guest: GuestMachine) -> None:
    """The chart with api: dra: pods with a claim each have a binderfs each, in which Android's binder software works.

    The slices have what the kernel says; no other phone is mounted; the device plugin offers nothing.
    """
    binder.install(cluster, binder.values(api="dra", phones={"count": COUNT + 1}))
    dra.create(cluster, dra.template(dra.TEMPLATE, dra.request()))
    dra.wait_published(cluster, guest, COUNT + 1, seconds=SLOW)
    attributes = dra.devices(cluster, guest)["phone0"]["attributes"]
    assert attributes["binderDevices"]["int"] == 3, attributes
    plugin.require_not_offered(cluster, guest)
    assert not left(guest), left(guest)
    options = dra.claiming()
    resources = options["containers"][0]["resources"]
    options["containers"] = [container("main", then=SCRIPT, resources=resources, securityContext=RESTRICTED)]
    phones.create(cluster, phones.deployment(APP, COUNT, **options))
    found = running(cluster)
    check_all(found)
    assert binder.mounted(guest, CLAIM_SOURCE).keys() == {phone.phone() for phone in found}


def test_driver_replaced(cluster: Cluster, guest: GuestMachine) -> None:
    """The driver is killed and rolled out again: phones, service managers and mounts are as before.

    The kubelet starts the killed one again; a rollout replaces its pod.
    """
    found, before = running(cluster), binder.mounted(guest, CLAIM_SOURCE)
    kill_plugin(cluster, guest, seconds=SLOW)
    check_undisturbed(running(cluster), found)
    restart_plugin(cluster, SLOW)
    dra.wait_published(cluster, guest, COUNT + 1, seconds=SLOW)
    check_undisturbed(running(cluster), found)
    assert binder.mounted(guest, CLAIM_SOURCE) == before, f"before: {before}"


def test_removed(cluster: Cluster, guest: GuestMachine) -> None:
    """After the pods, nothing of their claims is left on the node."""
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    until(lambda: not left(guest), "nothing of claims is left", seconds=SLOW)
    dra.remove(cluster)
    cluster.api.delete(dra.SLICES, fieldSelector=f"spec.driver={dra.DRIVER}")  # the kubelet ends before it does so
