"""The plugin installed, tested, upgraded, rolled back and uninstalled with Helm, by the commands of the page."""

from typing import Any

import pytest
import yaml

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.common.waiting import until
from tests.e2e.deploy.parts import CHART

pytestmark = pytest.mark.core

PHONES = 4
"""Sets of three of a machine's twelve devices."""
SURVIVOR = "survivor"
OTHER_VARIABLE = "PHONE_DEVICES"
ROLLOUT = "kubectl -n kube-system rollout status"


def documented_values() -> dict[str, Any]:
    """Return the page's example of values, with stand-ins instead of phones that the plugin makes."""
    values: dict[str, Any] = documented.example("spread_devices")
    values["image"]["repository"] = values["image"]["repository"].replace("REGISTRY", "localhost")
    del values["config"]["phones"]
    del values["podMonitor"], values["prometheusRule"]  # kinds of an operator that the cluster does not have
    values["config"] |= plugin.VALUES["config"]
    return values


def write(cluster: Cluster, values: dict[str, Any]) -> str:
    """Write a file of values, and return its path."""
    path = cluster.directory / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def survivor(cluster: Cluster) -> dict[str, Any]:
    """Return the pod of a phone that runs through upgrade, rollback and uninstall; the first call creates it."""
    if not phones.of(cluster, SURVIVOR):
        phones.create(cluster, phones.deployment(SURVIVOR, 1))
    (pod,) = phones.wait_running(cluster, SURVIVOR, 1)
    return pod


def labelled(cluster: Cluster, *, present: bool) -> str:
    """Set or remove the label of the first machine's node, with the page's command."""
    command = documented.command("kubectl label node NODE aosp.io/binder" + ("=true" if present else "-"))
    return documented.shell(command, NODE=cluster.machine.name)


def rolled_out() -> str:
    """Wait until the plugin is rolled out, with the page's command."""
    return documented.shell(documented.command(ROLLOUT))


def test_installs(cluster: Cluster) -> None:
    """The packed chart installs with the page's values; the plugin runs where the label is, and reports its devices."""
    labelled(cluster, present=False)
    # The devices of the host that the page's values name.
    cluster.machine.create_render_node()
    cluster.machine.run("sh", "-ec", "[ -c /dev/fuse ] || mknod -m 0666 /dev/fuse c 10 229")
    packed = cluster.helm("package", str(CHART), "--destination", str(cluster.directory)).split(": ")[-1].strip()
    command = documented.command("helm install").replace("deploy/chart", packed)
    notes = documented.shell(command.replace("values.yaml", write(cluster, documented_values())))
    assert "helm test aosp-device-plugin -n kube-system" in notes, notes
    wanted = cluster.api.get(plugin.DAEMON_SET)["status"].get("desiredNumberScheduled", 0)
    assert wanted == 0, f"{wanted} pods are wanted without the label"
    labelled(cluster, present=True)
    assert "successfully rolled out" in rolled_out()
    plugin.wait_allocatable(cluster, cluster.machine, PHONES)
    assert plugin.capacity(cluster, cluster.machine) == (PHONES, PHONES)


def test_helm_test(cluster: Cluster) -> None:
    """`helm test` runs a pod that gets a device and prints what it found; nothing of it remains."""
    output = documented.shell(documented.command("helm test"))
    assert "Phase:          Succeeded" in output, output
    for line in (
        "ok      BINDER_VISIBLE_DEVICES=aosp_binder",
        "ok      /dev/vndbinder: opened",
        "has its binder devices",
    ):
        assert line in output, output
    tests = cluster.api.list(plugin.PODS, labelSelector="app.kubernetes.io/component=test")
    assert not tests, "the pod of the test remains"


def test_checks(cluster: Cluster) -> None:
    """The page's commands that check the plugin work: allocatable devices, the log, the status."""
    jsonpath = documented.command("kubectl get node NODE -o jsonpath").replace("binder", "phone")
    assert documented.shell(jsonpath, NODE=cluster.machine.name).strip() == f"{PHONES}"
    log = documented.shell(documented.command("kubectl -n kube-system logs"))
    assert '"message": "registered"' in log, log
    pod = plugin.pod_on(cluster, cluster.machine)["metadata"]["name"]
    status = documented.shell(documented.command("kubectl -n kube-system exec POD"), POD=pod)
    assert "registered with the kubelet" in status, status
    assert cluster.machine.name in status, status


def test_upgrade(cluster: Cluster) -> None:
    """`helm upgrade` rolls out a changed configuration, `helm rollback` the former one; a phone runs on undisturbed."""
    before = survivor(cluster)
    values = documented_values()
    values["config"]["visible_devices_env"] = OTHER_VARIABLE
    command = documented.command("helm upgrade").replace("values.yaml", write(cluster, values))
    documented.shell(command)
    rolled_out()
    assert f"ok      {OTHER_VARIABLE}=aosp_binder" in _tested(cluster)
    documented.shell(documented.command("helm rollback"), REVISION="1")
    rolled_out()
    assert "ok      BINDER_VISIBLE_DEVICES=aosp_binder" in _tested(cluster)
    after = survivor(cluster)
    assert phones.container_of(before) == phones.container_of(after), "the phone was restarted"
    assert before["metadata"]["uid"] == after["metadata"]["uid"], "the phone was replaced"


def _tested(cluster: Cluster) -> str:
    """Wait until the node has allocatable devices, and return what `helm test` prints."""
    until(lambda: plugin.capacity(cluster, cluster.machine)[1] > 0, "devices are allocatable")
    return documented.shell(documented.command("helm test"))


def test_uninstall(cluster: Cluster) -> None:
    """`helm uninstall` leaves nothing on the node and in the API server; the phone runs on."""
    before = survivor(cluster)
    documented.shell(f"helm uninstall aosp-device-plugin -n {plugin.NAMESPACE}")
    labelled(cluster, present=False)
    labelled(cluster, present=True)  # for the tests that follow
    leftovers.require_none(cluster)
    until(lambda: plugin.capacity(cluster, cluster.machine)[1] == 0, "no device is allocatable")
    capacity = plugin.capacity(cluster, cluster.machine)[0]
    assert capacity == PHONES, f"capacity is {capacity}; the kubelet keeps it for 5 minutes"
    assert phones.container_of(before) == phones.container_of(survivor(cluster)), "the phone was restarted"
    phones.remove(cluster, "Deployment", SURVIVOR)
