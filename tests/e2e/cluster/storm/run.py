"""The rounds, in the sandbox."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Final

from tests.e2e.cluster import phones, sandbox
from tests.e2e.cluster.cluster import DEVICES, Cluster
from tests.e2e.cluster.figures import accounts, drivers
from tests.e2e.cluster.figures.recorder import SliceRecorder
from tests.e2e.cluster.figures.results import Results
from tests.e2e.cluster.parts import Parts
from tests.e2e.cluster.storm import evaluation, storm
from tests.e2e.cluster.storm.recorder import StageRecorder
from tests.e2e.cluster.storm.scenes import SCENES, Stage
from tests.e2e.common.report import FAILED, PASSED, describe, say

_SHOWN: Final = 5
"""Failures of a storm that are printed."""


def main() -> int:
    """Run the rounds, and return the exit code: 1 if a pod or a request failed."""
    options = _options()
    names: list[str] = options.scenes.split(",")
    sandbox.set_up()
    cluster = Cluster(Parts.from_arguments(options.parts), options.work, options.cgroups)
    cluster.start()
    results = Results([SCENES[name].title for name in names])
    try:
        failed = _rounds(cluster, names, options, results)
    except BaseException:
        drivers.print_logs(cluster)
        raise
    finally:
        say(results.table())
        if options.json:
            Path(options.json).write_text(json.dumps(results.as_json(), indent=1))
    cluster.stop()
    say(f"# {failed} failures" if failed else "# no failure")
    return FAILED if failed else PASSED


def _rounds(cluster: Cluster, names: list[str], options: argparse.Namespace, results: Results) -> int:
    """Run the scenes in turn, and return the number of failures."""
    _prepare(cluster, options)
    pods, slices = StageRecorder(cluster.api, phones.collection("Pod")), SliceRecorder(cluster.api)
    stages = [Stage(cluster, name, max(options.phones, DEVICES)) for name in names]
    failed = 0
    for _ in range(options.rounds):
        for stage in stages:
            title, load, started = stage.scene.title, os.getloadavg()[0], time.monotonic()
            stage.start(slices)
            try:
                measured = storm.run(cluster, stage, pods, options.phones)
                failures = evaluation.failures(measured)
                results.add("load average before it", title, load)
                for row, value in evaluation.rows(measured):
                    results.add(row, title, value)
                for event in [*measured.held_back.values()][:_SHOWN]:
                    say(f"# {title}: held back by Kubernetes: {event.text}")
            except AssertionError as error:
                failures = [describe(error)]
                storm.remove_all(cluster)
            stage.stop()
            say("\n".join([f"# {title}: {text[:400]}" for text in failures[:_SHOWN]]) or f"# {title}: no failure")
            seconds = time.monotonic() - started
            say(f"# {title}: {len(failures)} failures; {seconds:.0f} s; load average before it {load:.1f}")
            failed += len(failures)
    return failed


def _prepare(cluster: Cluster, options: argparse.Namespace) -> None:
    """Create devices and rights, and restart the kubelet with more settings."""
    machine = cluster.machine
    accounts.create_role(cluster)
    if options.readable_claims:
        accounts.let_nodes_read_claims(cluster)
    machine.nodes("create", "--stand-ins", "--count", str(options.phones))
    os.symlink(machine.directory / "kubelet", drivers.KUBELET)
    if settings := json.loads(options.kubelet):
        machine.kubelet.end()
        machine.configuration |= settings
        machine.start_kubelet()
        cluster.wait_node(machine, ready=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cgroups", required=True)
    parser.add_argument("--phones", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--scenes", required=True)
    parser.add_argument("--kubelet", required=True)
    parser.add_argument("--readable-claims", action="store_true")
    parser.add_argument("--json", default="")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
