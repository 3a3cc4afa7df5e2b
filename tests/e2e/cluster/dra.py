"""The plugin as a DRA driver: its values, manifests of claims and pods, and what API server and machines show."""

from collections.abc import Sequence
from typing import Any, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.outside import CDI
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import PHONES, RUNNING, containers
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.standalone import CHECKPOINT

DRIVER: Final = "phone.aosp.io"
API: Final = "/apis/resource.k8s.io/v1"
SLICES: Final = f"{API}/resourceslices"
CLASSES: Final = f"{API}/deviceclasses"
CLAIMS: Final = f"{API}/namespaces/{phones.DEFAULT}/resourceclaims"
TEMPLATES: Final = f"{API}/namespaces/{phones.DEFAULT}/resourceclaimtemplates"
TEMPLATE: Final = "phone"
"""The name of the usual claim template."""
PARAMETERS: Final = {"apiVersion": "phone.aosp.io/v1alpha1", "kind": "PhoneParameters"}
KUBELET: Final = "var/lib/kubelet"
_COLLECTIONS: Final = {"ResourceClaim": CLAIMS, "ResourceClaimTemplate": TEMPLATES, "DeviceClass": CLASSES}


def values(**config: Any) -> dict[str, Any]:
    """Return the chart's values for phones by DRA, of found devices; ``config`` are more configuration keys."""
    changed = plugin.values(api="dra", **config)
    changed["dra"] = {"classes": {PHONE: {"extendedResource": True}}}
    return changed


def ensure(cluster: Cluster) -> None:
    """Install the driver unless an earlier test has."""
    if not plugin.pods(cluster) or not cluster.api.find(f"{CLASSES}/{DRIVER}"):
        plugin.uninstall(cluster)
        for machine in cluster.machines:
            _forget_device_plugin(cluster, machine)
        plugin.install(cluster, values())
    for machine in cluster.machines:
        wait_published(cluster, machine, PHONES)
    create(cluster, template(TEMPLATE, request()))


def _forget_device_plugin(cluster: Cluster, machine: Machine) -> None:
    """Have a Node not list the resource: 1.34 serves it by DRA only where it is not listed, not even with 0."""
    path, kept = f"{CORE}/nodes/{machine.name}", {PHONE: None}
    if PHONE in cluster.api.get(path)["status"]["capacity"]:
        machine.kubelet.end()
        (machine.root / str(CHECKPOINT).lstrip("/")).unlink()
        cluster.api.patch(f"{path}/status", {"status": {"capacity": kept, "allocatable": kept}})
        machine.start_kubelet()
        cluster.wait_node(machine)


def remove(cluster: Cluster) -> None:
    """Remove pods and claims of the tests, wait until they are gone, and uninstall the driver."""
    pods = phones.collection("Pod")
    for collection in (phones.collection("Deployment"), pods, CLAIMS):
        cluster.api.delete(collection)
    until(lambda: not cluster.api.list(pods) and not cluster.api.list(CLAIMS), "all are gone", seconds=3 * PATIENCE)
    cluster.api.delete(f"{TEMPLATES}/{TEMPLATE}")
    plugin.uninstall(cluster)


def slices(cluster: Cluster, machine: Machine, driver: str = DRIVER) -> list[dict[str, Any]]:
    """Return a driver's slices of a machine."""
    return cluster.api.list(SLICES, fieldSelector=f"spec.driver={driver},spec.nodeName={machine.name}")


def devices(cluster: Cluster, machine: Machine, driver: str = DRIVER) -> dict[str, dict[str, Any]]:
    """Return the devices in the slices of a machine by the value of their attribute ``id``."""
    return {
        device["attributes"]["id"]["string"]: device | {"pool": found["spec"]["pool"]["name"]}
        for found in slices(cluster, machine, driver)
        for device in found["spec"].get("devices", [])
    }


def untainted(cluster: Cluster, machine: Machine, driver: str = DRIVER) -> set[str]:
    """Return the IDs of the published devices without a taint."""
    return {name for name, device in devices(cluster, machine, driver).items() if not device.get("taints")}


def wait_published(cluster: Cluster, machine: Machine, count: int, *, seconds: float = PATIENCE) -> None:
    """Wait until so many devices of a machine are published without a taint."""
    what = f"{machine.name} has {count} published devices"
    until(lambda: len(untainted(cluster, machine)) == count, what, seconds=seconds)


def request(name: str = "phone", *, device_class: str = DRIVER, **more: Any) -> dict[str, Any]:
    """Return a request for one device of a class, or for what ``more`` says."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def claim(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the manifest of a claim with these requests, and more fields of ``devices``."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), **more}},
    }


def template(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the manifest of a claim template; the arguments are those of :func:`claim`."""
    manifest = claim(name, *requests, **more)
    return manifest | {"kind": "ResourceClaimTemplate", "spec": {"spec": manifest["spec"]}}


def parameters(requests: Sequence[str] = (), **fields: Any) -> list[dict[str, Any]]:
    """Return the configuration of a claim or class with parameters for the driver."""
    opaque = {"driver": DRIVER, "parameters": PARAMETERS | fields}
    return [{"opaque": opaque} | ({"requests": list(requests)} if requests else {})]


