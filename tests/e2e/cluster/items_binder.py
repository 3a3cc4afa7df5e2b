"""Items: phones with a binderfs each on a real binder driver, on a node that the scheduler knows.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.cluster import documented, leftovers, phones, plugin
from tests.e2e.cluster.binder import (
    APP,
    COUNT,
    RESTRICTED,
    SCRIPT,
    check_all,
    check_undisturbed,
    install,
    mounted,
    node,
    remove_node,
    running,
    values,
)
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_rollout import restart_plugin
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.kubelet.archive import BUSYBOX
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()

_NUMA: Final = {"0-1": 0, "2-3": 1}


@item("after helm uninstall and the page's commands, the host and its Node object are as before the installation")
def undone(cluster: Cluster) -> None:
    """A phone that a pod has stays mounted until the pod has ended."""
    machine = node(cluster)
    before = leftovers.record(cluster, machine)
    install(cluster, values("provisioner"))
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    phones.create(cluster, phones.pod(APP))
    phones.wait_running(cluster, APP, 1, seconds=SLOW)
    plugin.uninstall(cluster)
    documented.shell(cluster, documented.command("kubectl apply -f deploy/remove.yaml"))
    until(lambda: len(mounted(machine)) == 1, "only the phone of the pod is left", seconds=SLOW)
    phones.remove(cluster, "Pod", APP, seconds=SLOW)
    for start in (
        "kubectl -n kube-system rollout status daemonset/aosp-remove",
        "kubectl delete -f deploy/remove.yaml",
    ):
        documented.shell(cluster, documented.command(start), seconds=2 * SLOW)
    machine.run("sh", "-c", documented.command("rmdir"), seconds=SLOW)
    leftovers.require_as_before(cluster, machine, before, {f"capacity {PHONE}=0", f"allocatable {PHONE}=0"})


@item("the privileged chart on a node with a real binder driver: Android's software works in each restricted pod")
def deployed(cluster: Cluster) -> None:
    """The scheduler places all of them on the only node that has phones, and no phone sees another one."""
    machine = node(cluster)
    install(cluster, values())
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    assert len(mounted(machine)) == COUNT, f"{mounted(machine)}"
    others = {other.name: plugin.capacity(cluster, other)[1] for other in cluster.machines if other is not machine}
    assert not any(others.values()), f"{others}"
    main = container("main", 1, then=SCRIPT, resource=PHONE, securityContext=RESTRICTED)
    phones.create(cluster, phones.deployment(APP, COUNT, containers=[main]))
    check_all(running(cluster))


@item("a rolling update of the plugin: phones and their service managers run on, and their binderfs stay mounted")
def rolled(cluster: Cluster) -> None:
    """The same containers, the same mounts, and the same service managers with the services that they knew."""
    machine, found = node(cluster), running(cluster)
    before = mounted(machine)
    old = plugin.pod_on(cluster, machine)["metadata"]["uid"]
    restart_plugin(cluster, SLOW)
    assert plugin.pod_on(cluster, machine)["metadata"]["uid"] != old, "the plugin's pod is the same"
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    check_undisturbed(running(cluster), found)
    assert mounted(machine) == before, f"{mounted(machine)}, before: {before}"


@item("helm upgrade to the provisioner and back: phones run on; a new one is fresh, served without privileges")
def without_privileges(cluster: Cluster) -> None:
    """The same mounts all the time, but that of the replacement of a phone."""
    machine, found = node(cluster), running(cluster)
    before = mounted(machine)
    install(cluster, values("provisioner"))
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    pod = plugin.pod_on(cluster, machine)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"] is False, "the plugin is privileged"
    check_undisturbed(running(cluster), found)
    assert mounted(machine) == before, f"{mounted(machine)}, before: {before}"
    cluster.kubectl("delete", "pod", found[0].name, "--wait=true", seconds=SLOW)
    found = running(cluster)
    check_all(found)
    after = mounted(machine)
    assert len(after.items() - before.items()) == 1, f"{after}, before: {before}"
    install(cluster, values())
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    check_undisturbed(running(cluster), found)
    assert mounted(machine) == after, f"{mounted(machine)}, before: {after}"


def _failed(cluster: Cluster, app: str, reason: str) -> set[str]:
    """Return the names of the pods of an app that the kubelet has rejected for a reason."""
    return {pod["metadata"]["name"] for pod in phones.of(cluster, app) if pod["status"].get("reason") == reason}


@item("single-numa-node: a pod's phones are of one NUMA node; a pod with more phones than a NUMA node has is rejected")
def numa(cluster: Cluster) -> None:
    """The scheduler does not know NUMA nodes: it binds the pod."""
    machine = node(cluster)
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    machine.shut_down()  # the kubelet of a running guest may read the old file
    machine.configuration |= {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}
    machine.boot(cluster.control_plane.programs)
    install(cluster, values(phones={"count": 4}, numa=_NUMA))
    plugin.wait_allocatable(cluster, machine, 4, seconds=SLOW)
    for name in ("numa-a", "numa-b"):
        phones.create(cluster, _with_phones(phones.pod(name), 2))
        phones.wait_running(cluster, name, 1, seconds=SLOW)

    def as_expected() -> bool:
        found = sorted(_held(cluster, name) for name in ("numa-a", "numa-b"))
        assert found == [["phone0", "phone1"], ["phone2", "phone3"]], f"{found}"
        return True

    # The plugin asks the kubelet for allocations once in 3 s at most.
    until(as_expected, "the plugin reports two phones of each pod", seconds=SLOW)
    for name in ("numa-a", "numa-b"):
        phones.remove(cluster, "Pod", name, seconds=SLOW)
    phones.create(cluster, _with_phones(phones.pod("numa-c"), 3))
    until(lambda: _failed(cluster, "numa-c", "TopologyAffinityError"), "the pod is rejected", seconds=SLOW)
    phones.remove(cluster, "Pod", "numa-c", seconds=SLOW)


def _with_phones(manifest: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a pod with several containers, each of which has a phone."""
    (main,) = manifest["spec"]["containers"]
    manifest["spec"]["containers"] = [main | {"name": f"phone-{number}"} for number in range(count)]
    return manifest


