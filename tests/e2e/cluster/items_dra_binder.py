"""Items: phones with a binderfs for each claim on a real binder driver, with the binder software of others in them.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`.
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import sys
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import binder, binder_claims, dra, phones, plugin
from tests.e2e.cluster.binder import BinderPhone, check, check_all, check_undisturbed
from tests.e2e.cluster.binder_claims import (
    APP,
    COUNT,
    REPLICAS,
    Neighbour,
    check_made,
    end,
    ensure,
    made,
    phones_of,
    pod,
    run_pod,
    running,
    wait_nothing,
)
from tests.e2e.cluster.figures import claims as figures
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_binder import BOOT_ID
from tests.e2e.cluster.scenes import events
from tests.e2e.common.report import say
from tests.e2e.kernel.tenants import CLIENT
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

item = Items()

MANY: Final = 120
"""Phones of a big node."""


def deployed(cluster: Cluster) -> list[BinderPhone]:
    """Return the phones of the Deployment, which is created if it does not exist."""
    ensure(cluster)
    if not cluster.api.find(f"{phones.collection('Deployment')}/{APP}"):
        phones.create(cluster, binder_claims.deployment())
    return running(cluster)


@item("the chart with api: dra on a node with a real binder driver: its phones are published, and none is mounted")
def installed(cluster: Cluster) -> None:
    """The slices have what the kernel says; the device plugin offers nothing; other machines have no slices."""
    machine = ensure(cluster)
    published = dra.devices(cluster, machine)
    assert published.keys() == {f"phone{number}" for number in range(COUNT)}, published
    attributes = published["phone0"]["attributes"]
    assert attributes["driver"]["string"] == "c", attributes
    assert attributes["binderDevices"]["int"] == 3, attributes
    release = machine.run("uname", "-r").strip()
    assert release.startswith(f"{attributes['kernelVersion']['version']}-"), f"{attributes}, kernel {release}"
    plugin.require_not_offered(cluster, machine)
    others = {other.name: dra.slices(cluster, other) for other in cluster.machines if other is not machine}
    assert not any(others.values()), others
    check_made(machine, set())


@item("a Deployment with claims of a template: in each pod binder software of others works, and sees no other phone")
def claimed(cluster: Cluster) -> None:
    """Each has a binderfs of its own, and no other is mounted: the node has more phones than pods."""
    found = deployed(cluster)
    check_made(binder.node(cluster), phones_of(found))
    check_all(found)


@item("the driver is killed and rolled out again: phones, service managers and mounts are as before")
def driver_replaced(cluster: Cluster) -> None:
    """The kubelet starts the killed one again; a rollout replaces its pod."""
    found = deployed(cluster)
    machine, containers = binder.node(cluster), [phone.container for phone in found]
    before = made(machine)
    own = plugin.pod_on(cluster, machine)
    identifier, restarts = phones.container_of(own)
    machine.runtime.kill(identifier.removeprefix("containerd://"))
    until(
        lambda: phones.container_of(plugin.pod_on(cluster, machine))[1] > restarts,
        "the driver is started again",
        seconds=SLOW,
    )
    check_undisturbed(running(cluster), containers)
    target = f"daemonset/{plugin.NAME}"
    for words in (("restart",), ("status", f"--timeout={SLOW:.0f}s")):
        cluster.kubectl("rollout", words[0], target, f"--namespace={plugin.NAMESPACE}", *words[1:], seconds=SLOW)
    assert plugin.pod_on(cluster, machine)["metadata"]["uid"] != own["metadata"]["uid"], "the driver's pod is the same"
    dra.wait_published(cluster, machine, COUNT, seconds=SLOW)
    check_undisturbed(running(cluster), containers)
    assert made(machine) == before, f"{made(machine)}, before: {before}"


@item("a container that restarts keeps the phone of its pod, and its new service manager is the only one there")
def container_restarted(cluster: Cluster) -> None:
    """The driver is not asked: the binderfs is the same, and the kernel has released what the old processes had."""
    first, *others = deployed(cluster)
    machine, phone, containers = binder.node(cluster), first.phone(), [other.container for other in others]
    before = made(machine)
    machine.runtime.signal(first.container[0].removeprefix("containerd://"), signal.SIGKILL)
    restarts = first.container[1]

    def restarted() -> BinderPhone | None:
        found = {each.name: each for each in running(cluster)}[first.name]
        return found if found.container[1] > restarts else None

    again = until(restarted, f"{first.name} runs again", seconds=SLOW)
    assert again is not None
    check(again, others[0])
    assert again.phone() == phone, f"{again.phone()}, before: {phone}"
    check_undisturbed([each for each in running(cluster) if each.name != first.name], containers)
    assert made(machine) == before, f"{made(machine)}, before: {before}"


@item("a phone's pod is deleted: its binderfs goes, its replacement has a fresh one; other phones run on")
def replaced(cluster: Cluster) -> None:
    """The claim of the new pod is another one."""
    first, *others = deployed(cluster)
    machine, containers = binder.node(cluster), {other.name: other.container for other in others}
    before = made(machine)
    cluster.api.delete(f"{phones.collection('Pod')}/{first.name}")
    gone = f"{phones.collection('Pod')}/{first.name}"
    until(lambda: cluster.api.find(gone) is None, f"{first.name} is gone", seconds=SLOW)
    found = running(cluster)
    (new,) = (phone for phone in found if phone.name not in containers)
    check(new, others[0])
    rest = [phone for phone in found if phone is not new]
    check_undisturbed(rest, [containers[phone.name] for phone in rest])
    until(lambda: len(made(machine).records) == REPLICAS, "the old claim is unprepared", seconds=SLOW)
    after = check_made(machine, phones_of(found))
    kept = {phone.phone() for phone in rest}
    assert {name: after.mounts[name] for name in kept} == {name: before.mounts[name] for name in kept}, after
    assert len(before.records.keys() - after.records.keys()) == 1, f"{after}, before: {before}"


@item("the node loses power and boots: the pods come back with their claims and fresh phones, and nothing is left over")
def rebooted(cluster: Cluster) -> None:
    """The kubelet prepares the claims again, some a minute later: the driver's pod starts when the phones do."""
    found = deployed(cluster)
    machine, before = binder.node(cluster), made(binder.node(cluster))
    boot = machine.run("cat", BOOT_ID)
    machine.shut_down()
    machine.boot(cluster.control_plane.programs)
    assert machine.run("cat", BOOT_ID) != boot, "the guest has not booted"
    old = {phone.container[0] for phone in found}

    def back() -> list[BinderPhone]:
        now = running(cluster)
        assert not old & {phone.container[0] for phone in now}, "the API server shows the containers before the reboot"
        return now

    now = until(back, "the phones are back", seconds=SLOW)
    names = {phone.name for phone in now}
    assert names == {phone.name for phone in found}, f"{names} are other pods"
    for phone in now:
        reasons = [reason for reason, _ in events(cluster, phone.pod) if reason == "FailedPrepareDynamicResources"]
        say(f"#   {phone.name}: {len(reasons)} kinds of failed Prepare")
    check_all(now)
    after = check_made(machine, phones_of(now))
    assert after.records == before.records, f"{after}, before: {before}"


