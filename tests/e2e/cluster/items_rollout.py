"""Items: rolling updates of the plugin while phones run, with and without maxSurge."""

from __future__ import annotations

import contextlib
import copy
import time
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.e2e.cluster import documented, phones, plugin
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.cluster.gaps import GapWatch
from tests.e2e.cluster.history import NodeHistory
from tests.e2e.cluster.items import Items
from tests.e2e.cluster.items_kustomize import APPLY, configure, overlay_of
from tests.e2e.cluster.items_phones import REPORT
from tests.e2e.cluster.ownership import healthy, owners
from tests.e2e.cluster.plugin import PHONE, VALUES
from tests.e2e.cluster.scenes import INSUFFICIENT, NO_HELP, PHONES, assert_unschedulable, events, prepare, why
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import PLUGIN_IMAGE
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.waiting import holds, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

ATTEMPTS: Final = 5
AHEAD: Final = 0.2
"""Seconds before a report at which a plugin is stopped that is to be away then; it is away for about a second."""
RUNNING: Final = 2
"""Phones that run during a rolling update; others are free."""
GAP: Final = 20.0
"""Seconds for which a kubelet has no devices, at most, if the old pod ends before the new one starts."""
OWN_MEMORY: Final = 64 * 1024
"""KiB that the plugin's pod requests."""
SHORT_GAP: Final = 1.0
"""The same if the new pod registers first: the time in which the new plugin registers once more."""
NEXT_TAG: Final = "0.1.0-next"
DAEMON_SET: Final = f"daemonset/{plugin.NAME}"


class Rollout:
    """What a rolling update did to the kubelet's devices and to the Node object."""

    def __init__(self, history: NodeHistory, watch: GapWatch) -> None:
        self.history = history
        self._watch = watch

    @property
    def gaps(self) -> list[float]:
        """The times for which the kubelet had no devices, in seconds."""
        return self._watch.gaps()

    def report(self, what: str) -> None:
        """Print the measurements."""
        gaps = ", ".join(f"{gap * 1000:.0f} ms" for gap in self.gaps) or "never"
        zero = ", ".join(f"{seconds:.1f} s" for seconds in self.history.without_devices()) or "never"
        say(f"# {what}: no devices at the kubelet: {gaps}; 0 allocatable on the Node object: {zero}")


@contextlib.contextmanager
def rollout(cluster: Cluster, what: str, expected: int = PHONES) -> Iterator[Rollout]:
    """Check that a rolling update, which the context starts and waits for, restarts no phone."""
    machine = cluster.machine
    pods = phones.wait_running(cluster, "web", RUNNING)
    before = {pod["metadata"]["uid"]: phones.container_of(pod) for pod in pods}
    held, old = owners(cluster, pods), plugin.pod_on(cluster, machine)["metadata"]["uid"]

    def unchanged() -> bool:
        now = {pod["metadata"]["uid"]: phones.container_of(pod) for pod in phones.running(cluster, "web")}
        assert now == before, f"phones before: {before}, now: {now}"
        return True

    with NodeHistory(cluster, machine) as history:
        done = Rollout(history, GapWatch(machine.kubelet.log, PHONE))
        yield done
        assert plugin.pod_on(cluster, machine)["metadata"]["uid"] != old, "the plugin's pod is the old one"
        # The kubelet reports every 10 s: the report after the last change is the last one that can show it.
        holds(unchanged, "the phones run on", seconds=REPORT + 2)
        plugin.wait_allocatable(cluster, machine, expected)
        done.report(what)
    assert owners(cluster, phones.running(cluster, "web")) == held, "a phone has changed"


def values(*, surge: bool = False, tag: str = "", **config: Any) -> dict[str, Any]:
    """Return the chart's values: with maxSurge, with another tag of the image, with more configuration keys."""
    changed = copy.deepcopy(plugin.values(**config))
    if tag:
        changed["image"]["tag"] = tag
    return changed | (documented.example("rollingUpdate: {maxSurge") if surge else {})


def start(cluster: Cluster, values: dict[str, Any] = VALUES) -> None:
    """Install the plugin with these values, and let the phones run that all items share."""
    plugin.install(cluster, values)
    prepare(cluster)
    if not phones.of(cluster, "web"):
        phones.create(cluster, phones.deployment("web", RUNNING))


def restart_plugin(cluster: Cluster) -> None:
    """Restart the plugin's pods by a rolling update, as people do."""
    cluster.kubectl("rollout", "restart", DAEMON_SET, f"--namespace={plugin.NAMESPACE}")
    cluster.kubectl("rollout", "status", DAEMON_SET, f"--namespace={plugin.NAMESPACE}", "--timeout=120s", seconds=130)


