"""What HTTP clients of the plugin read while faults happen: it is true of the node, or was so shortly before.

They call the routes that the plugin's HTTP server serves. A statement that is not true may be read for as long as the
plugin needs to notice; the same one is not to be read later.
"""

import asyncio
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.processes import Process, ProcessKilledError
from tests.simulation.settings import Pool
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.config.values import Api
    from aosp_plugin.framework.conditions import WITHHELD
    from aosp_plugin.framework.podresources_client import ALLOCATIONS_INTERVAL

if TYPE_CHECKING:
    from tests.simulation.world import World

PAUSE = 15.0
"""Seconds between two readings, on average."""
AGAIN = 1.0
"""Seconds until the same is read again that was not true."""
SCRAPES = 0.12
"""How many of the readings are also of the metrics, which take milliseconds."""
NOTICED = 5.0
"""Seconds in which the plugin notices what has changed, if it can."""
ASKED = 40.0
"""The same of what it asks the kubelet or the API server at intervals."""
OWNERS = ALLOCATIONS_INTERVAL + 10.0
"""The same of which pod has which device."""
BLIND = 80.0
"""The longest time for which anything untrue may be read."""

_SAMPLE = re.compile(r"^aosp_plugin_(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_COUNTED = re.compile(r"_(total|count|sum|bucket)$")
Samples = dict[tuple[str, frozenset[str]], float]
"""By name and labels."""


class Read(NamedTuple):
    """What was read at one moment."""

    is_ready: bool
    said: str
    report: dict[str, Any]
    samples: Samples
    """Those of the metrics; empty if they were not read."""


class Readers:
    """Clients of the plugin."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._counters: tuple[Process | None, Samples] = None, {}
        """The counters that were read last, of which process."""

    async def run(self) -> None:
        """Read again and again; what is not true, until it is, or is no longer read."""
        rng = self._world.witnesses
        while True:
            await asyncio.sleep(rng.expovariate(1 / PAUSE))
            began = now = asyncio.get_running_loop().time()
            since: dict[str, float] = {}
            while (read := self._read(scrapes=not since and rng.random() < SCRAPES)) is not None:
                now = asyncio.get_running_loop().time()
                untrue = self._untrue(read)
                is_blind = self._world.is_blind()
                since = {text: now if is_blind else since.get(text, now) for text in untrue}
                late = [text for text, known in since.items() if now - known > untrue[text]]
                if late or now - began > BLIND + ASKED:
                    self._world.host.violated(f"read by HTTP for {now - began:.0f} s: {'; '.join(late or since)}")
                if not since or self._world.host.violations:
                    break
                await asyncio.sleep(AGAIN)

    def settled(self, *, scrapes: bool) -> list[str]:
        """Return what is read that should not be, now that everything has recovered: nothing, some time later."""
        world = self._world
        read = self._read(scrapes=scrapes) if world.settings.listen else None
        if read is None:
            return ["nothing is served by HTTP"] if world.settings.listen else []
        found = [*self._untrue(read)]
        for each in read.report["problems"]:
            is_expected = each["kind"] == WITHHELD.name and world.kubelet.healthy(each["resource"])
            if each["severity"] == "error" and not each["count"] and not is_expected:
                found.append(f"{each['resource']}: {each['kind']}")
        for resource in read.report["resources"]:
            healthy, allocatable = len(world.kubelet.healthy(resource["name"])), resource["kubelet_allocatable"]
            if resource["driver"] is None and (resource["counts"]["healthy"], allocatable) != (healthy, healthy):
                found.append(
                    f"{resource['name']}: {resource['counts']} and {allocatable}, and the kubelet has {healthy}"
                )
        return found

    # -- reading

    def _read(self, *, scrapes: bool) -> Read | None:
        """Read everything twice, which changes nothing; None if the plugin serves nothing now."""
        process = self._world.process.now
        routes = self._world.host.routes.get(process)
        if routes is None or not process.alive:
            return None
        try:
            bodies = []
            for path in ("/healthz", "/readyz", "/status", *(["/metrics"] if scrapes else [])):
                first, second = process.run(routes[path]), process.run(routes[path]) if path != "/metrics" else None
                if second is not None and first != second:
                    self._world.host.violated(f"{path} differs: {first.body!r}, and then {second.body!r}")
                bodies.append(first)
        except ProcessKilledError:
            return None
        health, ready, report, *metrics = bodies
        if health.status != 200:
            self._world.host.violated(f"/healthz: {health.body!r}")
        samples = self._samples(process, metrics[0].body.decode()) if metrics else {}
        return Read(ready.status == 200, ready.body.decode(), json.loads(report.body), samples)

    def _samples(self, process: Process, text: str) -> Samples:
        """Return the samples, and check that no counter has decreased."""
        samples = {
            (name, frozenset(re.findall(r'\w+="[^"]*"', labels))): float(value)
            for name, labels, value in _SAMPLE.findall(text)
        }
        counters = {key: value for key, value in samples.items() if _COUNTED.search(key[0])}
        last, before = self._counters
        if last is process and (less := [key for key, value in before.items() if counters.get(key, -1.0) < value]):
            self._world.host.violated(
                f"counters decrease: {sorted(f'{name} {sorted(labels)}' for name, labels in less)}"
            )
        self._counters = process, counters
        return samples

    # -- what is not true

    def _untrue(self, read: Read) -> dict[str, float]:
        """Return what is not true, and for how many seconds it may be read."""
        of_conditions = [each for each in read.report["problems"] if not each["count"]]
        blocking = [each for each in of_conditions if each["severity"] == "error"]
        if read.is_ready == bool(blocking):
            self._world.host.violated(f"/readyz says {read.said!r}, and /status {[each['kind'] for each in blocking]}")
        found = {}
        for each in of_conditions:
            is_so, seconds = HOLDS.get(each["kind"], (None, 0.0))
            if is_so is not None and not is_so(self._world, each["resource"]):
                found[f"{each['resource']}: {each['kind']}"] = seconds
        for resource in read.report["resources"]:
            found |= self._untrue_of(resource, read)
        return found

    def _untrue_of(self, resource: dict[str, Any], read: Read) -> dict[str, float]:
        """Return the same of a resource."""
        world, name, driver = self._world, resource["name"], resource["driver"]
        found: dict[str, float] = {}
        is_known = read.report["allocations"]["known"]
        if read.samples:
            told = _of(resource, is_known=is_known)
            wrong = [
                f"{metric} is {read.samples.get((metric, labels))}, not {value}"
                for (metric, labels), value in told.items()
                if read.samples.get((metric, labels)) != value
            ]
            if wrong:
                world.host.violated(f"/status and /metrics differ: {name}: {'; '.join(wrong)}")
        if resource["registered"] and not world.kubelet.running:
            found[f"{name} is registered, and no kubelet runs"] = ASKED if driver else NOTICED
        pool = next((each for each in world.settings.pools if each.name == name), None)
        if pool is None or (driver is not None) != (pool.api is Api.DRA):
            return found  # of a former configuration
        if driver is None:
            places = pool.devices()
            problems = [each for each in read.report["problems"] if each["resource"] == name]
            is_told = any(each["severity"] == "error" for each in problems)  # such as that the list is out of date
            usable = [each["id"] for each in resource["devices"] if each["state"] != "unhealthy"]
            for each in usable:
                if not world.host.containers.exist(places.get(each.partition("::")[0], ())):
                    found[f"{name}: {each} is usable, and the host has none"] = BLIND if is_told else NOTICED
        return found | (self._untrue_owners(resource, pool) if is_known else {})

    def _untrue_owners(self, resource: dict[str, Any], pool: Pool) -> dict[str, float]:
        """Return which devices other pods have, if the plugin can ask the kubelet."""
        kubelet, found = self._world.kubelet, dict[str, float]()
        if not kubelet.running or kubelet.answers_late:
            return found
        owners = self._owners(pool)
        for device in resource["devices"]:
            about, told = f"{pool.name}: {device['id']}", {pod["name"] for pod in device["pods"]}
            if device["state"] != "unhealthy" and (device["state"] == "allocated") != bool(told):
                self._world.host.violated(f"{about} is {device['state']}, with the pods {sorted(told)}")
            if told != (true := owners.get(device["id"], set())):
                found[f"{about} is of {sorted(told)}, and not of {sorted(true)}"] = OWNERS
        return found

    def _owners(self, pool: Pool) -> dict[str, set[str]]:
        """Return the pods that have each device."""
        owners: dict[str, set[str]] = {}
        for pod in self._world.kubelet.pods.values():
            for device in pod.ids if pod.resource == pool.name else ():
                owners.setdefault(device, set()).add(pod.name)
        for device, name in self._world.claims.given(pool.driver).items():
            owners.setdefault(device, set()).add(name)
        return owners


def _of(resource: dict[str, Any], *, is_known: bool) -> dict[tuple[str, frozenset[str]], float | None]:
    """Return the metrics of a resource that its report tells, None for those that are absent while they are unknown.

    ``is_known``: which pod has which device.
    """
    counts, driver, label = resource["counts"], resource["driver"], f'resource="{resource["name"]}"'
    values = {
        "devices_allocated": counts["allocated"] if is_known else None,
        "devices_truncated": resource["truncated"],
        "kubelet_allocatable": resource["kubelet_allocatable"],
        "registered": resource["registered"],
    }
    if driver is not None:
        values |= {"claims_prepared": driver["claims"], "slices_wanted": driver["slices"]}
        values["slices_confirmed"] = driver["slices_confirmed"]
    found: dict[tuple[str, frozenset[str]], float | None] = {
        (name, frozenset({label})): value for name, value in values.items()
    }
    found["devices", frozenset({label, 'health="healthy"', 'reason=""'})] = counts["healthy"]
    return found


def _is_unregistered(world: "World", resource: str) -> bool:
    faults = world.kubelet.faults
    driver = next((pool.driver for pool in world.settings.pools if pool.name == resource), "")
    return not (world.kubelet.is_connected(resource) or world.claims.is_connected(driver)) or bool(
        faults.refuse_register or faults.slow_register or world.has_second_plugin()
    )


def _is_unasked(world: "World", _resource: str) -> bool:
    return not world.kubelet.running or world.kubelet.answers_late > 0 or _host_fails(world)


def _has_second_plugin(world: "World", _resource: str) -> bool:
    return world.has_second_plugin()


def _host_fails(world: "World", _resource: str = "") -> bool:
    host = world.host
    return bool(host.hanging or host.slow or host.no_descriptors or host.no_space or host.no_mounts or host.no_devices)


def _api_fails(world: "World", _resource: str = "") -> bool:
    return bool(world.api.is_away or world.api.is_slow or world.api.refuses or world.api.loses_events)


HOLDS: dict[str, tuple[Callable[["World", str], bool], float]] = {
    "not-registered": (_is_unregistered, NOTICED),
    "kubelet-directory-hangs": (_host_fails, NOTICED),
    "outdated": (_host_fails, NOTICED),
    "allocations-unknown": (_is_unasked, OWNERS),
    "second-plugin": (_has_second_plugin, NOTICED),
    "api-server-failing": (_api_fails, ASKED),
    "node-task-failing": (_api_fails, BLIND),
    "device-records": (_host_fails, OWNERS),
}
"""Whether a condition really holds, by its kind, and for how many seconds it may be read when it does no longer."""