def device_class(name: str, **fields: Any) -> dict[str, Any]:
    """Return the manifest of a class of phones with these parameters."""
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    spec = {"selectors": selectors} | ({"config": parameters(**fields)} if fields else {})
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def create(cluster: Cluster, manifest: dict[str, Any]) -> None:
    """Create a claim, a template or a class, in place of one of the same name."""
    collection = _COLLECTIONS[manifest["kind"]]
    path = f"{collection}/{manifest['metadata']['name']}"
    cluster.api.delete(path)
    until(lambda: cluster.api.find(path) is None, f"{path} is gone")
    cluster.api.create(collection, manifest)


def claiming(*containers: str, claim: str = "", template: str = TEMPLATE, **more: Any) -> dict[str, Any]:
    """Return the options of phones.template for a pod with a claim, by its name or by that of a template.

    Each of ``containers``, by default one, names the whole claim, or as NAME=REQUEST a request of it.
    """
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    made = []
    for text in containers or ("main",):
        name, _, part = text.partition("=")
        used = {"name": "phone"} | ({"request": part} if part else {})
        made.append(container(name, resources={"claims": [used]}))
    return {"count": 0, "containers": made, "resourceClaims": [{"name": "phone", **source}], **more}


def pod(name: str, *containers: str, **options: Any) -> dict[str, Any]:
    """Return the manifest of a pod with a claim; the options are those of :func:`claiming`."""
    return phones.pod(name, **claiming(*containers, **options))


def deployment(name: str, replicas: int, **options: Any) -> dict[str, Any]:
    """Return the manifest of a Deployment of pods with claims; the options are those of :func:`claiming`."""
    return phones.deployment(name, replicas, **claiming(**options))


def claims_of(cluster: Cluster, pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the claims of a pod, also that of its extended resource."""
    status = cluster.api.get(f"{phones.collection('Pod')}/{pod['metadata']['name']}")["status"]
    named = [
        entry["resourceClaimName"] for entry in pod["spec"].get("resourceClaims", []) if "resourceClaimName" in entry
    ]
    names = named + [entry["resourceClaimName"] for entry in status.get("resourceClaimStatuses", [])]
    if extended := status.get("extendedResourceClaimStatus"):
        names.append(extended["resourceClaimName"])
    return [cluster.api.get(f"{CLAIMS}/{name}") for name in names]


def allocated(cluster: Cluster, machine: Machine, claim: dict[str, Any]) -> dict[str, str]:
    """Return the device ID of each request of a claim that is allocated on a machine."""
    published = devices(cluster, machine)
    by_name = {(device["pool"], device["name"]): name for name, device in published.items()}
    results = claim["status"]["allocation"]["devices"]["results"]
    return {result["request"]: by_name[result["pool"], result["device"]] for result in results}


def owners(cluster: Cluster, pods: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return node and device ID of the phone that each pod has, as :func:`phones.owners`, by the pods' claims."""

    def held(machine: Machine, pod: dict[str, Any]) -> set[str]:
        (claim,) = claims_of(cluster, pod)
        return set(allocated(cluster, machine, claim).values())

    return phones.owners(cluster, pods, held)


def specs(machine: Machine) -> dict[str, str]:
    """Return the CDI specs of the driver on a machine: their text by the UID of the claim."""
    return {
        path.stem.rpartition("_")[2]: path.read_text()
        for directory in CDI
        for path in (machine.root / directory).glob(f"{DRIVER}-claim_*.json")
    }


def prepared(machine: Machine, claim: dict[str, Any]) -> bool:
    """Return whether the driver has a spec of a claim."""
    return claim["metadata"]["uid"] in specs(machine)


def wait_unprepared(machine: Machine, *claims: dict[str, Any], seconds: float = 2 * PATIENCE) -> None:
    """Wait until the driver has no spec of claims."""

    def unprepared() -> bool:
        return not any(prepared(machine, held) for held in claims)

    until(unprepared, "the claims are unprepared", seconds=seconds)


def sockets(machine: Machine) -> list[str]:
    """Return the names of the driver's sockets in the directory in which the kubelet looks."""
    directory = machine.root / KUBELET / "plugins_registry"
    return sorted(path.name for path in directory.glob(f"{DRIVER}*"))


class Undisturbed:
    """Pods with claims that a failure must not touch: their containers, their phones, and what the driver knows."""

    def __init__(self, cluster: Cluster) -> None:
        """Run the pods, on the first machine."""
        self._cluster = cluster
        self._pods = phones.run(cluster, deployment("web", RUNNING))
        self._containers = containers(self._pods)
        self.owners = owners(cluster, self._pods)
        self.claims = [claim for pod in self._pods for claim in claims_of(cluster, pod)]

    def check(self) -> None:
        """Check that nothing has happened to the pods, and that the driver has their claims."""
        pods = phones.wait_running(self._cluster, "web", RUNNING)
        assert containers(pods) == self._containers, f"before: {self._containers}"
        assert owners(self._cluster, pods) == self.owners
        until(self._prepared, "the driver has the claims")

    def _prepared(self) -> bool:
        return all(prepared(self._cluster.machine, claim) for claim in self.claims)

    def end(self) -> None:
        """Delete the pods, check that their claims are unprepared, and that another pod gets each phone."""
        cluster = self._cluster
        phones.remove(cluster, "Deployment", "web")
        wait_unprepared(cluster.machine, *self.claims)
        assert len(owners(cluster, phones.run(cluster, deployment("next", PHONES)))) == PHONES
        phones.remove(cluster, "Deployment", "next")
        until(lambda: not specs(cluster.machine), "no claim is prepared", seconds=2 * PATIENCE)