@item("the Deployment is deleted: no mount, no directory, no CDI spec and no record is left")
def deleted(cluster: Cluster) -> None:
    """All phones are free again."""
    deployed(cluster)
    machine = binder.node(cluster)
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    wait_nothing(machine)
    dra.wait_published(cluster, machine, COUNT, seconds=SLOW)


@item("pods that share a claim have one binderfs: clients in a second pod call the service of the first one")
def shared(cluster: Cluster) -> None:
    """Also those in a sidecar. A pod with a claim of its own finds nothing of it."""
    machine = ensure(cluster)
    dra.create(cluster, dra.claim("shared", dra.request()))
    server = run_pod(cluster, pod("server", "main", "client", claim="shared"))
    before = check_made(machine, {server.phone()})
    second = run_pod(cluster, pod("second", "client", claim="shared"))
    stranger = run_pod(cluster, pod("stranger"))
    assert server.phone() == second.phone() != stranger.phone(), f"{second.phone()}, the server: {server.phone()}"
    sidecar = BinderPhone(cluster, machine, server.pod, "server", "client")
    check(Neighbour(server, sidecar), stranger)
    assert _called(second, "server") == "phone server", _called(second, "server")
    assert _called(stranger, "server") == "NameNotFound", _called(stranger, "server")
    end(cluster, "server", "stranger")
    after = made(machine)
    assert after == before, f"the second pod's phone has changed: {after}, before: {before}"
    end(cluster, "second")
    wait_nothing(machine)
    cluster.api.delete(f"{dra.CLAIMS}/shared")


