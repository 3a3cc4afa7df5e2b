"""Items: phones with a binderfs each on a real binder driver, on a node that the scheduler knows.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`.
"""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.binder import (
    APP,
    COUNT,
    check,
    check_all,
    check_undisturbed,
    deployment,
    mounted,
    node,
    provisioner_values,
    remove_node,
    running,
    status,
    values,
)
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.items import Items
from tests.e2e.kernel.phones import DIRECTORY
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_UNEXPECTED: Final = "UnexpectedAdmissionError"
_NUMA: Final = {"0-1": 0, "2-3": 1}
_FEW: Final = 3
_OFFSETS: Final = (11 * 3600, 3 * 3600, 0)
"""Seconds by which the clock is fast after each jump. It is never slow: the cluster's certificates are new."""


@item("the privileged variant of the chart makes phones on a node with a real binder driver, which reports them")
def installed(cluster: Cluster) -> None:
    """The node is Ready, and allocatable is the number of phones; other machines, without the label, have none."""
    machine = node(cluster)
    plugin.install(cluster, values(), f"--timeout={SLOW:.0f}s")
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    assert len(mounted(machine)) == COUNT, f"{mounted(machine)}"
    others = {other.name: plugin.capacity(cluster, other)[1] for other in cluster.machines if other is not machine}
    assert not any(others.values()), f"{others}"


@item("a Deployment of phones: in each, binder software of others works, and sees no other phone")
def deployed(cluster: Cluster) -> None:
    """The scheduler places all of them on the only node that has phones, one phone in each."""
    phones.create(cluster, deployment())
    found = running(cluster)
    nodes = {phone.pod["spec"]["nodeName"] for phone in found}
    assert nodes == {node(cluster).name}, f"{nodes}"
    assert len({phone.phone() for phone in found}) == COUNT, f"{[phone.phone() for phone in found]}"
    check_all(found)


@item("a rolling update of the plugin: phones and their service managers run on, and their binderfs stay mounted")
def rolled(cluster: Cluster) -> None:
    """The same containers, the same mounts, and the same service managers with the services that they knew."""
    machine, found = node(cluster), running(cluster)
    before, containers = mounted(machine), [phone.container for phone in found]
    old = plugin.pod_on(cluster, machine)["metadata"]["uid"]
    target = f"daemonset/{plugin.NAME}"
    for words in (("restart",), ("status", f"--timeout={SLOW:.0f}s")):
        cluster.kubectl("rollout", words[0], target, f"--namespace={plugin.NAMESPACE}", *words[1:], seconds=SLOW)
    assert plugin.pod_on(cluster, machine)["metadata"]["uid"] != old, "the plugin's pod is the same"
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    check_undisturbed(running(cluster), containers)
    assert mounted(machine) == before, f"{mounted(machine)}, before: {before}"


@item("helm upgrade to the provisioner and back: phones run on; a new one is fresh, served without privileges")
def without_privileges(cluster: Cluster) -> None:
    """The same mounts all the time, but that of the replacement of a phone."""
    machine, found = node(cluster), running(cluster)
    before, containers = mounted(machine), [phone.container for phone in found]
    plugin.install(cluster, provisioner_values(), f"--timeout={SLOW:.0f}s")
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    pod = plugin.pod_on(cluster, machine)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"] is False, "the plugin is privileged"
    check_undisturbed(running(cluster), containers)
    assert mounted(machine) == before, f"{mounted(machine)}, before: {before}"
    replaced = found[0]
    cluster.kubectl("delete", "pod", replaced.pod["metadata"]["name"], "--wait=true", seconds=SLOW)
    check_all(running(cluster))
    after = mounted(machine)
    assert len(after.items() - before.items()) == 1, f"{after}, before: {before}"
    containers = [phone.container for phone in running(cluster)]
    plugin.install(cluster, values(), f"--timeout={SLOW:.0f}s")
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    check_undisturbed(running(cluster), containers)
    assert mounted(machine) == after, f"{mounted(machine)}, before: {after}"


@item("a phone's pod is deleted: its replacement has a fresh binderfs in place of the old one; other phones run on")
def replaced(cluster: Cluster) -> None:
    """All phones are in use, so the replacement gets the phone of the deleted pod."""
    _replace_one(cluster)


def _replace_one(cluster: Cluster) -> None:
    machine = node(cluster)
    first, *others = running(cluster)
    before, phone = mounted(machine), first.phone()
    cluster.api.delete(f"{phones.collection('Pod')}/{first.name}")
    until(lambda: first.name not in _names(cluster), f"{first.name} is gone", seconds=SLOW)
    found = running(cluster)
    (new,) = (pod for pod in found if pod.name not in {other.name for other in others})
    assert new.phone() == phone, f"{new.phone()}, before: {phone}"
    check(new, others[0])
    check_undisturbed([pod for pod in found if pod is not new], [other.container for other in others])
    after = mounted(machine)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {phone}, f"{changed} have a new binderfs"