def _held(cluster: Cluster, name: str) -> list[str]:
    """Return the phones of a pod's containers, as `aosp-plugin status` reports them."""
    own = plugin.pod_on(cluster, node(cluster))["metadata"]["name"]
    words = ("exec", f"--namespace={plugin.NAMESPACE}", own, "--", "aosp-plugin", "status", "--json")
    (report,) = json.loads(cluster.kubectl(*words, seconds=SLOW))["resources"]
    return sorted(device["id"] for device in report["devices"] if any(pod["name"] == name for pod in device["pods"]))


SECCOMP: Final = "/var/lib/kubelet/seccomp"
"""Where the runtime finds profiles."""


@item("deploy/examples/tenant.yaml: by its RuntimeClass a phone makes cgroups, another pod does not; the quota holds")
def tenant(cluster: Cluster) -> None:
    """The node has no AppArmor, so that the phone runs without the profile of the example."""
    machine = node(cluster)
    install(cluster, values())
    plugin.wait_allocatable(cluster, machine, COUNT, seconds=SLOW)
    objects = list(yaml.safe_load_all((PROJECT / "deploy/examples/tenant.yaml").read_text()))
    pod = objects[-1]["spec"]["template"]["spec"]
    pod["containers"][0] |= {"image": BUSYBOX, "imagePullPolicy": "Never"}
    del pod["containers"][0]["securityContext"]["appArmorProfile"]
    machine.run("install", "-D", "-m", "0644", f"{PROJECT}/deploy/seccomp/aosp-phone.json", "-t", SECCOMP)
    cluster.kubectl("apply", "--filename=-", text=yaml.safe_dump_all(objects).replace("'20'", "'1'"))
    phone, wait = ("--namespace=phones", "deployment/phone"), ("wait", f"--timeout={SLOW:.0f}s")
    cluster.kubectl(*wait, "--for=condition=Available", *phone, seconds=SLOW)
    made = "has cgroups of its own\ncan mount\n"
    until(lambda: made in cluster.kubectl("logs", *phone), "the phone has a cgroup of its own", seconds=SLOW)
    cluster.kubectl("scale", "--replicas=2", *phone)
    cluster.kubectl(*wait, "--for=condition=ReplicaFailure", *phone, seconds=SLOW)
    del pod["runtimeClassName"]
    phones.create(cluster, {"kind": "Pod", "metadata": {"name": "plain", "labels": {"app": "plain"}}, "spec": pod})
    phones.wait_running(cluster, "plain", 1, seconds=SLOW)
    until(lambda: "Read-only file system" in cluster.kubectl("logs", "plain"), "it has none", seconds=SLOW)
    phones.remove(cluster, "Pod", "plain", seconds=SLOW)
    cluster.kubectl("delete", "namespace/phones", "runtimeclass/phone", seconds=SLOW)


@item("the plugin and the node are removed")
def removed(cluster: Cluster) -> None:
    """The group leaves the cluster as it was."""
    plugin.uninstall(cluster)
    remove_node(cluster)
