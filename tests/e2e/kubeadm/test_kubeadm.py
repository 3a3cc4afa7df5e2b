"""A cluster that kubeadm makes, upgrades and removes, with its defaults: from the quickstart to the end of its page.

systemd makes the cgroups of containers, static pods are the control plane, and kube-proxy and CoreDNS serve the pods.
The tests are steps: each continues what the one before has left.
"""

from typing import Any, Final

from tests.e2e.cluster import binder, documented, leftovers, phones
from tests.e2e.cluster import test_quickstart as quickstart
from tests.e2e.cluster.api import CORE, is_ready
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.test_quickstart import Reader
from tests.e2e.common.images import BUSYBOX
from tests.e2e.common.report import say
from tests.e2e.common.waiting import until
from tests.e2e.kubeadm.node import INIT, UPGRADE, KubeadmCluster
from tests.e2e.kubeadm.parts import NEW, OLD
from tests.e2e.kubelet import versions

_UNINSTALL: Final = ("kubectl apply", "kubectl -n", "kubectl delete -f", "kubectl label")
"""The beginnings of the page's commands for a plugin that Helm has installed."""
_DEVICES: Final = "for name in binder hwbinder vndbinder; do stat -c '%n %t:%T' /dev/$name; : <>/dev/$name; done"
"""Opens the devices of a phone, and prints their numbers: what the filter of its cgroup refuses does not open."""
_SYSTEM: Final = {"coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler"}


def _node(cluster: KubeadmCluster) -> dict[str, Any]:
    return cluster.api.get(f"{CORE}/nodes/{cluster.node.name}")


def _wait_system(cluster: KubeadmCluster, version: str) -> None:
    """Wait until the node of a version is Ready, and all pods of the system are; print the versions."""

    def is_up() -> bool:
        node = _node(cluster)
        pods = cluster.api.list(f"{CORE}/namespaces/kube-system/pods")
        ready = {name for name in _SYSTEM for pod in pods if pod["metadata"]["name"].startswith(name) and is_ready(pod)}
        assert is_ready(node), "the node is not Ready"
        assert ready == _SYSTEM, f"not Ready: {_SYSTEM - ready}"
        return bool(node["status"]["nodeInfo"]["kubeletVersion"] == versions.VERSIONS[version])

    until(is_up, "node and system pods are Ready", seconds=2 * SLOW)
    info, server = _node(cluster)["status"]["nodeInfo"], cluster.api.get("/version")["gitVersion"]
    assert server == info["kubeletVersion"], server
    say(f"# version Kubernetes: {server.removeprefix('v')}")
    say(f"# version containerd: {info['containerRuntimeVersion'].rpartition('v')[2]}")


def _phone(cluster: KubeadmCluster) -> tuple[tuple[str, int], str]:
    """Return ID and restarts of the phone's container, and the numbers of its devices, which it opens."""
    pod = cluster.api.get(f"{phones.collection('Pod')}/phone")
    return phones.container_of(pod), cluster.kubectl("exec", "phone", "--", "sh", "-ec", _DEVICES, seconds=SLOW)


def test_init(cluster: KubeadmCluster) -> None:
    """`kubeadm init` makes a cluster with systemd's cgroups, whose node and CoreDNS are Ready."""
    cluster.node.run("systemctl", "enable", "kubelet", seconds=SLOW)
    say(cluster.node.run("kubeadm", "init", f"--config={INIT}", seconds=6 * SLOW))
    cluster.administer()
    _wait_system(cluster, OLD)
    listed = ("systemctl", "list-units", "--no-legend", "cri-containerd-*.scope")
    assert len(cluster.node.run(*listed, seconds=SLOW).splitlines()) > len(_SYSTEM), "systemd has no scopes"
    say("# version cgroup driver: systemd")


def test_quickstart(cluster: KubeadmCluster, reader: Reader) -> None:
    """The quickstart's commands, from the check of the files to `helm test`, on the cluster's only node."""
    for section in (quickstart.FILES, quickstart.HOST, quickstart.KUBEADM, quickstart.PLUGIN):
        reader.follow(cluster.node, section)
    mounted = binder.mounted(cluster.node)
    assert len(mounted) == quickstart.PHONES, f"{mounted}"


def test_phone(cluster: KubeadmCluster, reader: Reader) -> None:
    """The page's pod gets a phone, and CoreDNS answers it."""
    cluster.node.runtime.tag(BUSYBOX, quickstart.PHONE_IMAGE)
    reader.follow(cluster.node, quickstart.POD)
    words = ("exec", "phone", "--", "nslookup", "kubernetes.default.svc.cluster.local")
    assert "10.96.0.1" in cluster.kubectl(*words, seconds=SLOW)


def test_upgrade(cluster: KubeadmCluster) -> None:
    """`kubeadm upgrade` and the new kubelet leave a phone its container and its devices; then another one starts."""
    before = _phone(cluster)
    machine, programs = cluster.node, cluster.programs_of[NEW]
    release = versions.VERSIONS[NEW]
    machine.run("ln", "-sf", f"{programs}/kubeadm", "/usr/bin/kubeadm", seconds=SLOW)
    say(machine.run("kubeadm", "upgrade", "apply", release, "--yes", f"--config={UPGRADE}", seconds=12 * SLOW))
    for name in ("kubelet", "kubectl"):
        machine.run("ln", "-sf", f"{programs}/{name}", f"/usr/bin/{name}", seconds=SLOW)
    for words in (("daemon-reload",), ("restart", "kubelet")):
        machine.run("systemctl", *words, seconds=SLOW)
    _wait_system(cluster, NEW)
    assert _phone(cluster) == before, f"before: {before}"
    phones.run(cluster, phones.pod("later"), seconds=SLOW)
    phones.remove(cluster, "Pod", "later", seconds=SLOW)


def test_uninstalled(cluster: KubeadmCluster, reader: Reader) -> None:
    """The commands of the page to uninstall the plugin leave nothing of it."""
    documented.shell("kubectl delete pod phone", seconds=2 * SLOW)
    documented.shell("helm uninstall aosp-device-plugin -n kube-system", seconds=2 * SLOW)
    for command in documented.commands("docs/deploy.md"):
        if command.section == "Uninstall" and command.line.startswith(_UNINSTALL):
            documented.shell(command.line, NODE=cluster.node.name, seconds=2 * SLOW)
        elif command.section == "Uninstall" and command.line.startswith("rm"):
            cluster.node.run("sh", "-ec", command.line, seconds=SLOW)
    leftovers.require_none(cluster)


def test_reset(cluster: KubeadmCluster) -> None:
    """`kubeadm reset` ends the cluster: no container runs, and nothing is in the kubelet's directory."""
    machine = cluster.node
    say(machine.run("kubeadm", "reset", "--force", seconds=6 * SLOW))
    assert not machine.run("ctr", "--namespace=k8s.io", "tasks", "list", "--quiet", seconds=SLOW)
    assert not machine.run("find", "/var/lib/kubelet", "-mindepth", "1", seconds=SLOW)
