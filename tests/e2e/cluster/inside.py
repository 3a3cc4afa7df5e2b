"""Runs in the sandbox: set it up, start the cluster, and run the items."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import time
from functools import partial
from pathlib import Path

from tests.e2e.cluster import plugin, sandbox, suite
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.parts import Parts
from tests.e2e.common.report import Report, describe, say


def main() -> int:
    """Run the items, and return the exit code."""
    options = _options()
    sandbox.set_up()
    report = Report()
    groups = [group for group in suite.GROUPS if group.name in options.groups]
    cluster = Cluster(Parts.from_arguments(options.parts), options.work, options.cgroups)
    started = time.monotonic()
    try:
        cluster.start()
    except Exception as error:  # noqa: BLE001 - any error of the machine's is reported, like that of an item
        report.not_ok("the cluster starts", describe(error))
        _print_logs(cluster)
        return report.end()
    say(f"# the cluster is ready for pods after {time.monotonic() - started:.0f} s, and has {_memory():.0f} MiB")
    for group in groups:
        started = time.monotonic()
        _run(group, cluster, options.only, report)
        say(f"# {group.name}: {time.monotonic() - started:.0f} s, {_memory():.0f} MiB")
    cluster.stop()
    return report.end()


def _run(group: suite.Group, cluster: Cluster, text: str, report: Report) -> None:
    """Run the selected items of a group, and print the ends of the logs after each item that failed."""
    items = group.select(text)
    if not items:
        return
    if group.newest and cluster.parts.newest is None:
        report.skip(f"[{group.name}] {len(items)} items", "the newest Kubernetes is not available")
        return
    if group.binder and cluster.parts.kernel is None:
        report.skip(f"[{group.name}] {len(items)} items", "there is no machine with a real binder driver")
        return
    say(f"# {group.title}")
    try:
        while len(cluster.machines) < group.machines:
            cluster.wait_node(cluster.add_machine())
    except Exception as error:  # noqa: BLE001 - the other groups run after any error
        report.not_ok(f"[{group.name}] {group.machines} machines are nodes", describe(error))
        _print_logs(cluster)
        return
    for item in items:
        if not report.run(f"[{group.name}] {item.title}", partial(item.check, cluster)):
            _print_logs(cluster)
            _clean_up(cluster)


def _clean_up(cluster: Cluster) -> None:
    """Remove what an item that failed has left, as far as it is usual, so that it does not make the next ones fail."""
    kinds = "deployments,statefulsets,pods,poddisruptionbudgets,resourceclaims,resourceclaimtemplates"
    commands = (
        lambda: cluster.kubectl("delete", kinds, "--all", "--namespace=default", "--timeout=60s"),
        lambda: cluster.kubectl("uncordon", "--selector=kubernetes.io/hostname"),
        lambda: plugin.uninstall(cluster),
    )
    for command in commands:
        with contextlib.suppress(AssertionError, OSError, subprocess.SubprocessError):
            command()


def _memory() -> float:
    """Return the memory of all processes of the sandbox in MiB; of shared pages, each process has its share (PSS)."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/smaps_rollup"):
        with contextlib.suppress(OSError):
            total += int(path.read_text().partition("\nPss:")[2].split()[0])
    return total / 1024


def _print_logs(cluster: Cluster) -> None:
    for name, tail in cluster.tails():
        say(f"# end of the log of {name}:\n{tail}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cgroups", required=True)
    parser.add_argument("--groups", nargs="*", default=[])
    parser.add_argument("--only", default="")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
