"""Items: docs/comparison.md from one kind of installation to another, under a phone that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_install import PHONES, labelled, refused, rolled_out, survivor, write
from tests.e2e.cluster.items_kustomize import APPLY, configure, overlay_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster

item = Items()


def _applied(cluster: Cluster, base: str) -> Path:
    """Install the plugin by an overlay of deploy/``base``, and return the overlay's directory."""
    overlay = overlay_of(cluster, base)
    configure(overlay)
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    return overlay


def _helm_install(cluster: Cluster) -> str:
    command = documented.command("helm install")
    return documented.shell(cluster, command.replace("values.yaml", write(cluster, plugin.VALUES)))


@item("kustomize to Helm: Helm refuses objects of kustomize; after their removal it installs, and the phone runs on")
def kustomize_to_helm(cluster: Cluster) -> None:
    labelled(cluster, present=True)
    overlay = _applied(cluster, "base")
    before = survivor(cluster)
    output = refused(lambda: _helm_install(cluster))
    assert "invalid ownership metadata" in output, output
    documented.shell(cluster, documented.command("kubectl delete -k ."), cwd=overlay)
    _helm_install(cluster)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    assert phones.container_of(before) == phones.container_of(survivor(cluster)), "the phone was restarted"


@item("Helm to kustomize, and deploy/base to deploy/privileged under the same names; the phone runs on")
def helm_to_kustomize(cluster: Cluster) -> None:
    before = survivor(cluster)
    documented.shell(cluster, f"helm uninstall aosp-device-plugin -n {plugin.NAMESPACE}")
    _applied(cluster, "base")
    overlay = _applied(cluster, "privileged")
    assert plugin.pod_on(cluster, cluster.machine)["spec"]["containers"][0]["securityContext"]["privileged"]
    assert phones.container_of(before) == phones.container_of(survivor(cluster)), "the phone was restarted"
    phones.remove(cluster, "Deployment", before["metadata"]["labels"]["app"])
    documented.shell(cluster, documented.command("kubectl delete -k ."), cwd=overlay)
    documented.shell(cluster, documented.command("kubectl -n kube-system delete configmap"))
    leftovers.require_none(cluster)
