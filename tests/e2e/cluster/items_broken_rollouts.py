"""Items with three nodes: a broken version or configuration stops at the first node, and the way back.

DaemonSet and Helm count with ``maxUnavailable: 10%``, which is one of three nodes, as it is one of up to ten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_install import PHONES, ROLLOUT, SURVIVOR, refused, rolled_out, write
from tests.e2e.cluster.items_kustomize import APPLY, configure, overlay_of
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()

_MISSING = "missing"
"""A tag that no registry has."""
_OVERLAPPING = {"0-5": 0, "3-9": 1}
"""NUMA nodes that the chart's schema accepts and the plugin refuses."""
_REFUSAL = "ranges must not overlap"


def _pods(cluster: Cluster) -> dict[str, str]:
    """Return the UID of the plugin's pod on each machine."""
    return {machine.name: plugin.pod_on(cluster, machine)["metadata"]["uid"] for machine in cluster.machines}


def _broken(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the plugin's pods that are not ready."""
    return [
        pod
        for pod in plugin.pods(cluster)
        if not any(entry["ready"] for entry in pod["status"].get("containerStatuses", []))
    ]


def _label(cluster: Cluster, value: str) -> None:
    """Set the label of all nodes but the first one; ``-`` removes it."""
    for machine in cluster.machines[1:]:
        label = "aosp.io/binder-" if value == "-" else f"aosp.io/binder={value}"
        cluster.kubectl("label", "node", machine.name, label)


def _stopped(cluster: Cluster, before: dict[str, str], text: str) -> dict[str, Any]:
    """Check that the rollout has stopped at one node, whose pod has a state with this text, and return that pod."""
    (pod,) = until(lambda: [pod for pod in _broken(cluster) if text in phones.reason(pod)], f"a pod with {text}")
    name = pod["spec"]["nodeName"]
    others = {machine: uid for machine, uid in before.items() if machine != name}
    after = {machine: uid for machine, uid in _pods(cluster).items() if machine != name}
    assert after == others, f"the rollout went on: {others}, then {after}"
    for machine in cluster.machines:
        if machine.name != name:
            assert plugin.capacity(cluster, machine)[1] == PHONES, machine.name
    listed = documented.shell(cluster, documented.command("kubectl -n kube-system get pods")).splitlines()
    assert [pod["metadata"]["name"]] == [line.split()[0] for line in listed[1:] if " 1/1 " not in line], listed
    status = refused(lambda: documented.shell(cluster, documented.command(ROLLOUT), "--timeout=2s"))
    assert "1 out of 3 new pods have been updated" in status, status
    return pod


def _healed(cluster: Cluster, before: dict[str, str], running: list[tuple[str, int]]) -> None:
    """Check that the plugin is ready on all nodes, that the other nodes' pods were not replaced, and phones ran on."""
    rolled_out(cluster)
    after = _pods(cluster)
    same = [name for name, uid in before.items() if after[name] == uid]
    assert len(same) == len(before) - 1, f"pods replaced: {before}, then {after}"
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)
    assert _phones(cluster) == running, "a phone was restarted"


def _phones(cluster: Cluster) -> list[tuple[str, int]]:
    return sorted(phones.container_of(pod) for pod in phones.running(cluster, SURVIVOR))


def _installed(cluster: Cluster) -> tuple[dict[str, str], list[tuple[str, int]]]:
    """Install the plugin and phones if a previous item has not, and return the pods of both."""
    _upgrade(cluster, "--install")
    rolled_out(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)
    if not phones.of(cluster, SURVIVOR):
        phones.create(cluster, phones.deployment(SURVIVOR, 6))
        phones.wait_running(cluster, SURVIVOR, 6)
    return _pods(cluster), _phones(cluster)


def _upgrade(cluster: Cluster, *options: str) -> str:
    command = documented.command("helm upgrade").replace("values.yaml", write(cluster, plugin.VALUES))
    return documented.shell(cluster, command, *options)


