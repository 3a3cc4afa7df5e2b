"""In the guest: a cluster with the guest as its node, the plugin as a DRA driver, and pods with ResourceClaims.

etcd, the control plane, containerd, the kubelet and the plugin are real, and all are processes of the guest, so that
they have one clock. The plugin has the rights of ``deploy/dra``. The API server admits to the pods' namespace only what
the Pod Security Standard "restricted" allows.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import dra
from tests.e2e.cluster.api import CORE, ApiError
from tests.e2e.cluster.control_plane import PORT, ControlPlane
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.plugin import NAME
from tests.e2e.cluster.plugin import NAMESPACE as SYSTEM_NAMESPACE
from tests.e2e.cluster.sandbox import ADDRESS
from tests.e2e.kernel import aosp, tenants
from tests.e2e.kernel.items_aosp_pods import restricted
from tests.e2e.kernel.items_client_pods import WORK, printed
from tests.e2e.kernel.phones import phones
from tests.e2e.kernel.tenants import say
from tests.e2e.kubelet import pods, sandbox
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.container_runtime import without_scheme
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.plugins import AsProcess
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.runtime import BRIDGE
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.kernel.tenants import Kind
    from tests.e2e.kubelet.processes import Daemon

_NAMESPACE: Final = "android"
_PODS: Final = f"{CORE}/namespaces/{_NAMESPACE}/pods"
_CLAIMS: Final = f"{dra.API}/namespaces/{_NAMESPACE}/resourceclaims"
_TEMPLATES: Final = f"{dra.API}/namespaces/{_NAMESPACE}/resourceclaimtemplates"
_ACCOUNTS: Final = f"{CORE}/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts"
_ENFORCED: Final = {"pod-security.kubernetes.io/enforce": "restricted"}
_MANIFESTS: Final = ("base/serviceaccount.yaml", "dra/rbac.yaml", "dra/policy.yaml", "dra/deviceclass.yaml")
"""What deploy/dra has besides the driver's DaemonSet."""
_READY: Final = "http://127.0.0.1:9478/readyz"
_DAY: Final = 86400
_SLOW: Final = 3 * PATIENCE
"""Seconds: the limit for a pod. The kubelet tries again after a minute to prepare a claim that it could not."""
_FOUND: Final = {"aosp_binder0", "aosp_binder3", "aosp_binder6", "aosp_binder9"}
"""The phones of 12 found devices."""


class _Guest(Machine):
    """The guest as a node: its kubelet is in the namespaces of this process."""

    def _enter_namespaces(self) -> None:
        self._pid = os.getpid()


@dataclass
class ClaimedPhone:
    """A pod with a phone by a ResourceClaim."""

    name: str
    manifest: dict[str, Any]
    """The pod's, as it was created."""
    node: Machine
    cluster: ControlPlane
    container: str = ""
    """The ID of the running container."""

    def wait_container(self) -> None:
        """Wait until another container runs than the last one.

        A watch costs an emulated API server less than many requests.
        """
        state: object = "not started"
        for event in self.cluster.api.watch(_PODS, _SLOW, fieldSelector=f"metadata.name={self.name}"):
            for status in event["object"]["status"].get("containerStatuses", []):
                state = status["state"]
                identifier = without_scheme(status.get("containerID", ""))
                if "running" in status["state"] and identifier != self.container:
                    self.container = identifier
                    return
        reasons = [f"{event['reason']}: {event['message']}" for event in self.events()]
        raise AssertionError(f"the container of {self.name} does not run: {state}; {'; '.join(reasons)}")

    def events(self, reason: str = "") -> list[dict[str, Any]]:
        """Return the pod's events, or those with a reason."""
        selector = f"involvedObject.uid={self.manifest['metadata']['uid']}" + (f",reason={reason}" if reason else "")
        return self.cluster.api.list(f"{CORE}/namespaces/{_NAMESPACE}/events", fieldSelector=selector)

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""
        return self.node.runtime.execute(self.container, *words, user=f"{user}:{user}")

    def log(self) -> list[str]:
        """Return what the container's last run has printed after its report about itself."""
        return printed(self.manifest["metadata"]["uid"])

    def restart(self) -> None:
        """Kill the container's first process, and wait until a new container runs."""
        self.node.runtime.kill(self.container)
        self.wait_container()

    def claim(self) -> dict[str, Any]:
        """Return the pod's claim."""
        pod = self.cluster.api.get(f"{_PODS}/{self.name}")
        (named,) = pod["spec"]["resourceClaims"]
        made = [status["resourceClaimName"] for status in pod["status"].get("resourceClaimStatuses", [])]
        return self.cluster.api.get(f"{_CLAIMS}/{made[0] if made else named['resourceClaimName']}")

    def held(self) -> str:
        """Return the name of the allocated device."""
        (result,) = self.claim()["status"]["allocation"]["devices"]["results"]
        device: str = result["device"]
        return device

    def spec(self) -> Path:
        """Return the path of the claim's CDI spec."""
        return Path("/run/cdi", f"{dra.DRIVER}-claim_{self.claim()['metadata']['uid']}.json")


