"""The rounds, in the sandbox."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import phones, plugin, sandbox
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.figures import accounts, drivers, measures
from tests.e2e.cluster.figures.recorder import PodRecorder, SliceRecorder
from tests.e2e.cluster.figures.results import Results
from tests.e2e.cluster.parts import Parts
from tests.e2e.common.report import PASSED, say

if TYPE_CHECKING:
    from tests.e2e.cluster.figures.drivers import Driver

_PODS: Final = 5
"""Pods of each driver."""
FOUND: Final = "found"
PHONES: Final = "phones"


def main() -> int:
    """Run the rounds, and return the exit code."""
    options = _options()
    sandbox.set_up()
    cluster = Cluster(Parts.from_arguments(options.parts), options.work, options.cgroups)
    audit = accounts.Audit(cluster.control_plane, options.work / "audit")
    cluster.start()
    run = _Run(cluster, audit, options)
    try:
        run.run()
    except BaseException:
        drivers.print_logs(cluster)
        raise
    finally:
        say(f"{run.results.table()}\n\n{run.parts.table()}")
        if options.json:
            Path(options.json).write_text(json.dumps([run.results.as_json(), run.parts.as_json()], indent=1))
    cluster.stop()
    return PASSED


class _Run:
    """All measurements of the selected drivers."""

    def __init__(self, cluster: Cluster, audit: accounts.Audit, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._audit = audit
        self._options = options
        self._devices: int = options.devices
        accounts.create_role(cluster)
        cluster.machine.nodes("create", "--stand-ins", "--count", str(self._devices))
        os.symlink(cluster.machine.directory / "kubelet", drivers.KUBELET)
        self._drivers = [self._driver(name) for name in options.drivers.split(",")]
        self.results = Results([driver.title for driver in self._drivers])
        self.parts = Results(["plugin, phones"])
        self._slices = SliceRecorder(cluster.api)

    def run(self) -> None:
        """Measure all, in the order in which it matters for memory: what does most comes last."""
        started = time.monotonic()
        steps = (self._start, self._latencies, self._pods, self._repair, self._rest, self._off, self._parts)
        for step in steps:
            name = step.__name__.strip("_")
            if name not in self._options.skip.split(","):
                step()
                say(f"# {name}: {time.monotonic() - started:.0f} s since the start")

    def _driver(self, name: str) -> Driver:
        match name:
            case "go":
                program = self._cluster.parts.dra_driver
                assert program is not None, "the Go driver was not built"
                return drivers.go_driver(self._cluster, program, self._devices)
            case "found":
                return drivers.found_devices(self._cluster)
            case "phones":
                return drivers.phones(self._cluster, self._devices)
            case _:
                raise ValueError(f"unknown driver: {name}")

    def _order(self, number: int) -> list[Driver]:
        """Return the drivers; each round begins with another one."""
        first = number % len(self._drivers)
        return self._drivers[first:] + self._drivers[:first]

    def _start(self) -> None:
        for number in range(self._options.rounds):
            for driver in self._order(number):
                if driver.daemon.running:
                    driver.stop()
                    self._slices.wait(driver.name, 0, time.time() - 60)
            for driver in self._order(number):
                measures.start(driver, self._slices, self._devices, self.results)

    def _latencies(self) -> None:
        for number in range(self._options.rounds):
            for driver in self._order(number):
                measures.latencies(self._cluster, driver, self._devices, self.results)

    def _pods(self) -> None:
        measures.create_classes(self._cluster, self._drivers)
        recorder = PodRecorder(self._cluster.api, phones.collection("Pod"))
        for number in range(_PODS):
            for driver in self._order(number):
                measures.pod(self._cluster, driver, recorder, self.results)

    def _repair(self) -> None:
        for number in range(self._options.rounds):
            order = self._order(number)
            measures.kubelet_restart(self._cluster, order, self._slices, self._devices, self.results)
            measures.foreign_deletion(self._cluster, order, self._slices, self._devices, self.results)

    def _rest(self) -> None:
        if self._options.rest:
            measures.requests_at_rest(self._drivers, self._audit, self._options.rest, self.results)

    def _off(self) -> None:
        """Measure the memory of a plugin without DRA, with the devices that the plugin with DRA finds."""
        for driver in self._drivers:
            driver.stop()
        measures.nothing_left(self._cluster)
        if FOUND not in self._options.drivers.split(","):
            return
        for on in (False, True) * self._options.rounds:
            if on:
                driver = drivers.found_devices(self._cluster)
                since = driver.start()
                self._slices.wait(driver.name, self._devices, since)
            else:
                driver = drivers.found_devices(self._cluster, api="device-plugin")
                driver.start()
                plugin.wait_allocatable(self._cluster, self._cluster.machine, self._devices, "aosp.io/device")
            measures.memory(driver, f"of a new process with DRA {'on' if on else 'off'}", self.results)
            driver.stop()

    def _parts(self) -> None:
        """Measure the parts of Prepare and Unprepare with a mount, one claim after the other."""
        if PHONES not in self._options.drivers.split(","):
            return
        file = self._cluster.directory / "parts.json"
        driver = drivers.phones(self._cluster, self._devices, file)
        started = driver.start()
        driver.wait_registered(started)
        self._slices.wait(driver.name, self._devices, started)
        measures.latencies_in_turn(self._cluster, driver, self._devices, self.parts)
        driver.stop()
        for part, (calls, median, p99) in json.loads(file.read_text()).items():
            self.parts.add(f"{part}: calls", driver.title, calls)
            self.parts.add(f"{part}: p50, ms", driver.title, median)
            self.parts.add(f"{part}: p99, ms", driver.title, p99)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cgroups", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--rest", type=float, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--drivers", required=True)
    parser.add_argument("--skip", default="")
    parser.add_argument("--json", default="")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