@item("`helm install --wait` with one node reports success for an image that does not exist; `rollout status` does not")
def waits_for_nothing(cluster: Cluster) -> None:
    _label(cluster, "-")
    command = documented.command("helm install").replace("values.yaml", write(cluster, plugin.VALUES))
    documented.shell(cluster, command, "--set", f"image.tag={_MISSING}", "--wait", "--timeout=20s")
    status = refused(lambda: documented.shell(cluster, documented.command(ROLLOUT), "--timeout=2s"))
    assert "0 of 1 updated pods are available" in status, status
    _label(cluster, "true")


@item("An image that does not exist stops at the first of three nodes; `helm rollback` heals it, phones run on")
def image(cluster: Cluster) -> None:
    before, running = _installed(cluster)
    output = refused(lambda: _upgrade(cluster, "--set", f"image.tag={_MISSING}", "--wait", "--timeout=10s"))
    assert "UPGRADE FAILED: context deadline exceeded" in output, output
    _stopped(cluster, before, f"localhost/aosp-device-plugin:{_MISSING}")
    documented.shell(cluster, documented.command("helm rollback"))
    _healed(cluster, before, running)


@item("A configuration that the plugin refuses stops at the first node, and the log names the key; rollback heals it")
def configuration(cluster: Cluster) -> None:
    before, running = _installed(cluster)
    command = documented.command("helm upgrade")
    values = write(cluster, plugin.values(numa=_OVERLAPPING))
    documented.shell(cluster, command.replace("values.yaml", values))
    pod = _stopped(cluster, before, "CrashLoopBackOff")
    log = documented.shell(cluster, documented.command("kubectl -n kube-system logs POD"), POD=pod["metadata"]["name"])
    assert "numa" in log, log
    assert _REFUSAL in log, log
    # The chart's ConfigMap has the same name in all versions: the former template reads the new configuration.
    documented.shell(cluster, documented.command("kubectl -n kube-system rollout undo"))
    until(lambda: _refused_again(cluster, pod), "the pod of the former template refuses the configuration too")
    documented.shell(cluster, documented.command("helm rollback"))
    _healed(cluster, before, running)


def _refused_again(cluster: Cluster, former: dict[str, Any]) -> bool:
    broken = [pod for pod in _broken(cluster) if pod["metadata"]["uid"] != former["metadata"]["uid"]]
    return any("CrashLoopBackOff" in phones.reason(pod) for pod in broken)


@item("`helm upgrade --atomic` returns to the previous version by itself")
def atomic(cluster: Cluster) -> None:
    before, running = _installed(cluster)
    output = refused(lambda: _upgrade(cluster, "--set", f"image.tag={_MISSING}", "--atomic", "--timeout=10s"))
    assert "has been rolled back due to atomic being set" in output, output
    _healed(cluster, before, running)
    plugin.uninstall(cluster)
    leftovers.require_none(cluster)


@item("With kustomize, `kubectl rollout undo` restores the previous configuration too")
def undo(cluster: Cluster) -> None:
    running = _phones(cluster)
    overlay = overlay_of(cluster, "base")
    configure(overlay)
    documented.shell(cluster, APPLY, cwd=overlay)
    rolled_out(cluster)
    for machine in cluster.machines:
        plugin.wait_allocatable(cluster, machine, PHONES)
    before = _pods(cluster)
    configure(overlay, numa=_OVERLAPPING)
    documented.shell(cluster, APPLY, cwd=overlay)
    _stopped(cluster, before, "CrashLoopBackOff")
    documented.shell(cluster, documented.command("kubectl -n kube-system rollout undo"))
    _healed(cluster, before, running)
    phones.remove(cluster, "Deployment", SURVIVOR)
    documented.shell(cluster, documented.command("kubectl delete -k ."), cwd=overlay)
    documented.shell(cluster, documented.command("kubectl -n kube-system delete configmap"))
    leftovers.require_none(cluster)
