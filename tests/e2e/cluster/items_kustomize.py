"""Items: the plugin installed with kustomize, by the commands of the page and by an overlay beside deploy/."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import yaml

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_install import PHONES, rolled_out
from tests.e2e.deploy.parts import DEPLOY
from tests.e2e.kubelet.archive import BUSYBOX

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster

item = Items()

APPLY = "kubectl apply -k ."


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


@item("deploy/base installs by the page's overlay; the page's example pod has its devices and prints them")
def base(cluster: Cluster) -> None:
    overlay = overlay_of(cluster, "base")
    configure(overlay)
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    example = overlay / "pod.yaml"
    text = (DEPLOY / "examples" / "pod.yaml").read_text().replace("aosp.io/binder: 3", "aosp.io/phone: 1")
    manifest = yaml.safe_load(text)
    manifest["spec"]["containers"][0]["image"] = BUSYBOX
    example.write_text(yaml.safe_dump(manifest))
    for command, action in (("apply", "created"), ("delete", "deleted")):
        line = documented.command(f"kubectl {command} -f deploy/examples").replace(
            "deploy/examples/pod.yaml", "pod.yaml"
        )
        output = documented.shell(cluster, line, cwd=overlay)
        assert action in output, output
        if command == "apply":
            cluster.kubectl("wait", "--for=condition=Ready", "--timeout=30s", "pod/binder-example")
            log = documented.shell(cluster, documented.command("kubectl logs binder-example"))
            names = [word for word in log.split() if word.startswith("BINDER_VISIBLE_DEVICES=")]
            assert names, log
            assert all(name in log.replace(names[0], "") for name in names[0].partition("=")[2].split(",")), log


@item("deploy/provision replaces it by the same overlay: the privileged plugin hands out stand-ins by CDI name")
def provision(cluster: Cluster) -> None:
    overlay = overlay_of(cluster, "provision")
    configure(overlay, device_list=["envvar", "cdi-cri"], leak_scan_interval=300)
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    pod = plugin.pod_on(cluster, cluster.machine)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"], "the plugin is not privileged"
    assert "aosp.io_phone.json" in cluster.machine.run("ls", "/run/cdi")
    phones.create(cluster, phones.deployment("by-cdi", 1))
    (phone,) = phones.wait_running(cluster, "by-cdi", 1)
    view = phones.view(cluster, phone)
    assert {"binder", "hwbinder", "vndbinder", *view.visible} <= view.opened, f"{view.opened}"
    phones.remove(cluster, "Deployment", "by-cdi")


@item("The page's commands uninstall it, with the configurations of earlier versions; nothing remains")
def uninstalls(cluster: Cluster) -> None:
    overlay = cluster.directory / "kustomize" / "phones"
    documented.shell(cluster, documented.command("kubectl delete -k ."), cwd=overlay)
    earlier = [name for name in leftovers.objects(cluster) if name.startswith("configmap/")]
    assert len(earlier) == 1, f"{earlier}"
    documented.shell(cluster, documented.command("kubectl -n kube-system delete configmap"))
    leftovers.require_none(cluster)
