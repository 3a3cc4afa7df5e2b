"""The plugin installed with kustomize, by the commands of the page and by an overlay beside deploy/."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.test_install import PHONES, rolled_out
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.deploy.parts import DEPLOY

pytestmark = pytest.mark.core

APPLY = "kubectl apply -k ."


def overlay_of(cluster: Cluster) -> Path:
    """Make the page's overlay of deploy/base with its patch, without its configuration, and return its directory."""
    parent = cluster.directory / "kustomize"
    shutil.rmtree(parent, ignore_errors=True)
    shutil.copytree(DEPLOY, parent / "deploy")
    documented.shell(documented.command("mkdir phones"), cwd=parent)
    overlay = parent / "phones"
    documented.shell(documented.command("kustomize create"), cwd=overlay)
    documented.shell(documented.command("kustomize edit set image"), cwd=overlay)
    file = overlay / "kustomization.yaml"
    patches = documented.example("kind: NetworkPolicy")
    patches["patches"][0]["patch"] = patches["patches"][0]["patch"].replace("NAMESPACE", "observability")
    for part in (documented.example("configMapGenerator:"), patches):
        file.write_text(file.read_text() + yaml.safe_dump(part))
    return overlay


def configure(overlay: Path, **keys: object) -> None:
    """Write the configuration for stand-ins with more keys."""
    (overlay / "config.yaml").write_text(yaml.safe_dump(plugin.VALUES["config"] | keys))


def test_base(cluster: Cluster) -> None:
    """deploy/base installs by the page's overlay and patch."""
    overlay = overlay_of(cluster)
    configure(overlay)
    documented.shell(APPLY, cwd=overlay)
    rolled_out()
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    policy = cluster.kubectl("-n", plugin.NAMESPACE, "get", "networkpolicy", plugin.NAME, "--output=yaml")
    assert "kubernetes.io/metadata.name: observability" in policy, policy


def test_reload(cluster: Cluster) -> None:
    """A ConfigMap edited in place: the page's command reloads it, and prints why a wrong one is rejected."""
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
    return outcome in documented.shell(f"{command} || true", POD=pod)


def test_uninstalls(cluster: Cluster) -> None:
    """The page's commands uninstall it, with the configurations of earlier versions; nothing remains."""
    overlay = cluster.directory / "kustomize" / "phones"
    configure(overlay, log_level="debug")
    documented.shell(APPLY, cwd=overlay)
    rolled_out()
    # A counter-example: what must not remain is found while the plugin runs.
    assert any(path.endswith(".sock") for path in leftovers.files(cluster.machine)), leftovers.files(cluster.machine)
    documented.shell(documented.command("kubectl delete -k ."), cwd=overlay)
    earlier = [name for name in leftovers.objects(cluster) if name.startswith("configmap/")]
    assert len(earlier) == 1, f"{earlier}"
    documented.shell(documented.command("kubectl -n kube-system delete configmap"))
    cluster.machine.run("sh", "-c", documented.command("rm -f /var/run/cdi"))
    leftovers.require_none(cluster)
