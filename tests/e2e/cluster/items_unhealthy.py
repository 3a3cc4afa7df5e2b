"""Items: binder devices vanish under running phones; new phones go to another machine. What Kubernetes shows of it."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import alerts, phones, plugin
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.history import NodeHistory
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.ownership import healthy, owners
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import PHONES, events, here, undisturbed, web
from tests.e2e.common.report import say
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import PATIENCE, holds, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster

item = Items()

REPORTED: Final = 15.0
"""Seconds; the kubelet reports the Node's status every 10 s."""
WHILE: Final = 3.0


@contextlib.contextmanager
def without(cluster: Cluster, phone: str) -> Iterator[None]:
    """Remove the second binder device of a phone of the first machine, and create it again at the end."""
    cluster.machine.run("rm", second_device(phone))
    try:
        yield
    finally:
        restore(cluster)


def second_device(phone: str) -> str:
    """Return the path of the second binder device of a phone."""
    return f"/dev/{PREFIX}{int(phone.removeprefix(PREFIX)) + 1}"


def restore(cluster: Cluster) -> None:
    """Create the missing binder devices of the first machine."""
    cluster.machine.nodes("create", "--stand-ins", "--count", str(DEVICES))


def allocatable(cluster: Cluster, count: int) -> float:
    """Wait until the first machine's Node object has so many allocatable phones, and return the seconds."""
    started = time.monotonic()
    plugin.wait_allocatable(cluster, cluster.machine, count, seconds=REPORTED)
    return time.monotonic() - started


def described(cluster: Cluster) -> tuple[int, ...]:
    """Return capacity, allocatable and requests as `kubectl describe node` shows them."""
    text = cluster.kubectl("describe", "node", cluster.machine.name)
    return tuple(int(amount) for amount in re.findall(rf"(?m)^ +{PHONE}:? +(\d+)", text))


@item("A device of a running phone vanishes: the phone runs on and uses it, allocatable falls by one on this node only")
def vanishes(cluster: Cluster) -> None:
    other = cluster.machines[1]
    with web(cluster, 2, **here(cluster)) as pods, NodeHistory(cluster, other) as history:
        name, (_, phone) = min(owners(cluster, pods).items())
        pod = plugin.pod_on(cluster, cluster.machine)
        before = {pod["metadata"]["name"]: events(cluster, pod) for pod in pods}
        with undisturbed(cluster, pods), without(cluster, phone):
            until(lambda: phone not in healthy(cluster.machine), "the kubelet knows")
            assert len(healthy(cluster.machine)) == PHONES - 1, f"{healthy(cluster.machine)}"
            say(f"# the Node object has one phone fewer {allocatable(cluster, PHONES - 1):.1f} s later")
            assert plugin.capacity(cluster, cluster.machine) == (PHONES, PHONES - 1)
            found = plugin.metric(cluster, pod, "devices", health="unhealthy", reason="incomplete")
            assert found == 1, f"{found} devices are incomplete"
            # The mount in the container is the device, whatever happens to its name on the host.
            cluster.kubectl("exec", name, "--", "/bin/busybox", "sh", "-c", "for d in /dev/*binder*; do : <> $d; done")
            holds(lambda: len(phones.running(cluster, "web")) == 2, "both phones run", seconds=WHILE)
            now = {pod["metadata"]["name"]: events(cluster, pod) for pod in pods}
            assert now == before, f"events before: {before}, after: {now}"
        say(f"# and one more {allocatable(cluster, PHONES):.1f} s after the device is back")
    assert history.amounts == [(PHONES, PHONES)], f"{other.name} has shown {history}"


@item("The pod's status names the unhealthy phone (gate ResourceHealthStatus), and that it is healthy again")
def pod_status(cluster: Cluster) -> None:
    with web(cluster, 1, **here(cluster)) as (pod,):
        ((_, phone),) = owners(cluster, [pod]).values()
        path = f"{phones.collection('Pod')}/{pod['metadata']['name']}"

        def health() -> list[Any]:
            (status,) = cluster.api.get(path)["status"]["containerStatuses"]
            return [(entry["name"], entry["resources"]) for entry in status.get("allocatedResourcesStatus", [])]

        def shows(state: str) -> bool:
            found, expected = health(), [(PHONE, [{"resourceID": phone, "health": state}])]
            assert found == expected, f"{found}, expected: {expected}"
            return True

        until(lambda: shows("Healthy"), "the pod's status")
        with without(cluster, phone):
            started = time.monotonic()
            until(lambda: shows("Unhealthy"), "the pod's status")
            say(f"# Unhealthy {time.monotonic() - started:.1f} s after the device vanished")
            text = cluster.kubectl("get", "pod", pod["metadata"]["name"])
            assert "1/1     Running   0" in text, text
        until(lambda: shows("Healthy"), "the pod's status")


