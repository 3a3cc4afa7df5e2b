"""Items: what the driver's service account can do with its rights, and what not, in particular on other nodes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import dra, outside, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_install import refused
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()

ACCOUNT: Final = f"system:serviceaccount:{plugin.NAMESPACE}:{plugin.NAME}"
TOKENS: Final = tuple(f"root/{run}/secrets/kubernetes.io/serviceaccount/token" for run in ("run", "var/run"))
"""In an image, /var/run is a link or a directory; an absolute link would lead out of the container here."""
FOREIGN: Final = "another-node"
RIGHTS: Final = {
    "resourceslices.resource.k8s.io": {"get", "list", "watch", "create", "update", "delete"},
    "resourceclaims.resource.k8s.io": {"get"},
    "nodes": {"get"},
}
EVERYONE_S: Final = frozenset(
    {
        "selfsubjectreviews.authentication.k8s.io",
        "selfsubjectaccessreviews.authorization.k8s.io",
        "selfsubjectrulesreviews.authorization.k8s.io",
    }
)
"""Rights of all users."""


def token(cluster: Cluster) -> str:
    """Return the token that the driver's container on the first machine has."""
    name = plugin.pod_on(cluster, cluster.machine)["metadata"]["name"]
    sandbox = next(
        entry for entry in outside.containers(cluster.machine) if entry.pod == name and entry.kind == "container"
    )
    return next(path for path in (sandbox.process / name for name in TOKENS) if path.exists()).read_text()


def request(cluster: Cluster, token: str, *words: str, text: str | None = None) -> str:
    """Run kubectl with a token, and return its output. Raises AssertionError if it fails."""
    plane = cluster.control_plane
    connection = (f"--server={plane.server}", f"--certificate-authority={plane.authority.root.certificate}")
    return cluster.kubectl("--kubeconfig=/dev/null", *connection, f"--token={token}", *words, text=text)


def slice_of(node: str, driver: str = dra.DRIVER) -> dict[str, Any]:
    """Return the manifest of a slice with one device."""
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": f"{node}/test", "generation": 1, "resourceSliceCount": 1},
    }
    devices = {"devices": [{"name": "forged"}]}
    metadata = {"name": f"test-{driver}-{node}"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec | devices}


def denied(cluster: Cluster, token: str, *words: str, text: str | None = None) -> str:
    """Return the message of a request that must be forbidden."""
    message = refused(lambda: request(cluster, token, *words, text=text))
    message = message.partition("Error from server ")[2].strip()
    assert message.startswith("(Forbidden)"), message
    say(f"#   {message}")
    return message


@item("The service account may do what the driver uses, and nothing else (`kubectl auth can-i --list`)")
def rights(cluster: Cluster) -> None:
    dra.ensure(cluster)
    listed = cluster.kubectl("auth", "can-i", "--list", f"--as={ACCOUNT}", "--as-group=system:serviceaccounts")
    found = {}
    for line in listed.splitlines()[1:]:
        name, verbs = line.split()[0], re.findall(r"[\w*]+", line.rpartition("[")[2])
        if not name.startswith("[") and name not in EVERYONE_S:
            found[name] = set(verbs)
    assert found == RIGHTS, found
    own = token(cluster)
    for words in (("secrets",), ("configmaps",), ("pods",), ("nodes",), ("resourceclaims",), ("deviceclasses",)):
        denied(cluster, own, "get", *words, "--all-namespaces")
    phones.create(cluster, dra.pod("seen"))
    (pod,) = dra.wait_running(cluster, "seen", 1)
    (claim,) = dra.claims_of(cluster, pod)
    name = claim["metadata"]["name"]
    assert name in request(cluster, own, "--namespace=default", "get", f"resourceclaim/{name}")
    denied(cluster, own, "--namespace=default", "delete", f"resourceclaim/{name}", "--wait=false")
    phones.remove(cluster, "Pod", "seen")


@item("A driver's token cannot publish, change or delete slices of another node, nor slices of all nodes")
def other_node(cluster: Cluster) -> None:
    dra.ensure(cluster)
    own, foreign = token(cluster), slice_of(FOREIGN)
    path = f"{dra.SLICES}/{foreign['metadata']['name']}"
    create = ("create", "--filename=-")
    assert FOREIGN in denied(cluster, own, *create, text=json.dumps(foreign))
    everywhere = slice_of("all")
    del everywhere["spec"]["nodeName"]
    everywhere["spec"]["allNodes"] = True
    denied(cluster, own, *create, text=json.dumps(everywhere))
    cluster.api.create(dra.SLICES, foreign)
    try:
        changed = cluster.api.get(path)
        changed["spec"]["devices"].append({"name": "another"})
        denied(cluster, own, "replace", "--filename=-", text=json.dumps(changed))
        denied(cluster, own, "delete", "resourceslice", foreign["metadata"]["name"], "--wait=false")
        denied(cluster, own, "delete", "resourceslices", "--all", "--wait=false")
        assert cluster.api.get(path)["spec"]["devices"] == foreign["spec"]["devices"]
    finally:
        cluster.api.delete(path)
    mine = slice_of(cluster.machine.name)
    request(cluster, own, *create, "--dry-run=server", text=json.dumps(mine))


@item("A driver's token cannot publish slices of another driver")
def other_driver(cluster: Cluster) -> None:
    dra.ensure(cluster)
    manifest = slice_of(cluster.machine.name, "gpu.example.com")
    message = denied(cluster, token(cluster), "create", "--filename=-", text=json.dumps(manifest))
    assert "gpu.example.com" in message, message


@item("A token of the service account without a node, as `kubectl create token` makes it, can write no slice")
def token_without_node(cluster: Cluster) -> None:
    dra.ensure(cluster)
    made = cluster.kubectl("--namespace", plugin.NAMESPACE, "create", "token", plugin.NAME).strip()
    text = json.dumps(slice_of(cluster.machine.name))
    assert "no node name" in denied(cluster, made, "create", "--filename=-", text=text)


@item("Without the right to read claims, pods wait, and an event says which right is missing; they run when it is back")
def missing_right(cluster: Cluster) -> None:
    dra.ensure(cluster)
    role = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{plugin.NAME}"
    rules = cluster.api.get(role)["rules"]
    without = [rule for rule in rules if rule["resources"] != ["resourceclaims"]]
    cluster.api.patch(role, {"rules": without})
    try:
        phones.create(cluster, dra.pod("unread"))
        path = f"{phones.collection('Pod')}/unread"

        def message() -> str:
            from_events = dra.prepare_errors(cluster, cluster.api.get(path))
            return from_events[-1] if from_events else ""

        text = until(message, "the event of the pod", seconds=90)
        say(f"#   {text}")
        assert "resourceclaims" in text, text
        assert "forbidden" in text.lower(), text
    finally:
        cluster.api.patch(role, {"rules": rules})
    # Any change of the pod ends the kubelet's wait of a minute.
    cluster.kubectl("annotate", "pod", "unread", "retry=1")
    dra.wait_running(cluster, "unread", 1, seconds=90)
    phones.remove(cluster, "Pod", "unread")


@item("afterwards nothing of the driver is left")
def removed(cluster: Cluster) -> None:
    """The next group installs what it needs."""
    dra.remove(cluster)