@dataclass
class World:
    """The control plane, the node, the plugin as a process, and the pods."""

    cluster: ControlPlane
    node: Machine
    plugin: AsProcess
    account: Path
    """The directory of the plugin's token."""
    phones: dict[str, ClaimedPhone] = field(default_factory=dict)

    def serve(self, kind: Kind) -> None:
        """Start the plugin, and wait until its 4 phones are published. The devices of a claim's end are recreated."""
        more = f"api: dra\nrecreate: on-start\nservice_account_dir: {self.account}\n"
        self.plugin.configure(f"version: v1\n{kind.configuration}{more}")
        self.start_plugin()
        expected = _FOUND if kind is tenants.FOUND else {*phones(len(_FOUND))}
        until(lambda: self._published() == expected or _raise(self._published()), "the phones are published")

    def start_plugin(self) -> None:
        """Start the plugin, and wait until the kubelet has registered it."""
        self.plugin.start()
        try:
            until(_ready, "the plugin is ready")
        except AssertionError:
            say(f"end of the plugin's log:\n{self.plugin.tail()}")
            raise

    def _published(self) -> set[str]:
        slices = self.cluster.api.list(dra.SLICES, fieldSelector=f"spec.nodeName={self.node.name}")
        found = [device for each in slices for device in each["spec"].get("devices", []) if not device.get("taints")]
        return {device["attributes"]["id"]["string"] for device in found}

    def place(self, name: str, user: int, claim: str = "") -> ClaimedPhone:
        """Create a restricted pod with a claim of the template, or with the one named ``claim``; wait until it runs.

        Print why its claim could not be prepared at first.
        """
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": dra.TEMPLATE}
        manifest = _manifest(name, source, securityContext=restricted(user))
        created = self.cluster.api.create(_PODS, manifest)
        phone = self.phones[name] = ClaimedPhone(name, created, self.node, self.cluster)
        phone.wait_container()
        for event in phone.events("FailedPrepareDynamicResources"):
            say(f"{name}: {event['message']}")
        return phone

    def refusal(self) -> str:
        """Return why the API server refuses such a pod without the security context; "" if it does not."""
        try:
            self.cluster.api.create(_PODS, _manifest("unrestricted", {"resourceClaimName": "none"}), dryRun="All")
        except ApiError as error:
            return str(error)
        return ""

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """Create a claim that several pods can name, and delete it at the end, when no pod has it."""
        self.cluster.api.create(_CLAIMS, dra.claim(name, dra.request()))
        try:
            yield
        finally:
            self.cluster.api.delete(f"{_CLAIMS}/{name}")

    def remove(self, *names: str) -> None:
        """Delete pods, and wait until they and their claims of the template are gone: those are unprepared then."""
        removed = [self.phones.pop(name) for name in names]
        for phone in removed:
            self.cluster.api.delete(f"{_PODS}/{phone.name}")
        until(lambda: not {*names} & self._names(_PODS), f"{names} are gone", seconds=_SLOW)
        made = tuple(f"{name}-" for name in names)
        until(
            lambda: not [claim for claim in self._names(_CLAIMS) if claim.startswith(made)],
            f"the claims of {names} are gone",
            seconds=_SLOW,
        )

    def _names(self, collection: str) -> set[str]:
        return {thing["metadata"]["name"] for thing in self.cluster.api.list(collection)}

    def clear(self) -> None:
        """Delete all pods, and stop the plugin."""
        if self.phones and not self.plugin.running():
            self.start_plugin()  # without it no pod with a claim ends
        self.remove(*list(self.phones))
        if self.plugin.running():
            self.plugin.stop()

    def leave(self) -> None:
        """End pods, plugin, kubelet and containerd, and remove the node from the cluster."""
        self.clear()
        self.node.kubelet.end()
        self.node.runtime.stop()
        self.cluster.api.delete(f"{CORE}/nodes/{self.node.name}")
        self.cluster.api.delete(dra.SLICES)
        run("ip", "link", "delete", BRIDGE)  # it has an address of this node's range


