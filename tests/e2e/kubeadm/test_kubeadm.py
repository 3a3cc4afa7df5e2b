"""A cluster that kubeadm makes, upgrades and removes, with its defaults: from the quickstart to the end of its page.

Static pods are the control plane, systemd makes the cgroups of the containers of phones, and kube-proxy and CoreDNS
serve the pods. The tests are steps: each continues what the one before has left.
"""

import re
from typing import Any, Final

from tests.e2e.cluster import binder, documented, leftovers, phones
from tests.e2e.cluster import test_quickstart as quickstart
from tests.e2e.cluster.api import CORE, is_ready
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.test_quickstart import Reader
from tests.e2e.common.images import BUSYBOX
from tests.e2e.common.report import say
from tests.e2e.common.waiting import until
from tests.e2e.kubeadm.node import ControlPlaneNode, KubeadmCluster, KubeadmNode
from tests.e2e.kubeadm.parts import NEW, OLD
from tests.e2e.kubelet import versions

_UNINSTALL: Final = ("kubectl apply", "kubectl -n", "kubectl delete -f", "kubectl label")
"""The beginnings of the page's commands for a plugin that Helm has installed."""
_DEVICES: Final = (
    "for name in binder hwbinder vndbinder; do busybox stat -c '%n %t:%T' /dev/$name; : <>/dev/$name; done"
)
"""Opens the devices of a phone, and prints their numbers: what the filter of its cgroup refuses does not open."""
_SYSTEM: Final = {"kube-dns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"}


def _component(pod: dict[str, Any]) -> str:
    """Return the component of a pod of the system, which kubeadm's label has, or that of an addon."""
    labels = pod["metadata"]["labels"]
    return str(labels.get("component") or labels.get("k8s-app") or "")


def _wait_system(cluster: KubeadmCluster, version: str, *names: str) -> None:
    """Wait until the nodes have a version and are Ready, and all pods of the system are; print the versions."""

    def is_up() -> bool:
        pods = cluster.api.list(f"{CORE}/namespaces/kube-system/pods")
        waiting = [pod["metadata"]["name"] for pod in pods if not is_ready(pod)]
        assert not waiting, f"not Ready: {waiting}"
        started = {(_component(pod), pod["spec"]["nodeName"]) for pod in pods}
        assert {name for name, _ in started} >= _SYSTEM, f"{started}"
        assert started >= {("kube-proxy", name) for name in names}, f"{started}"
        images = [pod["spec"]["containers"][0]["image"] for pod in pods]
        old = [image for image in images if "/kube-" in image and not image.endswith(versions.VERSIONS[version])]
        assert not old, f"{old}"
        nodes = {name: cluster.api.get(f"{CORE}/nodes/{name}") for name in names}
        versions_of = {name: node["status"]["nodeInfo"]["kubeletVersion"] for name, node in nodes.items()}
        assert all(map(is_ready, nodes.values())), "a node is not Ready"
        assert {*versions_of.values()} == {versions.VERSIONS[version]}, f"{versions_of}"
        return True

    until(is_up, "nodes and system pods are Ready", seconds=SLOW)
    server = cluster.api.get("/version")["gitVersion"]
    assert server == versions.VERSIONS[version], server
    say(f"# version Kubernetes: {server.removeprefix('v')}")


def _phone(cluster: KubeadmCluster) -> tuple[tuple[str, int], str]:
    """Return ID and restarts of the phone's container, and the numbers of its devices, which it opens."""
    pod = cluster.api.get(f"{phones.collection('Pod')}/phone")
    return phones.container_of(pod), cluster.kubectl("exec", "phone", "--", "sh", "-ec", _DEVICES, seconds=SLOW)


def test_init(cluster: KubeadmCluster, control: ControlPlaneNode) -> None:
    """`kubeadm init` makes a control plane, whose node and CoreDNS are Ready."""
    say(control.kubeadm("init", f"--config={control.configure()}"))
    cluster.administer()
    _wait_system(cluster, OLD, control.name)


