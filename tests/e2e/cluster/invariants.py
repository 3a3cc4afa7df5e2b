"""Invariants of a cluster with phones, which are checked from outside: what must hold whenever nothing is on its way.

:func:`problems` returns what does not hold at one moment, :func:`settle` waits until all hold. The checks compare four
views: what the containers have, what each kubelet says (podresources), what exists on each machine, and the objects of
the API server. None of them asks the plugin.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tests.e2e.cluster import outside
from tests.e2e.cluster.api import APPS, CORE, is_ready
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.outside import Host, members
from tests.e2e.cluster.plugin import NAME, PHONE
from tests.e2e.common.waiting import PATIENCE, until

SETTLE: Final = 4 * PATIENCE
"""Seconds within which all invariants hold again: the kubelet reports allocatable devices every 10 s, and pods that
were rejected are replaced with a growing pause."""
ADMISSION: Final = frozenset({"UnexpectedAdmissionError", f"OutOf{PHONE}"})
"""Why a kubelet rejects a pod that the scheduler has bound to its node: it has no device, for now. A controller's pod
is replaced; docs/runbook.md describes other pods."""


class State(NamedTuple):
    """The cluster at one moment."""

    nodes: dict[str, dict[str, Any]]
    pods: list[dict[str, Any]]
    controllers: list[dict[str, Any]]
    """The ReplicaSets and StatefulSets."""
    daemon_sets: list[dict[str, Any]]
    hosts: dict[str, Host]
    """The machines that run and are connected, by name."""

    def phones(self) -> list[dict[str, Any]]:
        """Return the pods that request phones and have not ended."""
        return [pod for pod in self.pods if requested(pod) and not _ended(pod)]


INVARIANTS: list[Callable[[State], Iterator[str]]] = []


def observe(cluster: Cluster) -> State:
    """Return the state of the cluster. Raises OSError."""
    return State(
        nodes={node["metadata"]["name"]: node for node in cluster.api.list(f"{CORE}/nodes")},
        pods=cluster.api.list(f"{CORE}/pods"),
        daemon_sets=cluster.api.list(f"{APPS}/daemonsets"),
        controllers=cluster.api.list(f"{APPS}/replicasets") + cluster.api.list(f"{APPS}/statefulsets"),
        hosts={
            machine.name: outside.observe(machine)
            for machine in cluster.machines
            if machine.running and machine.connected
        },
    )


def problems(cluster: Cluster) -> list[str]:
    """Return what does not hold now."""
    state = observe(cluster)
    return [f"{check.__name__.replace('_', ' ')}: {text}" for check in INVARIANTS for text in check(state)]


def settle(cluster: Cluster, *, seconds: float = SETTLE, tend: Callable[[], None] | None = None) -> None:
    """Wait until all invariants hold. Raises AssertionError with what does not hold.

    ``tend`` is called before each try.
    """

    def hold() -> bool:
        if tend:
            tend()
        found = problems(cluster)
        assert not found, "; ".join(found[:6])
        return True

    until(hold, "the invariants hold", seconds=seconds)


def requested(pod: dict[str, Any]) -> int:
    """Return the number of phones that a pod requests."""
    limits = (container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"])
    return sum(int(limit.get(PHONE, 0)) for limit in limits)


def _invariant(check: Callable[[State], Iterator[str]]) -> Callable[[State], Iterator[str]]:
    INVARIANTS.append(check)
    return check


def _ended(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") in {"Failed", "Succeeded"}


def _name(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


@_invariant
def each_phone_has_its_own_devices(state: State) -> Iterator[str]:
    """A phone has the binder devices of its pod's device set, mounted and in /dev, and no other container has."""
    for name, host in state.hosts.items():
        owners: dict[str, str] = {}
        having = {
            (entry.namespace, entry.pod) for entry in host.containers if entry.kind == "container" and entry.bound
        }
        for pod in state.phones():
            key = pod["metadata"]["namespace"], pod["metadata"]["name"]
            if pod["spec"].get("nodeName") == name and pod["status"].get("phase") == "Running" and key not in having:
                yield f"{_name(pod)} runs on {name} without a binder device"
        for container in (entry for entry in host.containers if entry.kind == "container" and entry.bound):
            owner = f"{container.namespace}/{container.pod}"
            devices = set(container.bound.values()) | container.nodes
            for device in sorted(devices & owners.keys()):
                yield f"{device} of {name} is in {owners[device]} and in {owner}"
            owners |= dict.fromkeys(devices, owner)
            held = (host.allocated or {}).get((container.namespace, container.pod))
            if host.allocated is not None and held is None:
                yield f"{owner} has {sorted(devices)}, and the kubelet of {name} knows nothing of it"
            elif held and devices != (due := set().union(*map(members, held))):
                yield f"{owner} has {sorted(devices)} instead of {sorted(due)}"