def _manifest(name: str, source: dict[str, str], **more: Any) -> dict[str, Any]:
    """Return the manifest of a pod; ``source`` names its claim or template, ``more`` are fields of its container."""
    used = {"claims": [{"name": "phone"}]}
    main = pods.container("main", then=f"exec {aosp.COMMAND} {name}", resources=used, **more)
    manifest = pods.pod(name, main, resourceClaims=[{"name": "phone", **source}])
    manifest["metadata"]["namespace"] = _NAMESPACE
    return manifest


def start(programs: Path) -> ControlPlane:
    """Start the control plane, and create what the plugin and the pods require. ``programs`` is a directory.

    It runs until the guest ends.
    """
    plane = ControlPlane(programs, WORK / "control-plane")
    run("ip", "address", "add", f"{ADDRESS}/24", "dev", "lo")
    with _logs(*plane.daemons):
        plane.start()
    files = [f"--filename={PROJECT / 'deploy' / name}" for name in _MANIFESTS]
    kubectl = (str(programs / "kubectl"), f"--kubeconfig={plane.kubeconfig}", f"--namespace={SYSTEM_NAMESPACE}")
    run(*kubectl, "apply", *files, seconds=_SLOW)
    plane.api.create(f"{CORE}/namespaces", {"metadata": {"name": _NAMESPACE, "labels": _ENFORCED}})
    plane.api.create(_TEMPLATES, dra.template(dra.TEMPLATE, dra.request()))
    account = f"{CORE}/namespaces/{_NAMESPACE}/serviceaccounts/default"
    until(lambda: plane.api.find(account), "pods can be created")
    return plane


def join(plane: ControlPlane, number: int, containerd: Path, part: Path, oci_runtime: str) -> World:
    """Start containerd and the kubelet of node ``number``, and load the image; the first item starts the plugin.

    ``containerd`` is a directory. No other node may run.
    """
    directory = WORK / f"node-{number}"
    directory.mkdir()
    sandbox.reset_kubelet()
    aosp.prepare(directory / "root", part)
    busybox_image(directory / "image.tar", tree=directory / "root")
    node = _Guest(number, plane, directory / "machine", "", containerd)
    del node.configuration["cgroupRoot"]
    node.oci_runtime = oci_runtime
    run("ip", "address", "add", f"{node.address}/24", "dev", "lo")
    node.boot(plane.programs)
    say(f"Kubernetes 1.{plane.minor}; {node.runtime.versions}")
    with _logs(node.containerd, node.kubelet, plane.apiserver):
        node.runtime.load(directory / "image.tar")
        until(lambda: _node_ready(plane, node), "the node is Ready", seconds=_SLOW)
        account = _token(plane, node, directory / "account")
    environment = {"NODE_NAME": node.name, "KUBERNETES_SERVICE_HOST": ADDRESS, "KUBERNETES_SERVICE_PORT": str(PORT)}
    plugin = AsProcess(directory / "plugin", "", patience=PATIENCE, environment=environment)
    return World(plane, node, plugin, account)


def _node_ready(plane: ControlPlane, node: Machine) -> bool:
    status = plane.api.get(f"{CORE}/nodes/{node.name}")["status"]
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in status["conditions"])


def _token(plane: ControlPlane, node: Machine, directory: Path) -> Path:
    """Write what the plugin's pod would have: a token of the service account that names the node."""
    bound = {"kind": "Node", "apiVersion": "v1", "name": node.name}
    request = {"spec": {"expirationSeconds": _DAY, "boundObjectRef": bound}}
    answer = plane.api.create(f"{_ACCOUNTS}/{NAME}/token", request)
    directory.mkdir()
    (directory / "token").write_text(answer["status"]["token"])
    (directory / "ca.crt").write_bytes(plane.authority.root.certificate.read_bytes())
    return directory


@contextlib.contextmanager
def _logs(*daemons: Daemon) -> Iterator[None]:
    """Print the ends of the logs if the context fails."""
    try:
        yield
    except AssertionError:
        for daemon in daemons:
            say(f"end of the log of {daemon.name}:\n{daemon.tail()}")
        raise


def _ready() -> bool:
    with urllib.request.urlopen(_READY, timeout=5) as answer:
        return bool(answer.status == http.client.OK)


def _raise(found: object) -> bool:
    raise AssertionError(str(found))
