"""Phones with a binderfs each on a real binder driver, on a node that the scheduler knows.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`.
"""

from typing import Any, Final

import yaml

from tests.e2e.cluster import binder, documented, leftovers, phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.guest import SLOW, GuestMachine
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import restart_plugin
from tests.e2e.common.images import BUSYBOX
from tests.e2e.common.waiting import until
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kernel import aosp
from tests.e2e.kubelet.pods import container

_NUMA: Final = {"0-1": 0, "2-3": 1}


def test_undone(cluster: Cluster, guest: GuestMachine) -> None:
    """After helm uninstall and the page's commands, the host and its Node object are as before the installation.

    A phone that a pod has stays mounted until the pod has ended.
    """
    before = leftovers.record(cluster, guest)
    binder.install(cluster, binder.values("provisioner"))
    plugin.wait_allocatable(cluster, guest, binder.COUNT, seconds=SLOW)
    phones.run(cluster, phones.pod(binder.APP), seconds=SLOW)
    plugin.uninstall(cluster)
    documented.shell(documented.command("kubectl apply -f deploy/remove.yaml"))
    until(lambda: len(binder.mounted(guest)) == 1, "only the phone of the pod is left", seconds=SLOW)
    phones.remove(cluster, "Pod", binder.APP, seconds=SLOW)
    for start in (
        "kubectl -n kube-system rollout status daemonset/aosp-remove",
        "kubectl delete -f deploy/remove.yaml",
    ):
        documented.shell(documented.command(start), seconds=2 * SLOW)
    for start in ("rmdir", "rm -r /var/lib/kubelet/device-plugins"):
        guest.run("sh", "-c", documented.command(start), seconds=SLOW)
    leftovers.require_as_before(cluster, guest, before, {f"capacity {PHONE}=0", f"allocatable {PHONE}=0"})


def test_deployed(cluster: Cluster, guest: GuestMachine) -> None:
    """The privileged chart on a node with a real binder driver: Android's software works in each restricted pod.

    The scheduler places all of them on the only node that has phones, and no phone sees another one.
    """
    binder.install(cluster, binder.values())
    plugin.wait_allocatable(cluster, guest, binder.COUNT, seconds=SLOW)
    assert len(binder.mounted(guest)) == binder.COUNT, f"{binder.mounted(guest)}"
    others = {other.name: plugin.capacity(cluster, other)[1] for other in cluster.machines if other is not guest}
    assert not any(others.values()), f"{others}"
    main = container("main", 1, then=aosp.SCRIPT, resource=PHONE, securityContext=aosp.RESTRICTED)
    phones.create(cluster, phones.deployment(binder.APP, binder.COUNT, containers=[main]))
    binder.check_all(binder.running(cluster))


def test_rolled(cluster: Cluster, guest: GuestMachine) -> None:
    """A rolling update of the plugin: phones and their service managers run on, and their binderfs stay mounted.

    The same containers, the same mounts, and the same service managers with the services that they knew.
    """
    found = binder.running(cluster)
    before = binder.mounted(guest)
    old = plugin.pod_on(cluster, guest)["metadata"]["uid"]
    restart_plugin(cluster, SLOW)
    assert plugin.pod_on(cluster, guest)["metadata"]["uid"] != old, "the plugin's pod is the same"
    plugin.wait_allocatable(cluster, guest, binder.COUNT, seconds=SLOW)
    binder.check_undisturbed(binder.running(cluster), found)
    assert binder.mounted(guest) == before, f"{binder.mounted(guest)}, before: {before}"


def test_without_privileges(cluster: Cluster, guest: GuestMachine) -> None:
    """helm upgrade to the provisioner and back: phones run on; a new one is fresh, served without privileges.

    The same mounts all the time, but that of the replacement of a phone.
    """
    found = binder.running(cluster)
    before = binder.mounted(guest)
    binder.install(cluster, binder.values("provisioner"))
    plugin.wait_allocatable(cluster, guest, binder.COUNT, seconds=SLOW)
    pod = plugin.pod_on(cluster, guest)
    assert pod["spec"]["containers"][0]["securityContext"]["privileged"] is False, "the plugin is privileged"
    binder.check_undisturbed(binder.running(cluster), found)
    assert binder.mounted(guest) == before, f"{binder.mounted(guest)}, before: {before}"
    cluster.kubectl("delete", "pod", found[0].name, "--wait=true", seconds=SLOW)
    found = binder.running(cluster)
    binder.check_all(found)
    after = binder.mounted(guest)
    assert len(after.items() - before.items()) == 1, f"{after}, before: {before}"
    binder.install(cluster, binder.values())
    plugin.wait_allocatable(cluster, guest, binder.COUNT, seconds=SLOW)
    binder.check_undisturbed(binder.running(cluster), found)
    assert binder.mounted(guest) == after, f"{binder.mounted(guest)}, before: {after}"