@_invariant
def each_kubelet_gives_a_device_once(state: State) -> Iterator[str]:
    """The kubelet's allocations are disjoint, and each phone has as many devices as it requests."""
    for name, host in state.hosts.items():
        if host.allocated is None:
            yield f"the kubelet of {name} does not answer"
            continue
        for (one, mine), (other, its) in itertools.combinations(host.allocated.items(), 2):
            if mine & its:
                yield f"{sorted(mine & its)} of {name} are allocated to {'/'.join(one)} and to {'/'.join(other)}"
        for pod in state.phones():
            if pod["spec"].get("nodeName") == name and pod["status"].get("phase") == "Running":
                metadata = pod["metadata"]
                held = host.allocated.get((metadata["namespace"], metadata["name"]), set())
                if len(held) != requested(pod):
                    yield f"{_name(pod)} requests {requested(pod)} and has {sorted(held)}"


@_invariant
def nodes_agree_with_their_hosts(state: State) -> Iterator[str]:
    """Capacity and allocatable are the devices of the host: allocatable the healthy ones, capacity all."""
    for name, host in state.hosts.items():
        if not is_ready(state.nodes.get(name, {})):
            yield f"{name} is not Ready"
            continue
        status = state.nodes[name]["status"]
        capacity, allocatable = (int(status[key].get(PHONE, 0)) for key in ("capacity", "allocatable"))
        runs = any(container.name == NAME for container in host.containers)
        healthy = host.sets if runs else set()
        if host.allocatable is not None and host.allocatable != healthy:
            yield f"the kubelet of {name} can allocate {sorted(host.allocatable)}, and {sorted(healthy)} are healthy"
        if allocatable != len(healthy):
            yield f"{name} has {allocatable} allocatable, and {len(healthy)} on the host"
        if runs and capacity < len(host.sets | host.partial):
            yield f"{name} has a capacity of {capacity}, and {len(host.sets | host.partial)} on the host"


@_invariant
def pods_are_in_promised_states(state: State) -> Iterator[str]:
    """A pod runs and is ready, or was rejected by a kubelet for want of a device."""
    for pod in state.pods:
        status, name = pod["status"], _name(pod)
        phase = status.get("phase")
        if phase == "Failed":
            if status.get("reason") not in ADMISSION:
                yield f"{name} failed: {status.get('reason')} {status.get('message')}"
        elif phase != "Running" or "deletionTimestamp" in pod["metadata"]:
            yield f"{name} is {phase}, deleted {pod['metadata'].get('deletionTimestamp')}"
        elif not all(entry.get("ready") for entry in status.get("containerStatuses", [{}])):
            yield f"{name} runs and is not ready"


@_invariant
def controllers_have_their_pods(state: State) -> Iterator[str]:
    """A controller has its number of pods, which are ready."""
    for controller in state.controllers:
        due, has = controller["spec"]["replicas"], controller["status"].get("readyReplicas", 0)
        if due != has:
            yield f"{_name(controller)} has {has} of {due} pods"
    for daemon_set in state.daemon_sets:
        status = daemon_set["status"]
        counts = {name: status.get(name, 0) for name in ("updatedNumberScheduled", "numberReady", "numberAvailable")}
        if set(counts.values()) != {status["desiredNumberScheduled"]}:
            yield f"{_name(daemon_set)} has {counts} of {status['desiredNumberScheduled']} pods"
        if status.get("observedGeneration") != daemon_set["metadata"]["generation"]:
            yield f"{_name(daemon_set)} has changed"


@_invariant
def nothing_is_left(state: State) -> Iterator[str]:
    """Each container, socket, CDI file and mount belongs to something that exists."""
    uids = {pod["metadata"]["uid"] for pod in state.pods}
    for name, host in state.hosts.items():
        pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in state.pods if not _ended(pod)}
        for container in host.containers:
            if (container.namespace, container.pod) not in pods or (container.uid and container.uid not in uids):
                yield f"{name} runs a {container.kind} of {container.namespace}/{container.pod}, which does not exist"
        plugins = [container for container in host.containers if container.name == NAME]
        if len(host.sockets) != len(plugins):
            yield f"{name} has the sockets {host.sockets} of {len(plugins)} plugins"
        if host.cdi:
            yield f"{name} has the CDI files {host.cdi}"
        yield from _mounts_left(name, host, uids)


def _mounts_left(name: str, host: Host, uids: set[str]) -> Iterator[str]:
    for mount in host.mounts:
        if "/kubelet/pods/" in mount and mount.split("/kubelet/pods/")[1].split("/")[0] not in uids:
            yield f"{name} has the mount {mount} of a pod that does not exist"
    networks = sum("/netns/cni-" in mount for mount in host.mounts)
    sandboxes = sum(container.kind == "sandbox" for container in host.containers)
    if networks != sandboxes:
        yield f"{name} has {networks} network namespaces of {sandboxes} pods"