def _called(phone: BinderPhone, name: str) -> str:
    """Return what a client in a container gets from a service."""
    command = f"/bin/tenant_client /dev/binder {name} 2>&1 | /bin/busybox head -n 1"
    output = phone.execute(CLIENT, "/bin/busybox", "sh", "-c", command)
    return output.splitlines()[0].rpartition(": ")[2]


@item("two containers with a request each of one claim: each has its own phone, and does not see the other's")
def requests(cluster: Cluster) -> None:
    """One claim, one CDI spec, and two binderfs."""
    machine = ensure(cluster)
    dra.create(cluster, dra.template("two", dra.request("first"), dra.request("second")))
    one = run_pod(cluster, pod("two", "one=first", "other=second", template="two"))
    pair = [
        BinderPhone(cluster, machine, one.pod, f"two-{request}", name)
        for name, request in (("one", "first"), ("other", "second"))
    ]
    found = check_made(machine, phones_of(pair))
    assert len(found.records) == 1, found
    check_all(pair)
    end(cluster, "two")
    wait_nothing(machine)
    cluster.api.delete(f"{dra.TEMPLATES}/two")


@item("an unchanged pod with the limit aosp.io/phone: 1 gets a phone by DRA, in which the clients work")
def extended(cluster: Cluster) -> None:
    """The scheduler makes its claim."""
    machine = ensure(cluster)
    phone = run_pod(cluster, binder_claims.unchanged("unchanged"))
    assert "extendedResourceClaimStatus" in phone.pod["status"], phone.pod["status"]
    other = run_pod(cluster, pod("by-template"))
    check_all([phone, other])
    check_made(machine, phones_of([phone, other]))
    end(cluster, "unchanged", "by-template")
    wait_nothing(machine)


@item("120 claims at once: each gets a binderfs of its own, some of them at a later try, and nothing is left over")
def many(cluster: Cluster) -> None:
    """The calls are made as by a kubelet, and without pods. Emulation is too slow to judge what they take."""
    machine = ensure(cluster)
    plugin.install(cluster, binder_claims.values(phones={"count": MANY}), f"--timeout={SLOW:.0f}s")
    dra.wait_published(cluster, machine, MANY, seconds=SLOW)
    claims = figures.create(cluster.api, dra.DRIVER, MANY)
    socket = machine.run("sh", "-c", f"ls /{dra.KUBELET}/plugins_registry/{dra.DRIVER}-*", seconds=SLOW).strip()
    names = [f"{claim.name}/{claim.uid}" for claim in claims]
    module = "tests.e2e.cluster.figures.in_guest"
    measured = json.loads(machine.run(sys.executable, "-m", module, socket, *names, seconds=3 * SLOW))
    for kind, (seconds, times) in measured["calls"].items():
        p50, p99 = statistics.median(seconds), sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
        say(f"#   {kind}: p50 {p50:.2f} s, p99 {p99:.2f} s, {len(seconds)} calls, made {times} times")
    assert measured["mounted"] == MANY, f"{measured['mounted']} file systems"
    figures.remove(cluster.api, claims)
    wait_nothing(machine)


@item("the driver and the node are removed")
def removed(cluster: Cluster) -> None:
    """The group leaves the cluster as it was."""
    binder_claims.remove(cluster)