def test_join(cluster: KubeadmCluster, control: ControlPlaneNode, node: KubeadmNode) -> None:
    """A node joins with kubeadm's defaults, by the command that kubeadm prints; systemd makes its cgroups."""
    node.run("systemctl", "enable", "kubelet", seconds=SLOW)
    (command,) = re.findall(r"(?m)^kubeadm join .*", control.kubeadm("token", "create", "--print-join-command"))
    say(node.run(*command.split(), seconds=2 * SLOW))
    _wait_system(cluster, OLD, control.name, node.name)
    info = cluster.api.get(f"{CORE}/nodes/{node.name}")["status"]["nodeInfo"]
    for name, field in binder.VERSIONS.items():
        say(f"# version {name}: {info[field]}")
    say(f"# version runc: {node.run('runc', '--version', seconds=SLOW).split()[2]}")
    say(f"# version systemd: {node.run('systemctl', '--version', seconds=SLOW).split()[1]}")
    assert node.run("systemctl", "list-units", "--no-legend", "cri-containerd-*.scope", seconds=SLOW), "no scopes"


def test_quickstart(cluster: KubeadmCluster, reader: Reader) -> None:
    """The quickstart's commands, from the check of the files to `helm test`, on the node for phones."""
    for section in (quickstart.FILES, quickstart.HOST, quickstart.KUBEADM, quickstart.PLUGIN):
        reader.follow(cluster.node, section)
    mounted = binder.mounted(cluster.node)
    assert len(mounted) == quickstart.PHONES, f"{mounted}"


def test_phone(cluster: KubeadmCluster, reader: Reader) -> None:
    """The page's pod gets a phone, and CoreDNS answers it."""
    cluster.node.runtime.tag(BUSYBOX, quickstart.PHONE_IMAGE)
    reader.follow(cluster.node, quickstart.POD)
    words = ("exec", "phone", "--", "busybox", "nslookup", "kubernetes.default.svc.cluster.local")
    assert "10.96.0.1" in cluster.kubectl(*words, seconds=SLOW).split()


def test_upgrade(cluster: KubeadmCluster, control: ControlPlaneNode, node: KubeadmNode) -> None:
    """`kubeadm upgrade` and the new kubelet leave a phone its container and its devices; then another one starts.

    kubeadm's documents say to drain a node before its kubelet is replaced, which would end the phone.
    """
    before = _phone(cluster)
    release, programs = versions.VERSIONS[NEW], cluster.programs_of[NEW]
    say(control.kubeadm("upgrade", "apply", release, "--yes", *control.options, programs=programs))
    control.replace_kubelet(programs)
    node.install(programs, "kubeadm")
    say(node.run("kubeadm", "upgrade", "node", seconds=2 * SLOW))
    node.install(programs, "kubelet", "kubectl")
    for words in (("daemon-reload",), ("restart", "kubelet")):
        node.run("systemctl", *words, seconds=SLOW)
    _wait_system(cluster, NEW, control.name, node.name)
    assert _phone(cluster) == before, f"before: {before}"
    phones.run(cluster, phones.pod("later"), seconds=SLOW)
    phones.remove(cluster, "Pod", "later", seconds=SLOW)


def test_uninstalled(cluster: KubeadmCluster, node: KubeadmNode) -> None:
    """The commands of the page to uninstall the plugin leave nothing of it."""
    documented.shell("kubectl delete pod phone", seconds=SLOW)
    documented.shell("helm uninstall aosp-device-plugin -n kube-system", seconds=SLOW)
    for command in documented.commands("docs/deploy.md"):
        if command.section == "Uninstall" and command.line.startswith(_UNINSTALL):
            documented.shell(command.line, NODE=node.name, seconds=SLOW)
        elif command.section == "Uninstall" and command.line.startswith("rm"):
            node.run("sh", "-ec", command.line, seconds=SLOW)
    leftovers.require_none(cluster)


def test_reset(cluster: KubeadmCluster, control: ControlPlaneNode, node: KubeadmNode) -> None:
    """`kubeadm reset` ends the node and the control plane: no container runs, and the kubelet's directory is empty."""
    drain = ("drain", node.name, "--ignore-daemonsets", "--delete-emptydir-data")
    # It refuses a pod that ends after its DaemonSet.
    until(lambda: cluster.kubectl(*drain, seconds=SLOW), "the node is drained", seconds=SLOW)
    say(node.run("kubeadm", "reset", "--force", seconds=2 * SLOW))
    cluster.kubectl("delete", "node", node.name)
    control.kubelet.end()
    say(control.kubeadm("reset", "--force", f"--cri-socket=unix://{control.runtime.socket}"))
    for machine in (node, control):
        assert not machine.runtime.running()
        assert not machine.run("find", "/var/lib/kubelet", "-mindepth", "1", seconds=SLOW)
