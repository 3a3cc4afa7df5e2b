"""Phones with a binderfs for each claim on the machine with a real binder driver, and what the driver has made there.

The manifests are those of :mod:`tests.e2e.cluster.dra`; the phones run the binder software of
:mod:`tests.e2e.cluster.binder`. All that is read is read in the guest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aosp_plugin.binder.provision.phone_mount import CLAIM_SOURCE
from tests.e2e.cluster import binder, dra, phones, plugin
from tests.e2e.cluster.binder import BinderPhone
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.outside import CDI
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.kernel.phones import DIRECTORY
from tests.e2e.kubelet.pods import STAY, container
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.guest import GuestMachine

COUNT: Final = 4
"""Phones of the node."""
APP: Final = "claimed"
REPLICAS: Final = 3
"""Phones of the Deployment."""
_USER: Final = "system"
_SPECS: Final = " ".join(f"/{directory}/{dra.DRIVER}-claim_*" for directory in CDI)
_READ: Final = f"ls {DIRECTORY}; echo ---; cat {_SPECS}"


class Made(NamedTuple):
    """What exists of claims on the machine."""

    mounts: dict[str, str]
    """The device number of the binderfs of each phone."""
    directories: set[str]
    """The names in the directory of the phones."""
    records: dict[str, set[str]]
    """The phones of each claim that has a CDI spec, by UID."""


def made(machine: GuestMachine) -> Made:
    """Return what exists of claims on the machine."""
    names, specs = machine.run("sh", "-c", f"({_READ}) 2>/dev/null; true", seconds=SLOW).split("---\n")
    return Made(
        mounts=binder.mounted(machine, CLAIM_SOURCE),
        directories={*names.split()},
        records=dict(map(dra.recorded, specs.replace("}{", "}\n{").splitlines())),
    )


def check_made(machine: GuestMachine, wanted: set[str]) -> Made:
    """Check that exactly these phones are mounted, each with a device number, and that the rest agrees; return all."""
    found = made(machine)
    assert found.mounts.keys() == wanted == found.directories, f"{found}, expected: {wanted}"
    assert len({*found.mounts.values()}) == len(wanted), f"phones share a binderfs: {found}"
    recorded = [phone for held in found.records.values() for phone in held]
    assert sorted(recorded) == sorted(wanted), f"{found}, expected: {wanted}"
    return found


def wait_nothing(machine: GuestMachine) -> None:
    """Wait until nothing is left of any claim: no mount, no directory, no CDI spec."""
    until(lambda: not check_made(machine, set()).mounts, "nothing of claims is left", seconds=SLOW)


def values(**config: Any) -> dict[str, Any]:
    """Return the chart's values for phones with a binderfs for each claim."""
    changed = binder.values(**{"api": "dra", "phones": {"count": COUNT}} | config)
    return changed | {"dra": {"classes": {PHONE: {"extendedResource": True}}}}


def ensure(cluster: Cluster) -> GuestMachine:
    """Install the driver if an earlier item has not; return the machine, whose phones are published."""
    machine = binder.node(cluster)
    if not cluster.api.find(f"{dra.CLASSES}/{dra.DRIVER}"):
        plugin.install(cluster, values(), f"--timeout={SLOW:.0f}s")
        dra.create(cluster, dra.template(dra.TEMPLATE, dra.request()))
    dra.wait_published(cluster, machine, COUNT, seconds=SLOW)
    return machine


def remove(cluster: Cluster) -> None:
    """Remove the phones, the driver and the machine."""
    dra.remove(cluster)
    cluster.api.delete(dra.SLICES, fieldSelector=f"spec.driver={dra.DRIVER}")  # the kubelet ends before it does so
    binder.remove_node(cluster)


def end(cluster: Cluster, *names: str) -> None:
    """Delete pods, and wait until they are gone; all are deleted at once."""
    for name in names:
        cluster.api.delete(f"{phones.collection('Pod')}/{name}")
    for name in names:
        phones.remove(cluster, "Pod", name, seconds=SLOW)


def deployment() -> dict[str, Any]:
    """Return the manifest of a Deployment of phones with a claim each."""
    return phones.deployment(APP, REPLICAS, **_options("main", template=dra.TEMPLATE))


def pod(name: str, *containers: str, claim: str = "", template: str = dra.TEMPLATE) -> dict[str, Any]:
    """Return the manifest of a pod with a claim, by its name or by that of a template.

    ``containers`` are those of :func:`dra.claiming`. In each runs a service with the name of the pod, followed by that
    of the request if the container names one. The container ``client`` runs none.
    """
    return phones.pod(name, **_options(*(containers or ("main",)), claim=claim, template=template))


def _options(*containers: str, claim: str = "", template: str = "") -> dict[str, Any]:
    options = dra.claiming(*containers, claim=claim, template=template)
    for each in options["containers"]:
        (used,) = each["resources"]["claims"]
        suffix = f"-{used['request']}" if "request" in used else ""
        script = f"exec /bin/phone.sh - $HOSTNAME{suffix} {_USER}"
        each.update(container(each["name"], then=STAY if each["name"] == "client" else script))
    return options


def unchanged(name: str) -> dict[str, Any]:
    """Return the manifest of a pod with a phone as an extended resource, as for the device plugin."""
    return phones.pod(name, then=binder.SCRIPT)


def running(cluster: Cluster, app: str = APP, count: int = REPLICAS) -> list[BinderPhone]:
    """Wait until this number of an app's pods is running, and return their phones."""
    machine = binder.node(cluster)
    pods = phones.wait_running(cluster, app, count, seconds=SLOW)
    return [BinderPhone(cluster, machine, pod, pod["metadata"]["name"]) for pod in pods]


def run_pod(cluster: Cluster, manifest: dict[str, Any]) -> BinderPhone:
    """Create a pod, wait until it runs, and return the phone of its first container."""
    phones.create(cluster, manifest)
    (phone,) = running(cluster, manifest["metadata"]["name"], 1)
    phone.part = manifest["spec"]["containers"][0]["name"]
    return phone


@dataclass
class Neighbour:
    """A container that has the phone of another container's service, to be checked like that one."""

    service: BinderPhone
    client: BinderPhone

    def __post_init__(self) -> None:
        """Take the name of the service."""
        self.name = self.service.name

    def execute(self, user: int, *words: str) -> str:
        """Run a program beside the service, in the client's container."""
        return self.client.execute(user, *words)

    def log(self) -> list[str]:
        """Return what the service has printed."""
        return self.service.log()


def phones_of(found: Sequence[BinderPhone]) -> set[str]:
    """Return the phones of containers, and check that each sees one, which no other has."""
    seen = [phone.phone() for phone in found]
    assert len({*seen}) == len(found), f"they have {seen}"
    return {*seen}
