"""Ten updates of the plugin while a pod comes each second and a container restarts: none of them is refused a phone."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

import pytest

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.machine import DEVICES
from tests.e2e.cluster.plugin import SIZE
from tests.e2e.cluster.scenes import RUNNING, events, undisturbed
from tests.e2e.cluster.watching import NodeHistory, Watch
from tests.e2e.common.report import say
from tests.e2e.kubelet.parts import PLUGIN_IMAGE
from tests.e2e.kubelet.pods import DONE, PREFIX
from tests.e2e.kubelet.waiting import PATIENCE, until

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


class Visitors(Watch):
    """The pods of the app, as a watch has seen them."""

    def __init__(self, cluster: Cluster) -> None:
        """Record what becomes of them."""
        super().__init__(cluster.api, phones.collection("Pod"), labelSelector=f"app={VISITOR}")

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The last known state of each pod, also of those that have been deleted."""
        return list({event.name: event.object for event in self.events}.values())

    def of_phase(self, *phases: str) -> list[dict[str, Any]]:
        """Return the pods with one of these phases."""
        return [pod for pod in self.pods if pod["status"].get("phase") in phases]


@contextlib.contextmanager
def visitors(cluster: Cluster) -> Iterator[Visitors]:
    """Create a pod with a phone each second, which soon ends; at the end, wait until all have ended."""
    over = threading.Event()
    with Visitors(cluster) as found, ThreadPoolExecutor(1) as executor:
        creation = executor.submit(_create, cluster, over)
        try:
            yield found
        finally:
            over.set()
        created = creation.result(PATIENCE)
        until(lambda: len(found.of_phase("Succeeded", "Failed")) == created, "each pod has ended", seconds=4 * PATIENCE)


def _create(cluster: Cluster, over: threading.Event) -> int:
    """Create the pods, and delete those that have succeeded. Return the number of pods."""
    query = {"labelSelector": f"app={VISITOR}", "fieldSelector": "status.phase=Succeeded"}
    number = 0
    while not over.wait(1):
        pod = phones.pod(f"{VISITOR}-{number}", then=DONE, restartPolicy="Never")
        pod["metadata"]["labels"]["app"] = VISITOR
        phones.create(cluster, pod)
        cluster.api.delete(phones.collection("Pod"), **query)
        number += 1
    return number


def test_ten_updates(cluster: Cluster) -> None:
    """No pod is rejected, no restart fails, phones run on, and the Node always has the phones that stay."""
    machine = cluster.machine
    plugin.wait_allocatable(cluster, machine, MANY)
    pods = phones.wait_running(cluster, "web", RUNNING)
    (restarting,) = phones.run(cluster, phones.pod(RESTARTING, then="$box sleep 3"))
    with undisturbed(cluster, pods), NodeHistory(cluster, machine) as history, visitors(cluster) as visits:
        for what, values in _values():
            old = plugin.pod_on(cluster, machine)["metadata"]["uid"]
            say(f"# {len(visits.pods)} pods: {what}")
            plugin.install(cluster, values)
            new = until(lambda: plugin.pod_on(cluster, machine), "one pod of the plugin is left", seconds=PATIENCE)
            assert new["metadata"]["uid"] != old, f"{what}: the plugin's pod is the old one"
            first = values["config"]["sets"].get("first", 0)
            plugin.wait_allocatable(cluster, machine, MANY - first // SIZE)
    _, restarts = phones.container_of(cluster.api.get(f"{phones.collection('Pod')}/{RESTARTING}"))
    lowest = min(allocatable for _, allocatable in history.amounts)
    say(f"# {len(UPDATES)} updates in {visits.events[-1].at - visits.started:.0f} s; the Node object: {history}")
    say(f"# pods: {len(visits.pods)} created, {len(visits.of_phase('Succeeded'))} succeeded; {restarts} restarts")
    say(f"# lowest allocatable: {lowest}; longest time until a container ran: {_longest_wait(visits):.0f} s")
    rejected = [phones.reason(pod) for pod in visits.of_phase("Failed")]
    assert not rejected, f"{len(rejected)} of {len(visits.pods)} pods: {rejected}"
    assert lowest >= FEWER, f"{history}"
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


def _longest_wait(visits: Visitors) -> float:
    """Return the longest time from the creation of a pod to the start of its container, in whole seconds."""
    waits = []
    for pod in visits.of_phase("Succeeded"):
        (status,) = pod["status"]["containerStatuses"]
        started = datetime.fromisoformat(status["state"]["terminated"]["startedAt"])
        created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
        waits.append((started - created).total_seconds())
    return max(waits)
