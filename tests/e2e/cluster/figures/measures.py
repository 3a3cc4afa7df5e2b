"""What is measured. Each function adds the values of one round to the results; the drivers take turns."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import phones
from tests.e2e.cluster.figures import calls, claims
from tests.e2e.cluster.figures.recorder import RESOURCE, SLICES, PodRecorder
from tests.e2e.common.report import say
from tests.e2e.kubelet.archive import BUSYBOX
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.figures.accounts import Audit
    from tests.e2e.cluster.figures.drivers import Driver
    from tests.e2e.cluster.figures.recorder import SliceRecorder
    from tests.e2e.cluster.figures.results import Results

_IN_TURN: Final = 100
"""Claims that are prepared one after the other, and then unprepared, twice in a round."""
_SETTLE: Final = 5.0
"""Seconds from the last event to a measurement of memory."""
_QUIET: Final = 65.0
"""Seconds without a change before slices are deleted: for 60 s, the helper of Go drivers ignores that a slice which it
has written is gone (resourceslice/resourceslicecontroller.go, ``DefaultMutationCacheTTL``)."""
_NEVER: Final = 120.0
"""Seconds after which slices count as never back."""
_HOUR: Final = 3600.0
_NUMBERS: Final = itertools.count(1)


def start(driver: Driver, slices: SliceRecorder, devices: int, results: Results) -> None:
    """Start a driver that does not run; its slices do not exist."""
    at = driver.start()
    registered = driver.wait_registered(at)
    visible = slices.wait(driver.name, devices, at)
    results.add("start to registered with the kubelet, ms", driver.title, 1000 * (registered - at))
    results.add("start to all devices in slices, ms", driver.title, 1000 * (visible - at))


def latencies(cluster: Cluster, driver: Driver, devices: int, results: Results) -> None:
    """Prepare and unprepare claims one after the other, and then a claim for each device at once."""
    memory(driver, "at rest", results)
    latencies_in_turn(cluster, driver, devices, results)
    with calls.Caller(driver.socket) as caller:
        found = claims.create(cluster.api, driver.name, devices)
        batch = calls.at_once(caller.prepare, found)
        _add_batch(f"Prepare, {devices} at once", driver, batch, results)
        memory(driver, f"with {devices} claims prepared", results)
        batch = calls.at_once(caller.unprepare, found)
        _add_batch(f"Unprepare, {devices} at once", driver, batch, results)
        claims.remove(cluster.api, found)


def latencies_in_turn(cluster: Cluster, driver: Driver, devices: int, results: Results) -> None:
    """Prepare claims one after the other, and unprepare them; twice."""
    prepared: list[float] = []
    unprepared: list[float] = []
    used = 0.0
    with calls.Caller(driver.socket) as caller:
        for _ in range(2):
            found = claims.create(cluster.api, driver.name, min(_IN_TURN, devices))
            before = driver.processor_seconds()
            prepared += calls.in_turn(caller.prepare, found)
            unprepared += calls.in_turn(caller.unprepare, found)
            used += driver.processor_seconds() - before
            claims.remove(cluster.api, found)
    results.add_latencies(f"Prepare, {len(prepared)} in a row", driver.title, prepared)
    results.add_latencies(f"Unprepare, {len(unprepared)} in a row", driver.title, unprepared)
    results.add("processor time of one Prepare and Unprepare, ms", driver.title, 1000 * used / len(prepared))


def _add_batch(row: str, driver: Driver, batch: calls.Batch, results: Results) -> None:
    results.add_latencies(row, driver.title, batch.latencies)
    results.add(f"{row}: failed", driver.title, len(batch.failed))
    for text in batch.failed[:3]:
        say(f"# {driver.title}: {row}: {text}")


def memory(driver: Driver, when: str, results: Results) -> None:
    """Measure the resident memory some seconds after the last event."""
    time.sleep(_SETTLE)
    rss, pss = driver.memory()
    results.add(f"memory {when}: RSS, MiB", driver.title, rss)
    results.add(f"memory {when}: PSS, MiB", driver.title, pss)


def pod(cluster: Cluster, driver: Driver, recorder: PodRecorder, results: Results) -> None:
    """Run a pod with a claim from a template, and delete it."""
    name = f"pod-{next(_NUMBERS)}"
    path = phones.collection("Pod")
    at = time.time()
    cluster.api.create(path, _pod(name, claims.class_name(driver.name)))
    running = recorder.wait_running(name)
    results.add("pod with a claim of a template, created to Running, ms", driver.title, 1000 * (running - at))
    cluster.api.delete(f"{path}/{name}")
    until(lambda: cluster.api.find(f"{path}/{name}") is None, f"{name} is gone")
    until(lambda: not cluster.api.list(claims.CLAIMS), "its claim is gone")


def _pod(name: str, template: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/busybox", "sleep", "1000"],
        "resources": {"claims": [{"name": "device"}]},
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 1,  # with 0, the object does not wait for Unprepare
        "containers": [container],
        "resourceClaims": [{"name": "device", "resourceClaimTemplateName": template}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def kubelet_restart(
    cluster: Cluster, drivers: Sequence[Driver], slices: SliceRecorder, devices: int, results: Results
) -> None:
    """Restart the kubelet, which deletes all slices of its node."""
    time.sleep(_QUIET)
    cluster.machine.kubelet.end()
    at = time.time()
    cluster.machine.start_kubelet()
    for driver in drivers:
        row = "kubelet restart: slices deleted to back, ms"
        results.add(row, driver.title, _milliseconds_away(driver, slices, devices, at))
        registered = driver.wait_registered(at)
        results.add("kubelet restart: start of the kubelet to registered, ms", driver.title, 1000 * (registered - at))
    cluster.wait_node(cluster.machine)


def foreign_deletion(
    cluster: Cluster, drivers: Sequence[Driver], slices: SliceRecorder, devices: int, results: Results
) -> None:
    """Delete a slice of each driver."""
    time.sleep(_QUIET)
    found = cluster.api.list(SLICES)
    at = time.time()
    for driver in drivers:
        name = next(entry["metadata"]["name"] for entry in found if entry["spec"]["driver"] == driver.name)
        cluster.api.delete(f"{SLICES}/{name}")
    for driver in drivers:
        row = "slice deleted by another client to back, ms"
        results.add(row, driver.title, _milliseconds_away(driver, slices, devices, at))


def _milliseconds_away(driver: Driver, slices: SliceRecorder, devices: int, since: float) -> float:
    """Return for how long slices are missing. If they do not come back, restart the driver, and return infinity."""
    try:
        return 1000 * slices.away(driver.name, devices, since, seconds=_NEVER)
    except AssertionError as error:
        say(f"# {driver.title}: {error}")
    driver.stop()
    slices.wait(driver.name, devices, driver.start())
    return math.inf


def requests_at_rest(drivers: Sequence[Driver], audit: Audit, minutes: float, results: Results) -> None:
    """Count the requests to the API server for some minutes in which nothing changes."""
    say(f"# counting requests at rest for {minutes:g} minutes")
    before, started = audit.length, time.monotonic()
    time.sleep(60 * minutes)
    seconds = time.monotonic() - started
    for driver in drivers:
        counts = audit.requests(driver.account.user, before)
        say(f"# {driver.title}: {dict(counts) or 'no request'} in {seconds:.0f} s")
        results.add("API requests at rest, per hour", driver.title, counts.total() * _HOUR / seconds)


def create_classes(cluster: Cluster, drivers: Sequence[Driver]) -> None:
    """Create what the pods of :func:`pod` require."""
    for driver in drivers:
        claims.create_class(cluster.api, driver.name)


def nothing_left(cluster: Cluster) -> None:
    """Check that no claim and no slice is left."""
    for path in (SLICES, f"{RESOURCE}/resourceclaims"):
        until(lambda path=path: not cluster.api.list(path), f"nothing is left in {path}")  # type: ignore[misc]
