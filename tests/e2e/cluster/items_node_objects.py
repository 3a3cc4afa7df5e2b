"""Items: what the plugin writes for its Node (Events, startup taint, feature file), and what its token cannot do."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aosp_plugin.binder.driver.host import has_selinux
from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_dra_rights import ACCOUNT, EVERYONE_S, denied, request, token
from tests.e2e.cluster.items_unhealthy import restore, second_device
from tests.e2e.common.report import say
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()

PHONES: Final = DEVICES // plugin.SIZE
KEY: Final = "aosp.io/starting"
OTHER: Final = "example.com/maintenance"
DIRECTORY: Final = "/etc/kubernetes/node-feature-discovery/features.d"
FEATURES: Final = f"{DIRECTORY}/aosp-device-plugin"
ROLE: Final = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{plugin.NAME}-node"
EVENTS: Final = f"{CORE}/namespaces/default/events"
FOREIGN: Final = "another-node"
RIGHTS: Final = {"nodes": {"get", "patch"}}


def node(cluster: Cluster) -> str:
    """Return the path of the first machine's Node object."""
    return f"{CORE}/nodes/{cluster.machine.name}"


def taints(cluster: Cluster) -> set[str]:
    """Return the keys of the taints of the first machine's Node object."""
    return {taint["key"] for taint in cluster.api.get(node(cluster))["spec"].get("taints", [])}


def events(cluster: Cluster) -> dict[str, tuple[int, str]]:
    """Return count and message of the plugin's Events on the first machine's Node by reason, the latest of each."""
    selector = f"involvedObject.kind=Node,involvedObject.name={cluster.machine.name}"
    found = cluster.api.list(EVENTS, fieldSelector=selector)
    own = [each for each in found if each["source"].get("component") == plugin.NAME]
    own.sort(key=lambda each: str(each["lastTimestamp"]))
    return {each["reason"]: (each["count"], each["message"]) for each in own}


def wait_counted(cluster: Cluster, reason: str, count: int) -> None:
    """Wait until the Event with this reason has happened so often. The same one is written once a minute at most."""
    until(lambda: events(cluster).get(reason, (0, ""))[0] == count, f"{reason} is counted {count} times", seconds=90)


def described(cluster: Cluster) -> list[str]:
    """Return the lines of the plugin's Events as `kubectl describe node` shows them."""
    text = cluster.kubectl("describe", "node", cluster.machine.name).partition("\nEvents:")[2]
    return [line for line in text.splitlines() if plugin.NAME in line]


def ensure(cluster: Cluster) -> None:
    """Install the plugin with Events and the startup taint unless an earlier item has."""
    if not plugin.pods(cluster) or not cluster.api.find(ROLE):
        plugin.install(cluster, plugin.values(node_events=True, startup_taint=KEY, feature_file=FEATURES))
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)


def log(cluster: Cluster) -> str:
    """Return the log of the plugin on the first machine."""
    name = plugin.pod_on(cluster, cluster.machine)["metadata"]["name"]
    return cluster.kubectl("--namespace", plugin.NAMESPACE, "logs", name)


@item(
    "A kubelet registers its Node with the startup taint; it goes when the plugin has devices, and pods wait until then"
)
def taint_removed(cluster: Cluster) -> None:
    machine = cluster.machine
    plugin.uninstall(cluster)
    cluster.kubectl("delete", "node", machine.name)
    machine.kubelet.end()
    machine.configuration["registerWithTaints"] = [
        {"key": key, "value": "", "effect": "NoSchedule"} for key in (KEY, OTHER)
    ]
    machine.start_kubelet()
    cluster.wait_node(machine)
    assert {KEY, OTHER} <= taints(cluster), taints(cluster)
    cluster.kubectl("label", "node", machine.name, "aosp.io/binder=true", "--overwrite")
    machine.run("sh", "-c", f"rm /dev/{PREFIX}*")
    plugin.install(cluster, plugin.values(node_events=True, startup_taint=KEY, feature_file=FEATURES))
    toleration = {"key": OTHER, "operator": "Exists"}
    waiting = phones.pod("waiting")
    waiting["spec"]["tolerations"] = [toleration]
    phones.create(cluster, waiting)
    holds(lambda: {KEY, OTHER} <= taints(cluster), "the taint stays while there is no device", seconds=15)
    started = time.monotonic()
    restore(cluster)
    until(lambda: KEY not in taints(cluster), "the taint is removed", seconds=60)
    say(f"#   the taint is removed {time.monotonic() - started:.1f} s after the devices were created")
    assert OTHER in taints(cluster), "another taint is gone"
    assert plugin.capacity(cluster, machine) == (PHONES, PHONES), "it was removed before the devices are allocatable"
    phones.wait_running(cluster, "waiting", 1)
    assert '"startup taint removed"' in log(cluster)
    phones.remove(cluster, "Pod", "waiting")
    machine.kubelet.end()
    machine.configuration.pop("registerWithTaints")
    machine.start_kubelet()
    cluster.kubectl("taint", "node", machine.name, f"{OTHER}-")


