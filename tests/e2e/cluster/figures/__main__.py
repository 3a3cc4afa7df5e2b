"""``python -m tests.e2e.cluster.figures``: the package's docstring describes it. Requires root, Debian and Go."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.figures import __doc__ as description
from tests.e2e.cluster.figures import claims, drivers
from tests.e2e.cluster.figures.table import Table
from tests.e2e.cluster.watching import SliceHistory
from tests.e2e.common.proc import resident
from tests.e2e.common.report import PASSED, say

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from tests.e2e.cluster.figures.drivers import Driver
    from tests.e2e.cluster.parts import Parts

LIMIT: Final = 7200.0
"""The time limit of a run, in seconds."""
_IN_TURN: Final = 100
"""Claims that are prepared one after the other, twice in a round."""
_SETTLE: Final = 5.0
"""Seconds from the last event to a measurement of memory."""
_QUIET: Final = 65.0
"""Seconds without a change before slices are deleted: for 60 s, the helper of Go drivers ignores that a slice which it
has written is gone (resourceslice/resourceslicecontroller.go, ``DefaultMutationCacheTTL``)."""
_NEVER: Final = 120.0
"""Seconds after which slices are never back, which ends the run."""


def main() -> int:
    """Measure in a sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.figures", description=description)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--devices", type=int, default=120, help="at most 128, which fit in one slice")
    find = partial(parts.collect, newest=False, dra_driver=True)
    return sandbox.main(find, _inside, parser.parse_args(), seconds=LIMIT)


def _inside(work: Path, cgroups: str, found: Parts, options: Namespace) -> int:
    """Run the rounds, each of which begins with another driver, and print the table."""
    cluster = Cluster(found, work, cgroups)
    cluster.start()
    assert found.dra_driver is not None, "the Go driver was not built"
    cluster.machine.nodes("create", "--stand-ins", "--count", str(options.devices))
    os.symlink(cluster.machine.directory / "kubelet", drivers.KUBELET)
    compared = [
        drivers.go_driver(cluster, found.dra_driver, options.devices),
        drivers.found_devices(cluster),
        drivers.phones(cluster, options.devices),
    ]
    table = Table([driver.title for driver in compared])
    try:
        for driver in compared:
            driver.daemon.start()
            driver.wait_offered(options.devices)
        for number in range(options.rounds):
            order = compared[number % 3 :] + compared[: number % 3]
            for driver in order:
                _calls(cluster, driver, options.devices, table)
            _restart(cluster, order, table)
    except BaseException:
        drivers.print_logs(cluster)
        raise
    finally:
        say(str(table))
    cluster.stop()
    return PASSED


def _calls(cluster: Cluster, driver: Driver, devices: int, table: Table) -> None:
    """Prepare and unprepare claims one after the other, and then a claim for each device at once."""
    seconds: list[float] = []
    with claims.Caller(driver.socket) as caller:
        for _ in range(2):
            made = claims.create(cluster.api, driver.name, min(_IN_TURN, devices))
            seconds += [caller.prepare(claim) for claim in made]
            for claim in made:
                caller.unprepare(claim)
            claims.remove(cluster.api, made)
        table.add(f"Prepare, {len(seconds)} in a row: p50, ms", driver.title, 1000 * statistics.median(seconds))
        made = claims.create(cluster.api, driver.name, devices)
        table.add(f"Prepare, {devices} at once: the last one, s", driver.title, caller.prepare_at_once(made))
        time.sleep(_SETTLE)
        table.add(f"memory with {devices} prepared claims, RSS, MiB", driver.title, resident(driver.daemon.pid))
        for claim in made:
            caller.unprepare(claim)
        claims.remove(cluster.api, made)


def _restart(cluster: Cluster, order: list[Driver], table: Table) -> None:
    """Restart the kubelet, which deletes the slices, and measure how long they are away."""
    time.sleep(_QUIET)
    with contextlib.ExitStack() as lasting:
        histories = [lasting.enter_context(SliceHistory(cluster, cluster.machine, driver.name)) for driver in order]
        cluster.machine.kubelet.end()
        cluster.machine.start_kubelet()
        for driver, history in zip(order, histories, strict=True):
            away = max(history.wait_back(_NEVER))
            table.add("the kubelet restarts: slices deleted to back, ms", driver.title, 1000 * away)
    cluster.wait_node(cluster.machine)


if __name__ == "__main__":
    sys.exit(main())
