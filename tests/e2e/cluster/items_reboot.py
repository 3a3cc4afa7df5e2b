"""A node that reboots with many phones.

The machine loses power: its processes end at once, and what it had in memory is gone. The node is not drained before.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import documented, held, load, phones, plugin, service
from tests.e2e.cluster.items import Items
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.cluster.cluster import Cluster

item = Items()

COUNT: Final = 120
WEB: Final = 80
"""Phones of a Deployment."""
DB: Final = 30
"""Phones of a StatefulSet."""
BARE: Final = [f"bare-{number}" for number in range(COUNT - WEB - DB)]
"""Phones without a controller."""
BY_CONTROLLERS: Final = WEB + DB
_MANY: Final = 240.0
"""Seconds within which 120 phones run; 60 on two free cores."""
_REJECTED: Final = "UnexpectedAdmissionError"
_REMOVE: Final = "kubectl get pods -A --field-selector spec.nodeName=$NODE,status.phase=Failed"


def create_bare(cluster: Cluster) -> None:
    """Create the phones without a controller that do not exist."""
    for name in BARE:
        if cluster.api.find(f"{phones.collection('Pod')}/{name}") is None:
            manifest = phones.pod(name)
            manifest["metadata"]["labels"] = {"app": "bare"}
            phones.create(cluster, manifest)


def prepare(cluster: Cluster) -> None:
    """Run 120 phones on the first machine, if they do not run yet."""
    load.prepare(cluster, COUNT)
    if cluster.api.find(f"{phones.collection('Deployment')}/web") is None:
        phones.create(cluster, phones.deployment("web", WEB))
        phones.create(cluster, phones.stateful_set("db", DB))
    create_bare(cluster)
    started = time.monotonic()
    wait_phones(cluster)
    say(f"#   {COUNT} phones run after {time.monotonic() - started:.0f} s")


def wait_phones(cluster: Cluster, bare: int = len(BARE)) -> None:
    """Wait until all phones of the controllers run, and this number of the others, each with a device of its own."""
    for app, count in (("web", WEB), ("db", DB), ("bare", bare)):
        phones.wait_running(cluster, app, count, seconds=_MANY)
    total = BY_CONTROLLERS + bare
    until(lambda: len(held.holders(cluster.machine)) == total, f"{total} containers have devices", seconds=_MANY)
    found = held.holders(cluster.machine)
    assert {len(holder.devices) for holder in found} == {plugin.SIZE}, found
    assert not held.conflicts(cluster.machine), held.conflicts(cluster.machine)


def provide(cluster: Cluster) -> None:
    """Create the binder devices of 120 phones, as a script does that runs when a host boots."""
    cluster.machine.nodes("create", "--stand-ins", "--count", str(COUNT * plugin.SIZE))


def reboot(cluster: Cluster, before_kubelet: Callable[[], object]) -> float:
    """Let the machine lose power and boot at once. Return the time when its kubelet was started."""
    cluster.machine.shut_down()
    cluster.machine.boot(cluster.parts.kubernetes, before_kubelet)
    return time.monotonic()


def failed(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the phones that have failed. Raises AssertionError if one was not rejected by the kubelet."""
    pods = cluster.api.list(phones.collection("Pod"), fieldSelector="status.phase=Failed")
    reasons = Counter(pod["status"].get("reason") for pod in pods)
    assert reasons.keys() <= {_REJECTED}, reasons
    return pods


def say_states(cluster: Cluster, started: float) -> None:
    """Print how many pods of each app are in which state."""
    pods = cluster.api.list(phones.collection("Pod"))
    states = Counter((pod["metadata"]["labels"]["app"], pod["status"].get("phase")) for pod in pods)
    text = ", ".join(f"{count} {app} {phase}" for (app, phase), count in sorted(states.items()))
    say(f"#   after {time.monotonic() - started:.0f} s: {text}")


def remove_rejected(cluster: Cluster) -> None:
    """Remove the rejected pods with the runbook's command, which must leave all others."""
    started = time.monotonic()
    before = {pod["metadata"]["name"] for pod in cluster.api.list(phones.collection("Pod"))}
    rejected = {pod["metadata"]["name"] for pod in failed(cluster)}
    command = next(line for line in documented.commands("docs/runbook.md") if "kubectl delete pod" in line)
    assert command.startswith(_REMOVE), command
    documented.shell(cluster, f"NODE={cluster.machine.name}; {command}")
    after = {pod["metadata"]["name"] for pod in cluster.api.list(phones.collection("Pod"))}
    assert after == before - rejected, f"removed {before - after}, rejected {rejected}"
    say(f"#   the runbook's command removed {len(rejected)} rejected pods in {time.monotonic() - started:.0f} s")


def check_rejected(cluster: Cluster) -> list[str]:
    """Check which rejected pods remain, and return the names of those that no controller owns."""
    left = Counter(pod["metadata"]["labels"]["app"] for pod in failed(cluster))
    messages = {pod["status"]["message"] for pod in failed(cluster)}
    say(f"#   rejected pods that remain: {dict(left)}; {messages}")
    assert not left["db"], "a StatefulSet replaces its failed pods"
    assert left["web"] <= WEB, f"{left['web']} of {WEB} were rejected: replacements were rejected too"
    return [pod["metadata"]["name"] for pod in failed(cluster) if pod["metadata"]["labels"]["app"] == "bare"]