@item(
    "the node loses power and boots: the phones' pods are rejected for good, and their replacements have fresh phones"
)
def rebooted(cluster: Cluster) -> None:
    """The kubelet admits the pods before the plugin's pod runs: there are no healthy devices (docs/runbook.md)."""
    machine, before = node(cluster), {phone.name for phone in running(cluster)}
    boot = machine.run("cat", BOOT_ID)
    machine.shut_down()
    machine.boot(cluster.control_plane.programs)
    assert machine.run("cat", BOOT_ID) != boot, "the guest has not booted"
    until(lambda: _failed(cluster, APP, _UNEXPECTED) == before, f"{before} are rejected", seconds=SLOW)
    found = running(cluster)
    assert not before & {phone.name for phone in found}, f"{before} run again"
    assert {phone.phone() for phone in found} == mounted(machine).keys(), f"{[phone.phone() for phone in found]}"
    check_all(found)
    restarts = phones.container_of(plugin.pod_on(cluster, machine))[1]
    assert restarts == 1, f"the plugin's container has restarted {restarts} times"
    assert _failed(cluster, APP, _UNEXPECTED) == before, "the rejected pods have gone"
    for name in before:
        cluster.api.delete(f"{phones.collection('Pod')}/{name}")


def _failed(cluster: Cluster, app: str, reason: str) -> set[str]:
    """Return the names of the pods of an app that the kubelet has rejected for a reason."""
    return {pod["metadata"]["name"] for pod in phones.of(cluster, app) if pod["status"].get("reason") == reason}


@item("the node's clock jumps by hours, forward and back: plugin, phones and registration do not notice")
def clock_jumps(cluster: Cluster) -> None:
    """After each jump the kubelet reports, the plugin scans, mounts and detects leaks, and a phone can be replaced."""
    machine = node(cluster)
    own = plugin.pod_on(cluster, machine)
    registrations = plugin.metric(cluster, own, "registrations_total", result="ok")
    for offset in _OFFSETS:
        containers = [phone.container for phone in running(cluster)]
        now = time.time() + offset
        machine.run("date", "--set", f"@{now:.0f}")
        until(lambda: abs(_heartbeat(cluster) - now) < SLOW, "the node reports with its new time", seconds=SLOW)  # noqa: B023
        cluster.wait_node(machine, seconds=SLOW)
        plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
        check_undisturbed(running(cluster), containers)
        _replace_one(cluster)
        _repairs(cluster)
    assert phones.container_of(plugin.pod_on(cluster, machine)) == phones.container_of(own), "the plugin has restarted"
    assert plugin.metric(cluster, own, "registrations_total", result="ok") == registrations, "it has registered again"


def _heartbeat(cluster: Cluster) -> float:
    """Return the time of the node's last report by its own clock."""
    lease = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node(cluster).name}")
    return datetime.datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()


def _repairs(cluster: Cluster) -> None:
    """Check that the plugin mounts a phone again that the host unmounts, and that it scans for leaks."""
    machine = node(cluster)
    phone, _ = max(mounted(machine).items())
    machine.run("umount", "--lazy", f"{DIRECTORY}/{phone}")
    until(lambda: phone in mounted(machine), f"{phone} is mounted again", seconds=SLOW)
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    own = plugin.pod_on(cluster, machine)
    until(
        lambda: 0 <= plugin.metric(cluster, own, "leak_scan_age_seconds") < SLOW,
        "the plugin has scanned for leaks since the jump",
        seconds=SLOW,
    )
    report = status(cluster)
    assert (report["registered"], report["problem"], report["leaks"]) == (True, "", []), f"{report}"


def _names(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.api.list(phones.collection("Pod"), labelSelector=f"app={APP}")}


@item("single-numa-node: a pod's phones are of one NUMA node; a pod with more phones than a NUMA node has is rejected")
def numa(cluster: Cluster) -> None:
    """The scheduler does not know NUMA nodes: it binds the pod, and a Deployment makes pods that fail one by one."""
    machine = node(cluster)
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    machine.shut_down()  # the kubelet of a running guest may read the old file
    machine.configuration |= {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}
    machine.boot(cluster.control_plane.programs)
    plugin.install(cluster, values(phones={"count": 4}, numa=_NUMA), f"--timeout={SLOW:.0f}s")
    plugin.wait_allocatable(cluster, machine, 4, seconds=SLOW)
    pairs = {"numa-a": {"phone0", "phone1"}, "numa-b": {"phone2", "phone3"}}
    for name in pairs:
        phones.create(cluster, _with_phones(phones.pod(name), 2))
        phones.wait_running(cluster, name, 1, seconds=SLOW)
    found = {name: _held(cluster, name) for name in pairs}
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, pairs.values())), f"{found}"
    for name in pairs:
        phones.remove(cluster, "Pod", name, seconds=SLOW)
    phones.create(cluster, _with_phones(phones.deployment("numa-c", 1), 3))
    until(lambda: len(_failed(cluster, "numa-c", "TopologyAffinityError")) >= _FEW, "pods are rejected", seconds=SLOW)
    phones.remove(cluster, "Deployment", "numa-c", seconds=SLOW)


def _with_phones(manifest: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a manifest with several containers, each of which has a phone."""
    spec = manifest["spec"].get("template", manifest)["spec"]
    (container,) = spec["containers"]
    spec["containers"] = [container | {"name": f"phone-{number}"} for number in range(count)]
    return manifest


def _held(cluster: Cluster, name: str) -> set[str]:
    """Return the phones of a pod's containers, as the plugin reports them."""
    devices = status(cluster)["devices"]
    return {device["id"] for device in devices if any(pod["name"] == name for pod in device["pods"])}


@item("the phones, the plugin and the node are removed")
def removed(cluster: Cluster) -> None:
    """The group leaves the cluster as it was."""
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    plugin.uninstall(cluster)
    remove_node(cluster)