def test_numa(cluster: Cluster, guest: GuestMachine) -> None:
    """single-numa-node: a pod's phones are of one NUMA node; a pod with more phones than a NUMA node has is rejected.

    The scheduler does not know NUMA nodes: it binds the pod.
    """
    phones.remove(cluster, "Deployment", binder.APP, seconds=SLOW)
    guest.shut_down()  # the kubelet of a running guest may read the old file
    guest.configuration |= {"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"}
    guest.boot(cluster.control_plane.programs)
    binder.install(cluster, binder.values(phones={"count": 4}, numa=_NUMA))
    plugin.wait_allocatable(cluster, guest, 4, seconds=SLOW)
    for name in ("numa-a", "numa-b"):
        phones.run(cluster, _with_phones(phones.pod(name), 2), seconds=SLOW)

    def as_expected() -> bool:
        (resource,) = plugin.status(cluster, guest, seconds=SLOW)["resources"]
        held = {device["id"]: [pod["name"] for pod in device["pods"]] for device in resource["devices"]}
        assert held["phone0"] == held["phone1"] != held["phone2"] == held["phone3"], f"{held}"
        assert {*held["phone0"], *held["phone2"]} == {"numa-a", "numa-b"}, f"{held}"
        return True

    # The plugin asks the kubelet for allocations once in 3 s at most.
    until(as_expected, "the plugin reports two phones of each pod", seconds=SLOW)
    for name in ("numa-a", "numa-b"):
        phones.remove(cluster, "Pod", name, seconds=SLOW)
    phones.create(cluster, _with_phones(phones.pod("numa-c"), 3))
    path = f"{phones.collection('Pod')}/numa-c"

    def rejected() -> bool:
        return bool(cluster.api.get(path)["status"].get("reason") == "TopologyAffinityError")

    until(rejected, "the pod is rejected", seconds=SLOW)
    phones.remove(cluster, "Pod", "numa-c", seconds=SLOW)


def _with_phones(manifest: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a pod with several containers, each of which has a phone."""
    (main,) = manifest["spec"]["containers"]
    manifest["spec"]["containers"] = [main | {"name": f"phone-{number}"} for number in range(count)]
    return manifest


SECCOMP: Final = "/var/lib/kubelet/seccomp"
"""Where the runtime finds profiles."""


def test_tenant(cluster: Cluster, guest: GuestMachine) -> None:
    """deploy/examples/tenant.yaml: by its RuntimeClass a phone makes cgroups, another pod does not; the quota holds.

    The node has no AppArmor, so that the phone runs without the profile of the example.
    """
    binder.install(cluster, binder.values())
    plugin.wait_allocatable(cluster, guest, binder.COUNT, seconds=SLOW)
    objects = list(yaml.safe_load_all((PROJECT / "deploy/examples/tenant.yaml").read_text()))
    pod = objects[-1]["spec"]["template"]["spec"]
    pod["containers"][0] |= {"image": BUSYBOX, "imagePullPolicy": "Never"}
    del pod["containers"][0]["securityContext"]["appArmorProfile"]
    guest.run("install", "-D", "-m", "0644", f"{PROJECT}/deploy/seccomp/aosp-phone.json", "-t", SECCOMP)
    cluster.kubectl("apply", "--filename=-", text=yaml.safe_dump_all(objects).replace("'20'", "'1'"))
    phone, wait = ("--namespace=phones", "deployment/phone"), ("wait", f"--timeout={SLOW:.0f}s")
    cluster.kubectl(*wait, "--for=condition=Available", *phone, seconds=SLOW)
    made = "has cgroups of its own\ncan mount\n"
    until(lambda: made in cluster.kubectl("logs", *phone), "the phone has a cgroup of its own", seconds=SLOW)
    cluster.kubectl("scale", "--replicas=2", *phone)
    cluster.kubectl(*wait, "--for=condition=ReplicaFailure", *phone, seconds=SLOW)
    del pod["runtimeClassName"]
    phones.run(
        cluster, {"kind": "Pod", "metadata": {"name": "plain", "labels": {"app": "plain"}}, "spec": pod}, seconds=SLOW
    )
    until(lambda: "Read-only file system" in cluster.kubectl("logs", "plain"), "it has none", seconds=SLOW)
    phones.remove(cluster, "Pod", "plain", seconds=SLOW)
    cluster.kubectl("delete", "namespace/phones", "runtimeclass/phone", seconds=SLOW)