@item(
    "A reboot with 120 phones, devices made before the kubelet starts: 110 are replaced, pods without controller fail"
)
def devices_early(cluster: Cluster) -> None:
    prepare(cluster)
    started = reboot(cluster, lambda: provide(cluster))
    until(lambda: plugin.capacity(cluster, cluster.machine)[1] == 0, "the kubelet has reported", seconds=PATIENCE)
    plugin.wait_allocatable(cluster, cluster.machine, COUNT)
    say_states(cluster, started)
    until(lambda: not _unknown(cluster), "each phone's state is known", seconds=_MANY)
    bare = [pod for pod in failed(cluster) if pod["metadata"]["name"] in BARE]
    wait_phones(cluster, len(BARE) - len(bare))
    say_states(cluster, started)
    check_rejected(cluster)
    remove_rejected(cluster)
    create_bare(cluster)
    wait_phones(cluster)


def _unknown(cluster: Cluster) -> list[str]:
    """Return the names of the phones without a controller that have no container, and are not reported as failed."""
    running = {holder.pod for holder in held.holders(cluster.machine)}
    return [
        pod["metadata"]["name"]
        for pod in phones.of(cluster, "bare")
        if pod["status"].get("phase") != "Failed" and pod["metadata"]["name"] not in running
    ]


@item("A reboot with 120 phones, devices made later: phones wait, and run as soon as the devices exist")
def devices_late(cluster: Cluster) -> None:
    prepare(cluster)
    before = _restarts(cluster)
    started = reboot(cluster, lambda: None)
    until(lambda: _restarts(cluster) > before, "the plugin runs again", seconds=2 * PATIENCE)
    until(lambda: not _phones_running(cluster), "all phones are rejected or replaced", seconds=_MANY)
    say_states(cluster, started)
    assert plugin.capacity(cluster, cluster.machine) == (0, 0)
    (waiting, *_) = [pod for pod in phones.of(cluster, "web") if pod["status"].get("phase") == "Pending"]
    assert "Insufficient aosp.io/phone" in phones.reason(waiting), phones.reason(waiting)
    provide(cluster)
    provided = time.monotonic()
    plugin.wait_allocatable(cluster, cluster.machine, COUNT)
    say(f"#   allocatable {time.monotonic() - provided:.1f} s after the devices were made")
    wait_phones(cluster, 0)
    say_states(cluster, provided)
    assert len(check_rejected(cluster)) == len(BARE)
    remove_rejected(cluster)
    create_bare(cluster)
    wait_phones(cluster)


def _restarts(cluster: Cluster) -> int:
    return phones.container_of(plugin.pod_on(cluster, cluster.machine))[1]


def _phones_running(cluster: Cluster) -> list[str]:
    pods = cluster.api.list(phones.collection("Pod"), fieldSelector="status.phase=Running")
    return [pod["metadata"]["name"] for pod in pods]


@item("A drained node reboots: no phone fails, and all run after uncordon")
def drained(cluster: Cluster) -> None:
    prepare(cluster)
    pod = plugin.pod_on(cluster, cluster.machine)["metadata"]["name"]
    variables = f"NODE={cluster.machine.name} NS={plugin.NAMESPACE} POD=pod/{pod};"
    page = documented.commands("docs/runbook.md")
    drain = next(line for line in page if line.startswith("kubectl drain"))
    uncordon = next(line for line in page if "kubectl uncordon" in line)
    started = time.monotonic()
    documented.shell(cluster, f"{variables} {drain} --force")
    say(f"#   drained in {time.monotonic() - started:.0f} s")
    started = reboot(cluster, lambda: provide(cluster))
    said = documented.shell(cluster, f"{variables} {uncordon}")
    assert f"can allocate {COUNT} of {COUNT} devices" in said, said
    say(f"#   uncordoned {time.monotonic() - started:.0f} s after the kubelet was started")
    wait_phones(cluster, 0)
    say_states(cluster, started)
    assert not failed(cluster), check_rejected(cluster)
    remove_phones(cluster)


def remove_phones(cluster: Cluster) -> None:
    """Delete all phones of this module."""
    phones.remove(cluster, "Deployment", "web")
    phones.remove(cluster, "StatefulSet", "db")
    cluster.api.delete(phones.collection("Pod"))
    until(lambda: not cluster.api.list(phones.collection("Pod")), "the phones are gone", seconds=2 * PATIENCE)


@item("A reboot of a host whose plugin is a service that the kubelet waits for: all 120 phones run again")
def plugin_as_service(cluster: Cluster) -> None:
    plugin.uninstall(cluster)
    remove_phones(cluster)
    with service.running(cluster, cluster.machine) as host_plugin:
        provide(cluster)
        plugin.wait_allocatable(cluster, cluster.machine, COUNT)
        phones.create(cluster, phones.deployment("web", WEB))
        phones.create(cluster, phones.stateful_set("db", DB))
        create_bare(cluster)
        wait_phones(cluster)
        uids = _uids(cluster)

        def boot_script() -> None:
            provide(cluster)
            host_plugin.start()

        started = reboot(cluster, boot_script)
        until(lambda: len(held.holders(cluster.machine)) == COUNT, "120 containers have devices", seconds=_MANY)
        say_states(cluster, started)
        wait_phones(cluster)
        assert _uids(cluster) == uids, "phones were replaced"
        assert not failed(cluster)
        remove_phones(cluster)
    load.clean_up(cluster)


def _uids(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["uid"] for pod in cluster.api.list(phones.collection("Pod"))}
