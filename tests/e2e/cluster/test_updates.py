"""Ten updates of the plugin while a pod comes each second and a container restarts: none of them is refused a phone."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

import pytest

from tests.e2e.cluster import phones, plugin, watching
from tests.e2e.cluster.api import CORE
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import DEVICES
from tests.e2e.cluster.plugin import PHONE, SIZE
from tests.e2e.cluster.scenes import RUNNING, events, undisturbed
from tests.e2e.common.report import say
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kubelet.parts import PLUGIN_IMAGE
from tests.e2e.kubelet.pods import DONE, PREFIX

pytestmark = pytest.mark.usefixtures("upgraded", "two_phones", "many_phones")

MANY: Final = 16
"""The phones of the machine during this test."""
FEWER: Final = 12
"""The phones of the machine with the configuration that has the lower number."""
TAG: Final = "again"
_REPOSITORY: Final = plugin.VALUES["image"]["repository"]
_FIRST_TAG: Final = plugin.VALUES["image"]["tag"]
_LOWERED: Final = {"sets": {"size": SIZE, "first": (MANY - FEWER) * SIZE}}
_RAISED: Final = {"sets": {"size": SIZE}}
UPDATES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("fewer phones", _LOWERED),
    ("another image", {"tag": TAG}),
    ("more phones", _RAISED),
    ("another log level", {"log_level": "debug"}),
    ("fewer phones", _LOWERED),
    ("another check of devices", {"verify": "file"}),
    ("more phones", _RAISED),
    ("the first image", {"tag": _FIRST_TAG}),
    ("another variable of containers", {"visible_devices_env": "PHONE_DEVICES"}),
    ("the first configuration", {"log_level": None, "verify": "char", "visible_devices_env": None}),
)
"""What each update is, and which values it changes: those of ``config``, and the tag of the image."""

VISITOR: Final = "visitor"
RESTARTING: Final = "restarting"


@pytest.fixture
def many_phones(cluster: Cluster, two_phones: None) -> Iterator[None]:
    """Create further devices on the machine, and give the plugin's image a second tag."""
    machine = cluster.machine
    machine.runtime.tag(PLUGIN_IMAGE, f"{_REPOSITORY}:{TAG}")
    machine.create_devices(MANY * SIZE)
    yield
    machine.run("rm", *(f"/dev/{PREFIX}{number}" for number in range(DEVICES, MANY * SIZE)))
    machine.runtime.remove(f"{_REPOSITORY}:{TAG}")


Pods = dict[str, dict[str, Any]]
"""The last state of pods that have ended, by name."""


@contextlib.contextmanager
def visitors(cluster: Cluster) -> Iterator[Pods]:
    """Create a pod with a phone each second, which soon ends; yield those that have. Wait for all at the end."""
    over = threading.Event()
    ended: Pods = {}
    with ThreadPoolExecutor(1) as executor:
        creation = executor.submit(_create, cluster, over, ended)
        try:
            yield ended
        finally:
            over.set()
        created = creation.result(PATIENCE)
        until(lambda: _collect(cluster, ended) == created, "each pod has ended", seconds=4 * PATIENCE)


def _create(cluster: Cluster, over: threading.Event, ended: Pods) -> int:
    """Create the pods, and return their number."""
    number = 0
    while not over.wait(1):
        pod = phones.pod(f"{VISITOR}-{number}", then=DONE, restartPolicy="Never")
        pod["metadata"]["labels"]["app"] = VISITOR
        phones.create(cluster, pod)
        number += 1
        _collect(cluster, ended)
    return number


def _collect(cluster: Cluster, ended: Pods) -> int:
    """Take pods that have ended, delete them, and return how many have."""
    for pod in cluster.api.list(phones.collection("Pod"), labelSelector=f"app={VISITOR}"):
        name = pod["metadata"]["name"]
        if pod["status"].get("phase") in {"Succeeded", "Failed"} and name not in ended:
            ended[name] = pod
            cluster.api.delete(f"{phones.collection('Pod')}/{name}")
    return len(ended)


def test_ten_updates(cluster: Cluster) -> None:
    """No pod is rejected, no restart fails, phones run on, and the Node always has the phones that stay."""
    machine = cluster.machine
    plugin.wait_allocatable(cluster, machine, MANY)
    pods = phones.wait_running(cluster, "web", RUNNING)
    (restarting,) = phones.run(cluster, phones.pod(RESTARTING, then="$box sleep 3"))
    history = watching.History(cluster, f"{CORE}/nodes", f"metadata.name={machine.name}")
    begin = time.monotonic()
    with undisturbed(cluster, pods), visitors(cluster) as visits:
        for what, values in _values():
            old = plugin.pod_on(cluster, machine)["metadata"]["uid"]
            say(f"# {len(visits)} pods: {what}")
            plugin.install(cluster, values)
            new = until(lambda: plugin.pod_on(cluster, machine), "one pod of the plugin is left", seconds=PATIENCE)
            assert new["metadata"]["uid"] != old, f"{what}: the plugin's pod is the old one"
            first = values["config"]["sets"].get("first", 0)
            plugin.wait_allocatable(cluster, machine, MANY - first // SIZE)
    _, restarts = phones.container_of(cluster.api.get(f"{phones.collection('Pod')}/{RESTARTING}"))
    nodes = (history.first[0], *(node for _, node in history.events()))
    lowest = min(int(node["status"]["allocatable"].get(PHONE, 0)) for node in nodes)
    failed = [phones.reason(pod) for pod in visits.values() if pod["status"]["phase"] == "Failed"]
    say(f"# {len(UPDATES)} updates in {time.monotonic() - begin:.0f} s; the lowest allocatable of the Node: {lowest}")
    say(f"# pods: {len(visits)} created, {len(visits) - len(failed)} succeeded; {restarts} restarts")
    say(f"# longest time until a container ran: {_longest_wait([*visits.values()]):.0f} s")
    assert not failed, f"{len(failed)} of {len(visits)} pods: {failed}"
    assert lowest >= FEWER
    failures = [event for event in events(cluster, restarting) if event[0].startswith("Failed")]
    assert not failures, failures
    phones.remove(cluster, "Pod", RESTARTING)


def _values() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each update is, and its values, which contain the changes of the earlier ones."""
    config: dict[str, Any] = {}
    tag = _FIRST_TAG
    for what, changes in UPDATES:
        tag = changes.get("tag", tag)
        config |= {key: value for key, value in changes.items() if key != "tag"}
        values = plugin.values(**config)
        values["image"]["tag"] = tag
        yield what, values


def _longest_wait(pods: Sequence[dict[str, Any]]) -> float:
    """Return the longest time from the creation of a pod to the start of its container, in whole seconds."""
    waits = []
    for pod in pods:
        if pod["status"]["phase"] != "Succeeded":
            continue
        (status,) = pod["status"]["containerStatuses"]
        started = datetime.fromisoformat(status["state"]["terminated"]["startedAt"])
        created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
        waits.append((started - created).total_seconds())
    return max(waits)