def free_phone(cluster: Cluster) -> None:
    """Check that one more phone starts."""
    phones.create(cluster, phones.pod("further"))
    assert len(owners(cluster, phones.wait_running(cluster, "further", 1))) == 1
    phones.remove(cluster, "Pod", "further")


@item("rollout restart: no phone restarts; the Node object shows 0 allocatable for one report at most")
def restart(cluster: Cluster) -> None:
    start(cluster)
    for _ in range(2):
        with rollout(cluster, "rollout restart") as done:
            restart_plugin(cluster)
        assert len(done.gaps) == 1, f"{done.gaps}"
        assert done.gaps[0] < GAP, f"{done.gaps}"
        assert all(seconds < done.gaps[0] + REPORT + 2 for seconds in done.history.without_devices()), f"{done.history}"
        assert {change.capacity for change in done.history.changes} == {PHONES}, f"{done.history}"
    free_phone(cluster)
    watch = documented.command("kubectl get node NODE -w").replace("binder", "phone")
    printed = documented.shell(cluster, f"timeout 3 {watch} || true", NODE=cluster.machine.name)
    assert printed.split() == [str(PHONES)], printed


@item("A plugin that is away when the kubelet reports: 0 allocatable until the next report, for which phones wait")
def away(cluster: Cluster) -> None:
    start(cluster)
    machine = cluster.machine
    for _ in range(ATTEMPTS):
        with rollout(cluster, "the plugin is away when the kubelet reports") as done:
            report = next_report(cluster) + REPORT
            until(lambda at=report: time.monotonic() > at - AHEAD, "the next report is near", seconds=2 * REPORT)  # type: ignore[misc]
            name = plugin.pod_on(cluster, machine)["metadata"]["name"]
            cluster.api.delete(f"{plugin.PODS}/{name}")
            until(lambda: plugin.pod_on(cluster, machine)["metadata"]["name"] != name, "there is a new pod")  # noqa: B023
            until(lambda: len(healthy(machine)) == PHONES, "the kubelet has the devices again")
            if not plugin.capacity(cluster, machine)[1]:
                phones.create(cluster, phones.pod("waits"))
                (pod,) = phones.of(cluster, "waits")
                assert_unschedulable(cluster, pod, why(INSUFFICIENT, NO_HELP))
                phones.wait_running(cluster, "waits", 1)
        if zero := done.history.without_devices():
            assert len(zero) == 1, f"{done.history}"
            assert REPORT - 1 < zero[0] < REPORT + 2, f"{done.history}"
            phones.remove(cluster, "Pod", "waits")
            return
    raise AssertionError(f"none of {ATTEMPTS} restarts was seen by a report")


def next_report(cluster: Cluster) -> float:
    """Let the kubelet report a change, and return when it did, in seconds of time.monotonic.

    The kubelet reports every 10 s, with a jitter of 4 %, and writes the Node object only if something has changed.
    """
    machine = cluster.machine
    machine.run("rm", f"/dev/{PREFIX}{DEVICES - 1}")
    try:
        plugin.wait_allocatable(cluster, machine, PHONES - 1)
        return time.monotonic()
    finally:
        machine.nodes("create", "--stand-ins", "--count", str(DEVICES))


@item("An update to another tag of the image, and one to another configuration: no phone restarts")
def changes(cluster: Cluster) -> None:
    start(cluster)
    cluster.machine.runtime.tag(PLUGIN_IMAGE, f"{PLUGIN_IMAGE.rpartition(':')[0]}:{NEXT_TAG}")
    with rollout(cluster, "another image"):
        plugin.install(cluster, values(tag=NEXT_TAG))
    pod = plugin.pod_on(cluster, cluster.machine)
    assert pod["spec"]["containers"][0]["image"].endswith(f":{NEXT_TAG}"), pod["spec"]["containers"][0]["image"]
    with rollout(cluster, "another configuration"):
        plugin.install(cluster, values(log_level="debug"))
    text = plugin_log(cluster, plugin.pod_on(cluster, cluster.machine))
    assert '"level":"debug"' in text.replace(" ", ""), text[:500]
    free_phone(cluster)


def plugin_log(cluster: Cluster, pod: dict[str, Any]) -> str:
    """Return the log of a pod of the plugin."""
    return cluster.api.text("GET", f"{plugin.PODS}/{pod['metadata']['name']}/log")


@item("maxSurge: the new plugin is ready before the old one ends, and the kubelet misses the devices for milliseconds")
def surge(cluster: Cluster) -> None:
    start(cluster, values(surge=True))
    for _ in range(2):
        with rollout(cluster, "rollout restart with maxSurge") as done:
            restart_plugin(cluster)
        log = plugin_log(cluster, plugin.pod_on(cluster, cluster.machine))
        assert "another plugin of the resource is running" in log, f"the old plugin had ended: {log[:500]}"
        assert all(gap < SHORT_GAP for gap in done.gaps), f"{done.gaps}"
        assert not done.history.without_devices(), f"{done.history}"
    free_phone(cluster)