@item("Devices that vanish are an Event in `kubectl describe node`, with count, reason and names; so is their return")
def devices_lost(cluster: Cluster) -> None:
    ensure(cluster)
    phone = f"{PREFIX}0"
    for count in (1, 2):
        cluster.machine.run("rm", second_device(phone))
        try:
            wait_counted(cluster, "DevicesLost", count)
        finally:
            restore(cluster)
        wait_counted(cluster, "DevicesRecovered", count)
    lines = described(cluster)
    for line in lines:
        say(f"#   {' '.join(line.split())}")
    expected = f"1 device of {plugin.PHONE} lost: 1 incomplete ({phone}); {PHONES - 1} of {PHONES} are healthy"
    (lost,) = [line for line in lines if "DevicesLost" in line]
    assert re.search(rf"Warning +DevicesLost +\S+ \(x2 over .*\) +{plugin.NAME} +{re.escape(expected)}", lost), lost
    assert any("Normal" in line and "DevicesRecovered" in line for line in lines), lines


@item("A kubelet that is away for longer than 15 s is an Event, and so is the registration when it is back")
def kubelet_away(cluster: Cluster) -> None:
    ensure(cluster)
    cluster.machine.kubelet.end()
    try:
        until(lambda: "PluginNotRegistered" in events(cluster), "the Event", seconds=60)
    finally:
        cluster.machine.start_kubelet()
    until(lambda: "PluginRegistered" in events(cluster), "the Event of the end", seconds=60)
    say(f"#   {events(cluster)['PluginNotRegistered'][1]}")
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)


@item("The feature file has the number and kind of the devices for NFD, and an expiry time")
def feature_file(cluster: Cluster) -> None:
    ensure(cluster)
    text = cluster.machine.run("cat", FEATURES)
    lines = text.splitlines()
    say(f"#   {' '.join(lines[1:])}")
    assert lines[1].startswith("# +expiry-time="), lines
    expected = {"count": f"{PHONES}", "healthy": f"{PHONES}", "kind": "stand-in", "selinux": f"{has_selinux()}".lower()}
    assert lines[2:] == [f"{plugin.PHONE}.{name}={value}" for name, value in expected.items()], lines
    cluster.machine.run("rm", second_device(f"{PREFIX}0"))
    try:
        healthy = f"{plugin.PHONE}.healthy={PHONES - 1}"
        until(lambda: healthy in cluster.machine.run("cat", FEATURES), "the file has the change")
    finally:
        restore(cluster)


@item("The service account may do what the plugin uses, and nothing else (`kubectl auth can-i --list`)")
def rights(cluster: Cluster) -> None:
    ensure(cluster)
    for namespace, expected in (
        ("default", RIGHTS | {"events": {"create", "patch"}}),
        (plugin.NAMESPACE, RIGHTS),
    ):
        words = ("auth", "can-i", "--list", f"--namespace={namespace}", f"--as={ACCOUNT}")
        found = {}
        for line in cluster.kubectl(*words, "--as-group=system:serviceaccounts").splitlines()[1:]:
            name, verbs = line.split()[0], re.findall(r"[\w*]+", line.rpartition("[")[2])
            if not name.startswith("[") and name not in EVERYONE_S:
                found[name] = set(verbs)
        assert found == expected, (namespace, found)
    own = token(cluster)
    for kind in ("secrets", "pods", "events", "nodes"):
        denied(cluster, own, "get", kind, "--all-namespaces")
    assert cluster.machine.name in request(cluster, own, "get", "node", cluster.machine.name)


@item("The plugin's token cannot change the Node of another machine")
def other_node(cluster: Cluster) -> None:
    ensure(cluster)
    taint = {"key": KEY, "effect": "NoSchedule"}
    cluster.api.create(f"{CORE}/nodes", {"metadata": {"name": FOREIGN}, "spec": {"taints": [taint]}})
    try:
        message = denied(cluster, token(cluster), "patch", "node", FOREIGN, "--type=json", f"--patch={removal(0)}")
        assert f"may not change the Node {FOREIGN}" in message, message
        assert "ValidatingAdmissionPolicy" in message, message
        found = cluster.api.get(f"{CORE}/nodes/{FOREIGN}")["spec"]["taints"]
        assert KEY in {each["key"] for each in found}, found
        own = token(cluster)
        denied(cluster, own, "delete", "node", FOREIGN, "--wait=false")
    finally:
        cluster.api.delete(f"{CORE}/nodes/{FOREIGN}")