@item("A container that restarts while a device is missing runs without it: containerd makes a directory in its place")
def restart_without_device(cluster: Cluster) -> None:
    with web(cluster, 1, **here(cluster)) as (pod,):
        before = owners(cluster, [pod])
        ((_, phone),) = before.values()
        name, device = pod["metadata"]["name"], second_device(phone)
        cluster.machine.run("rm", device)
        until(lambda: phone not in healthy(cluster.machine), "the kubelet knows")
        restart(cluster, name, 1)
        view = phones.view(cluster, phones.wait_running(cluster, "web", 1)[0])
        assert view.devices["hwbinder"].startswith("d"), f"{view.devices}"
        assert view.opened >= {phone, "binder", "vndbinder"}, f"{view.opened}"
        assert not view.opened & {device.removeprefix("/dev/"), "hwbinder"}, f"{view.opened}"
        cluster.machine.run("test", "-d", device)
        assert phone not in healthy(cluster.machine), "a directory counts as a device"
        # As docs/runbook.md says.
        cluster.machine.run("rmdir", device)
        restore(cluster)
        until(lambda: phone in healthy(cluster.machine), "the kubelet knows")
        restart(cluster, name, 2)
        until(lambda: owners(cluster, phones.running(cluster, "web")) == before, "the container has its phone")


def restart(cluster: Cluster, name: str, count: int) -> None:
    """End the container of a phone, and wait until it runs again; it has restarted ``count`` times then."""
    phones.end_container(cluster, name)
    path = f"{phones.collection('Pod')}/{name}"

    def restarted() -> bool:
        status = cluster.api.get(path)["status"]["containerStatuses"][0]
        return bool(status["restartCount"] == count and "running" in status["state"])

    until(restarted, f"the container of {name} has restarted")


@item("An unhealthy phone whose pod runs on takes a healthy one's place: it is free until that pod is deleted")
def one_too_few(cluster: Cluster) -> None:
    places = 2 * PHONES - 1
    with web(cluster, 2, **here(cluster)) as pods:
        name, (_, phone) = min(owners(cluster, pods).items())
        with without(cluster, phone):
            allocatable(cluster, PHONES - 1)
            phones.create(cluster, phones.deployment("more", 2 * PHONES))
            # Two and one on the first machine, although three healthy phones are there besides the unhealthy one.
            phones.wait_running(cluster, "more", places - 2)
            holds(lambda: len(phones.running(cluster, "more")) == places - 2, "the others wait", seconds=WHILE)
            found = owners(cluster, everyone(cluster))
            used = {held for node, held in found.values() if node == cluster.machine.name}
            assert len(healthy(cluster.machine) - used) == 1, f"healthy: {healthy(cluster.machine)}, used: {used}"
            assert described(cluster) == (PHONES, PHONES - 1, PHONES - 1), f"{described(cluster)}"
            cluster.api.delete(f"{phones.collection('Pod')}/{name}")

            def together() -> bool:
                running = everyone(cluster)
                assert len(running) == places, f"{len(running)} run"
                held = {held for node, held in owners(cluster, running).values() if node == cluster.machine.name}
                return held == healthy(cluster.machine)

            until(together, "all healthy phones are used")
        # The device is back, and so is the place for one more phone.
        until(lambda: len(everyone(cluster)) == 2 * PHONES, "all phones run", seconds=2 * PATIENCE)
        assert len(owners(cluster, everyone(cluster))) == 2 * PHONES
        phones.remove(cluster, "Deployment", "more")


def everyone(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the running phones of both Deployments."""
    return phones.running(cluster, "web") + phones.running(cluster, "more")


@item("All devices of a node vanish: its phones run on, new ones go to the other node, and its alerts fire, not before")
def all_vanish(cluster: Cluster) -> None:
    with web(cluster, 1, **here(cluster)) as pods:
        plugin.wait_allocatable(cluster, cluster.machine, PHONES)
        pod = plugin.pod_on(cluster, cluster.machine)
        until(lambda: plugin.metric(cluster, pod, "kubelet_allocatable") == PHONES, "the plugin has asked the kubelet")
        fired = alerts.firing(cluster)
        assert fired == set(), f"{fired}"
        with undisturbed(cluster, pods):
            cluster.machine.nodes("delete")
            say(f"# the Node object has no phone {allocatable(cluster, 0):.1f} s later")
            assert described(cluster) == (PHONES, 0, 1), f"{described(cluster)}"
            unhealthy = plugin.metric(cluster, pod, "devices", health="unhealthy", reason="missing")
            assert unhealthy == PHONES, f"{unhealthy}"
            until(lambda: plugin.metric(cluster, pod, "kubelet_allocatable") == 0, "the plugin has asked the kubelet")
            node = cluster.machine.name
            fired = alerts.firing(cluster)
            expected = {("AospPluginNoHealthyDevices", node), ("AospPluginDevicesUnhealthy", node)}
            assert fired == expected, f"{fired}, expected: {expected}"
            phones.create(cluster, phones.deployment("more", PHONES + 1))
            found = owners(cluster, phones.wait_running(cluster, "more", PHONES))
            assert {node for node, _ in found.values()} == {cluster.machines[1].name}, f"{found}"
            restore(cluster)
            phones.wait_running(cluster, "more", PHONES + 1)
            phones.remove(cluster, "Deployment", "more")
        until(lambda: alerts.firing(cluster) == set(), "no alert fires")
    plugin.uninstall(cluster)