@item("maxSurge by the page's patch for kustomize: the API server accepts it")
def surge_by_kustomize(cluster: Cluster) -> None:
    overlay = overlay_of(cluster, "base")
    configure(overlay)
    file = overlay / "kustomization.yaml"
    patch = documented.example("value: {maxSurge")
    file.write_text(file.read_text() + yaml.safe_dump(patch))
    printed = documented.shell(cluster, APPLY, "--dry-run=server", "--output=yaml", cwd=overlay)
    applied = [manifest for manifest in yaml.safe_load(printed)["items"] if manifest["kind"] == "DaemonSet"]
    assert applied[0]["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": "10%", "maxUnavailable": 0}, applied


@item("maxSurge with an image that does not exist: the old plugin goes on, and phones start; rollback")
def surge_broken(cluster: Cluster) -> None:
    start(cluster, values(surge=True))
    machine = cluster.machine
    old = plugin.pod_on(cluster, machine)["metadata"]["uid"]
    with NodeHistory(cluster, machine) as history:
        with contextlib.suppress(AssertionError):  # Helm does not see the rollout end
            plugin.install(cluster, values(surge=True, tag="missing"), "--timeout=15s")
        waiting = until(lambda: [pod for pod in plugin.pods(cluster) if "missing" in str(pod["spec"])], "the new pod")
        assert "ErrImage" in phones.reason(waiting[0]) or "ImagePull" in phones.reason(waiting[0]), waiting[0]["status"]
        free_phone(cluster)
        cluster.helm("rollback", plugin.NAME, f"--namespace={plugin.NAMESPACE}", "--wait", "--timeout=120s")
        until(lambda: len(plugin.pods(cluster)) == 1, "the pod that cannot start is gone")
        assert plugin.pod_on(cluster, machine)["metadata"]["uid"] == old, "the old plugin was replaced"
        assert {change[1:] for change in history.changes} == {(PHONES, PHONES)}, f"{history}"


@item("maxSurge on a node without memory for a second pod of the plugin: the scheduler evicts a phone for it")
def surge_full(cluster: Cluster) -> None:
    start(cluster, values(surge=True))
    node = cluster.api.get(f"{CORE}/nodes/{cluster.machine.name}")
    memory = int(node["status"]["allocatable"]["memory"].removesuffix("Ki"))
    large = phones.pod("large")
    large["spec"]["containers"][0]["resources"]["requests"] = {"memory": f"{memory - OWN_MEMORY - OWN_MEMORY // 2}Ki"}
    phones.create(cluster, large)
    (pod,) = phones.wait_running(cluster, "large", 1)
    before = {pod["metadata"]["uid"] for pod in phones.running(cluster, "web")}
    restart_plugin(cluster)
    until(lambda: "Preempted" in [reason for reason, _ in events(cluster, pod)], "the phone was evicted")
    until(lambda: not phones.running(cluster, "large"), "the phone has ended")
    assert {pod["metadata"]["uid"] for pod in phones.running(cluster, "web")} == before, "other phones were evicted"
    phones.remove(cluster, "Pod", "large")


@item("maxSurge with a configuration of fewer devices: the old plugin does not compete with the new one")
def surge_fewer(cluster: Cluster) -> None:
    surge_with_fewer_devices(cluster)


def surge_with_fewer_devices(cluster: Cluster) -> None:
    """Check a rolling update with maxSurge to a configuration of half of the devices, and uninstall the plugin."""
    start(cluster, values(surge=True))
    phones.remove(cluster, "Deployment", "web")  # a phone would have devices that are part of another one later
    machine = cluster.machine
    fewer = PHONES // 2
    with NodeHistory(cluster, machine) as history:
        watch = GapWatch(machine.kubelet.log, PHONE)
        registered = registrations(machine)
        plugin.install(cluster, values(surge=True, sets={"size": 2 * plugin.SIZE}))
        until(lambda: len(healthy(machine)) == fewer, "the kubelet has the new devices")
        plugin.wait_allocatable(cluster, machine, fewer)
        say(f"# fewer devices, with maxSurge: {history}; the kubelet had none for {watch.gaps()}")
        assert not history.without_devices(), f"{history}"
        assert registrations(machine) - registered <= 2, "the plugins registered more often than once for each change"
    plugin.uninstall(cluster)


def registrations(machine: Machine) -> int:
    """Return how often plugins have connected to a machine's kubelet, according to its log."""
    line = f'"Device plugin connected" resourceName="{PHONE}"'
    return machine.kubelet.log.read_text(errors="replace").count(line)