def removal(index: int) -> str:
    """Return the JSON patch that removes a taint by its place."""
    return json.dumps([{"op": "remove", "path": f"/spec/taints/{index}"}])


@item("The plugin's token cannot add, change or remove another taint of its own Node")
def other_taint(cluster: Cluster) -> None:
    ensure(cluster)
    name, own = cluster.machine.name, token(cluster)
    cluster.kubectl("taint", "node", name, f"{OTHER}=a:NoSchedule", f"{KEY}=:NoSchedule")
    try:
        keys = [taint["key"] for taint in cluster.api.get(node(cluster))["spec"]["taints"]]
        patch = ("patch", "node", name, "--type=json")
        assert KEY in denied(cluster, own, *patch, f"--patch={removal(keys.index(OTHER))}")
        everything = json.dumps([{"op": "remove", "path": "/spec/taints"}])
        denied(cluster, own, *patch, f"--patch={everything}")
        changed = [{"op": "replace", "path": f"/spec/taints/{keys.index(OTHER)}/effect", "value": "PreferNoSchedule"}]
        denied(cluster, own, *patch, f"--patch={json.dumps(changed)}")
        added = [{"op": "add", "path": "/spec/taints/-", "value": {"key": "a", "effect": "NoExecute"}}]
        denied(cluster, own, *patch, f"--patch={json.dumps(added)}")
        assert {KEY, OTHER} <= taints(cluster), "a taint that is added later is removed"
        request(cluster, own, *patch, f"--patch={removal(keys.index(KEY))}")
        assert taints(cluster) & {KEY, OTHER} == {OTHER}
    finally:
        cluster.kubectl("taint", "node", name, f"{OTHER}-")


@item("The plugin's token cannot change labels, annotations, unschedulable and status of its own Node")
def other_fields(cluster: Cluster) -> None:
    ensure(cluster)
    own = token(cluster)
    patches: tuple[dict[str, Any], ...] = (
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["a.io/b"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"podCIDR": "192.0.2.0/24", "podCIDRs": ["192.0.2.0/24"]}},
        {"spec": {"providerID": "a://b"}},
    )
    before = cluster.api.get(node(cluster))
    words = ("patch", "node", cluster.machine.name, "--type=merge")
    for patch in patches:
        message = denied(cluster, own, *words, f"--patch={json.dumps(patch)}")
        assert "may change nothing of a Node but its taints" in message, message
    code, message = patched(cluster, own, f"{node(cluster)}/status", {"status": {"capacity": {"example.com/gpu": "8"}}})
    assert code == http.client.FORBIDDEN, message
    assert "nodes/status" in message, message
    after = cluster.api.get(node(cluster))
    assert (after["spec"], after["metadata"].get("labels")) == (before["spec"], before["metadata"].get("labels"))
    assert after["metadata"].get("finalizers") is None


def patched(cluster: Cluster, own: str, path: str, patch: dict[str, Any]) -> tuple[int, str]:
    """Send a merge patch with a token, and return status and message; kubectl would read the object first."""
    plane = cluster.control_plane
    context = ssl.create_default_context(cafile=str(plane.authority.root.certificate))
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    headers = {"Authorization": f"Bearer {own}", "Content-Type": "application/merge-patch+json"}
    data = json.dumps(patch).encode()
    sent = urllib.request.Request(f"{plane.server}{path}", data, headers, method="PATCH")  # noqa: S310 - our server
    try:
        with opener.open(sent, timeout=10) as answer:
            return int(answer.status), ""
    except urllib.error.HTTPError as error:
        return error.code, str(json.load(error)["message"])


