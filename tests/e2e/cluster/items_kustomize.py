"""Items: the plugin installed with kustomize, by the commands of the page and by an overlay beside deploy/."""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import yaml

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_install import PHONES, rolled_out
from tests.e2e.deploy.parts import DEPLOY
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster

item = Items()

APPLY = "kubectl apply -k ."


def overlay_of(cluster: Cluster) -> Path:
    """Make the page's overlay of deploy/base, without its configuration, and return its directory."""
    parent = cluster.directory / "kustomize"
    shutil.rmtree(parent, ignore_errors=True)
    shutil.copytree(DEPLOY, parent / "deploy")
    documented.shell(cluster, documented.command("mkdir phones"), cwd=parent)
    overlay = parent / "phones"
    documented.shell(cluster, documented.command("kustomize create"), cwd=overlay)
    documented.shell(cluster, documented.command("kustomize edit set image"), cwd=overlay)
    file = overlay / "kustomization.yaml"
    generated: dict[str, Any] = documented.example("configMapGenerator:")
    file.write_text(file.read_text() + yaml.safe_dump(generated))
    return overlay


def configure(overlay: Path, **keys: object) -> None:
    """Write the configuration for stand-ins with more keys."""
    (overlay / "config.yaml").write_text(yaml.safe_dump(plugin.VALUES["config"] | keys))


def _patch(overlay: Path, namespace: str) -> None:
    """Add the page's patch of the NetworkPolicy, for Prometheus in a namespace."""
    policy = documented.example("kind: NetworkPolicy")["patches"]
    policy[0]["patch"] = policy[0]["patch"].replace("NAMESPACE", namespace)
    file = overlay / "kustomization.yaml"
    file.write_text(file.read_text() + yaml.safe_dump({"patches": policy}))


@item("deploy/base installs by the page's overlay and patch")
def base(cluster: Cluster) -> None:
    overlay = overlay_of(cluster)
    configure(overlay)
    _patch(overlay, "observability")
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    policy = cluster.kubectl("-n", plugin.NAMESPACE, "get", "networkpolicy", plugin.NAME, "--output=yaml")
    assert "kubernetes.io/metadata.name: observability" in policy, policy


@item("A ConfigMap edited in place: the page's command reloads it, and prints why a wrong one is rejected")
def reload(cluster: Cluster) -> None:
    before = plugin.pod_on(cluster, cluster.machine)
    pod, volumes = before["metadata"]["name"], before["spec"]["volumes"]
    (name,) = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
    outcomes = {
        "configuration reloaded": ("missing_device_ttl", 20),
        "configuration reload rejected: cannot read the device directory": ("device_dir", "/nowhere"),
    }
    for outcome, (key, value) in outcomes.items():
        data = {"config.yaml": yaml.safe_dump(plugin.VALUES["config"] | {key: value})}
        cluster.kubectl("-n", plugin.NAMESPACE, "patch", "configmap", name, "--patch", json.dumps({"data": data}))
        # The kubelet writes the files of a pod once a minute, and when the pod changes.
        cluster.kubectl("-n", plugin.NAMESPACE, "annotate", "pod", pod, f"changed={key}", "--overwrite")
        until(partial(_reload_prints, cluster, pod, outcome), outcome, seconds=4 * PATIENCE)
    after = plugin.pod_on(cluster, cluster.machine)
    assert phones.container_of(before) == phones.container_of(after), "the plugin was restarted"


def _reload_prints(cluster: Cluster, pod: str, outcome: str) -> bool:
    command = documented.command("kubectl -n kube-system exec POD -- aosp-plugin reload")
    return outcome in documented.shell(cluster, f"{command} || true", POD=pod)


@item("The page's commands uninstall it, with the configurations of earlier versions; nothing remains")
def uninstalls(cluster: Cluster) -> None:
    overlay = cluster.directory / "kustomize" / "phones"
    configure(overlay, log_level="debug")
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    # A counter-example: what must not remain is found while the plugin runs.
    assert any(path.endswith(".sock") for path in leftovers.files(cluster.machine)), leftovers.files(cluster.machine)
    documented.shell(cluster, documented.command("kubectl delete -k ."), cwd=overlay)
    earlier = [name for name in leftovers.objects(cluster) if name.startswith("configmap/")]
    assert len(earlier) == 1, f"{earlier}"
    documented.shell(cluster, documented.command("kubectl -n kube-system delete configmap"))
    cluster.machine.run("sh", "-c", documented.command("rm -f /var/run/cdi"))
    leftovers.require_none(cluster)
