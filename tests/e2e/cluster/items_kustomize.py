"""Items: the plugin installed with kustomize, by the commands of the page and by an overlay beside deploy/."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import yaml

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_install import PHONES, rolled_out
from tests.e2e.deploy.parts import DEPLOY
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster

item = Items()

APPLY = "kubectl apply -k ."
_EARLIER = 2
"""Configurations of earlier versions: each of the three differs from the next."""


def overlay_of(cluster: Cluster, base: str) -> Path:
    """Make the page's overlay of deploy/``base``, with a configuration for stand-ins, and return its directory."""
    parent = cluster.directory / "kustomize"
    shutil.rmtree(parent, ignore_errors=True)
    shutil.copytree(DEPLOY, parent / "deploy")
    documented.shell(cluster, documented.command("mkdir phones"), cwd=parent)
    overlay = parent / "phones"
    create = documented.command("kustomize create").replace("deploy/base", f"deploy/{base}")
    documented.shell(cluster, create, cwd=overlay)
    documented.shell(cluster, documented.command("kustomize edit set image"), cwd=overlay)
    file = overlay / "kustomization.yaml"
    generated: dict[str, Any] = documented.example("configMapGenerator:")
    file.write_text(file.read_text() + yaml.safe_dump(generated))
    return overlay


def configure(overlay: Path, **keys: object) -> None:
    """Write the configuration for stand-ins with more keys."""
    (overlay / "config.yaml").write_text(yaml.safe_dump(plugin.VALUES["config"] | keys))


def _patch(overlay: Path, namespace: str) -> None:
    """Add the page's patches: of the NetworkPolicy, for Prometheus in a namespace, and of the rights, to find leaks."""
    policy = documented.example("kind: NetworkPolicy")["patches"]
    policy[0]["patch"] = policy[0]["patch"].replace("NAMESPACE", namespace)
    head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": plugin.NAME}}
    (overlay / "rights.yaml").write_text(yaml.safe_dump(head | documented.example("SYS_PTRACE, DAC_READ_SEARCH")))
    file = overlay / "kustomization.yaml"
    file.write_text(file.read_text() + yaml.safe_dump({"patches": [*policy, {"path": "rights.yaml"}]}))


@item("deploy/base installs by the page's overlay and patches; the plugin finds leaks with two capabilities")
def base(cluster: Cluster) -> None:
    overlay = overlay_of(cluster, "base")
    configure(overlay, leak_scan_interval=10)
    _patch(overlay, "observability")
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    policy = cluster.kubectl("-n", plugin.NAMESPACE, "get", "networkpolicy", plugin.NAME, "--output=yaml")
    assert "kubernetes.io/metadata.name: observability" in policy, policy
    own = plugin.pod_on(cluster, cluster.machine)
    leak = "setpriv --reuid=65534 --clear-groups sleep 100 </dev/aosp_binder5 >/dev/null 2>&1 & echo $!"
    process = cluster.machine.run("sh", "-c", leak).strip()
    until(lambda: plugin.metric(cluster, own, "leaked_devices") == 1, "the plugin finds a process that holds a device")
    assert plugin.metric(cluster, own, "leak_unreadable_processes") == 0, "some processes could not be inspected"
    cluster.machine.run("kill", process)


@item("deploy/privileged replaces it by the same overlay: the privileged plugin hands out stand-ins by CDI name")
def privileged(cluster: Cluster) -> None:
    overlay = overlay_of(cluster, "privileged")
    configure(overlay, device_list=["envvar", "cdi-cri"], leak_scan_interval=300)
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    pod = plugin.pod_on(cluster, cluster.machine)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"], "the plugin is not privileged"
    # A counter-example: what must not remain is found while the plugin runs.
    present = leftovers.files(cluster.machine)
    assert "/var/run/cdi/aosp.io_phone.json" in present, f"{present}"
    assert any(path.endswith(".sock") for path in present), f"{present}"
    phones.create(cluster, phones.deployment("by-cdi", 1))
    (phone,) = phones.wait_running(cluster, "by-cdi", 1)
    view = phones.view(cluster, phone)
    assert {"binder", "hwbinder", "vndbinder", *view.visible} <= view.opened, f"{view.opened}"
    phones.remove(cluster, "Deployment", "by-cdi")


@item("deploy/provision replaces it: the provisioner has nothing to make, and the plugin has no privilege")
def provision(cluster: Cluster) -> None:
    overlay = overlay_of(cluster, "provision")
    configure(overlay)
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    pod = plugin.pod_on(cluster, cluster.machine)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"] is False, "the plugin is privileged"
    name = pod["metadata"]["name"]
    log = cluster.kubectl("logs", f"--namespace={plugin.NAMESPACE}", name, "--container=provisioner")
    assert "provisioner started" in log, log
    phones.create(cluster, phones.deployment("unprivileged", 1))
    (phone,) = phones.wait_running(cluster, "unprivileged", 1)
    assert {"binder", "hwbinder", "vndbinder"} <= phones.view(cluster, phone).opened
    phones.remove(cluster, "Deployment", "unprivileged")


@item("The page's commands uninstall it, with the configurations of earlier versions; nothing remains")
def uninstalls(cluster: Cluster) -> None:
    overlay = cluster.directory / "kustomize" / "phones"
    documented.shell(cluster, documented.command("kubectl delete -k ."), cwd=overlay)
    earlier = [name for name in leftovers.objects(cluster) if name.startswith("configmap/")]
    assert len(earlier) == _EARLIER, f"{earlier}"
    documented.shell(cluster, documented.command("kubectl -n kube-system delete configmap"))
    cluster.machine.run("sh", "-c", documented.command("rm -f /var/run/cdi"))
    leftovers.require_none(cluster)