@item("The plugin's token cannot write Events of other Nodes and objects, nor under another name")
def foreign_events(cluster: Cluster) -> None:
    ensure(cluster)
    own, name = token(cluster), cluster.machine.name
    good = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "forged", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": name, "uid": name},
        "source": {"component": plugin.NAME, "host": name},
        "reason": "Forged",
        "message": "forged",
        "type": "Normal",
    }
    words = ("create", "--dry-run=server", "--filename=-")
    request(cluster, own, *words, text=json.dumps(good))
    other = {"kind": "Node", "name": FOREIGN, "uid": FOREIGN}
    pod = {"kind": "Pod", "namespace": "default", "name": name}
    forged: list[dict[str, Any]] = [{"involvedObject": other}, {"involvedObject": pod}]
    forged += [{"source": {"component": "kubelet"}}, {"source": {}}]
    for changes in forged:
        denied(cluster, own, *words, text=json.dumps({**good, **changes}))
    elsewhere = {**good, "metadata": {"name": "forged", "namespace": plugin.NAMESPACE}}
    denied(cluster, own, *words, text=json.dumps(elsewhere))
    kubelet = {**good, "metadata": {"name": "of-kubelet", "namespace": "default"}, "source": {"component": "kubelet"}}
    cluster.api.create(EVENTS, kubelet)
    try:
        code, message = patched(cluster, own, f"{EVENTS}/of-kubelet", {"message": "changed"})
        assert code == http.client.FORBIDDEN, message
        assert "the source aosp-device-plugin only" in message, message
        stolen = {"source": {"component": plugin.NAME}, "message": "changed"}
        code, message = patched(cluster, own, f"{EVENTS}/of-kubelet", stolen)
        assert code == http.client.FORBIDDEN, message
    finally:
        cluster.api.delete(f"{EVENTS}/of-kubelet")


@item("A token of the service account without a node, as `kubectl create token` makes it, can change no Node")
def token_without_node(cluster: Cluster) -> None:
    ensure(cluster)
    made = cluster.kubectl("--namespace", plugin.NAMESPACE, "create", "token", plugin.NAME).strip()
    cluster.kubectl("taint", "node", cluster.machine.name, f"{KEY}=:NoSchedule")
    try:
        keys = [taint["key"] for taint in cluster.api.get(node(cluster))["spec"]["taints"]]
        patch = removal(keys.index(KEY))
        message = denied(cluster, made, "patch", "node", cluster.machine.name, "--type=json", f"--patch={patch}")
        assert "no node name" in message, message
    finally:
        cluster.kubectl("taint", "node", cluster.machine.name, f"{KEY}-")


@item("Without the right to patch Nodes, one log line names it, devices are served, and the taint goes when it is back")
def missing_right(cluster: Cluster) -> None:
    ensure(cluster)
    rules = cluster.api.get(ROLE)["rules"]
    cluster.api.patch(ROLE, {"rules": [{**rules[0], "verbs": ["get"]}]})
    cluster.kubectl("taint", "node", cluster.machine.name, f"{KEY}=:NoSchedule")
    try:
        name = plugin.pod_on(cluster, cluster.machine)["metadata"]["name"]
        cluster.kubectl("--namespace", plugin.NAMESPACE, "delete", "pod", name)
        until(lambda: plugin.pod_on(cluster, cluster.machine)["metadata"]["name"] != name, "a new pod of the plugin")
        until(lambda: "node task failed, retrying" in log(cluster), "the log line", seconds=60)
        plugin.wait_allocatable(cluster, cluster.machine, PHONES)
        pod = plugin.pod_on(cluster, cluster.machine)
        refusals = {"verb": "patch", "object": "nodes", "code": "403"}
        requests = partial(plugin.metric, cluster, pod, "node_requests_total", **refusals)
        until(lambda: requests() >= 3, "repeated requests", seconds=60)
        assert plugin.metric(cluster, pod, "node_problem", task="startup_taint") == 1
        lines = [line for line in log(cluster).splitlines() if "node task failed" in line]
        say(f"#   {json.loads(lines[0])['error']}")
        assert len(lines) == 1, lines
        assert "requires the verb patch on nodes of the core API group" in lines[0], lines
    finally:
        cluster.api.patch(ROLE, {"rules": rules})
    until(lambda: KEY not in taints(cluster), "the taint is removed", seconds=90)
    assert plugin.metric(cluster, pod, "node_problem", task="startup_taint") == 0


@item("`helm uninstall` leaves no right and no policy; the feature file stays until it expires")
def removed(cluster: Cluster) -> None:
    ensure(cluster)
    plugin.uninstall(cluster)
    assert cluster.api.find(ROLE) is None
    kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    assert plugin.NAME not in cluster.kubectl("get", kinds, "--output=name")
    assert plugin.NAME not in cluster.kubectl("get", "roles,rolebindings", "--namespace=default", "--output=name")
    assert "expiry-time" in cluster.machine.run("cat", FEATURES)
    cluster.machine.run("rm", "-r", DIRECTORY)
