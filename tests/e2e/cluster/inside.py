"""Runs in the sandbox: start the cluster, and run the items."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from functools import partial
from typing import TYPE_CHECKING

from tests.e2e.cluster import plugin, sandbox, suite
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.common.report import Report, describe, say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.e2e.cluster.parts import Parts


def main(work: Path, cgroups: str, parts: Parts, groups: Sequence[str], only: str, keep_for: int) -> int:
    """Run the items of groups whose ``group.name`` contains ``only``, and return the exit code.

    ``keep_for`` is the process outside of the sandbox for which the cluster is kept until Ctrl-C; 0 if it is not.
    """
    report = Report()
    cluster = Cluster(parts, work, cgroups)
    if not report.run("The cluster starts", cluster.start):
        _print_logs(cluster)
        return report.end()
    for group in suite.GROUPS:
        if group.name in groups:
            _run(group, cluster, only, report)
    if keep_for:
        _keep(cluster, keep_for)
    cluster.stop()
    return report.end()


def _run(group: suite.Group, cluster: Cluster, text: str, report: Report) -> None:
    """Run the selected items of a group, and print the ends of the logs after each item that failed."""
    items = group.select(text)
    if group.newest and cluster.parts.newest is None:
        report.skip(f"[{group.name}] {len(items)} items", "the newest Kubernetes is not available")
        return
    if group.binder and cluster.parts.kernel is None:
        report.skip(f"[{group.name}] {len(items)} items", "there is no machine with a real binder driver")
        return
    say(f"# {group.title}")
    try:
        cluster.grow(group.machines)
    except Exception as error:  # noqa: BLE001 - the other groups run after any error
        report.not_ok(f"[{group.name}] {group.machines} machines are nodes", describe(error))
        _print_logs(cluster)
        return
    for item in items:
        if not report.run(f"[{group.name}] {item.title}", partial(item.check, cluster)):
            _print_logs(cluster)
            _clean_up(cluster)


def _keep(cluster: Cluster, process: int) -> None:
    """Say how to use the cluster, which has two nodes at least, and wait for Ctrl-C."""
    cluster.grow(2)
    say("# the cluster is kept until Ctrl-C; in another terminal, as root:")
    say(f"export KUBECONFIG={cluster.kubeconfig}")
    for name, program in (("kubectl", cluster.parts.kubernetes / "kubectl"), ("helm", cluster.parts.helm)):
        say(f'{name}() {{ {sandbox.shell_command(process)} {program} "$@"; }}')
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def _clean_up(cluster: Cluster) -> None:
    """Remove what an item that failed has left, as far as it is usual, so that it does not make the next ones fail."""
    kinds = "deployments,statefulsets,pods,resourceclaims,resourceclaimtemplates"
    commands = (
        lambda: cluster.kubectl("delete", kinds, "--all", "--namespace=default", "--timeout=60s"),
        lambda: cluster.kubectl("uncordon", "--selector=kubernetes.io/hostname"),
        lambda: plugin.uninstall(cluster),
    )
    for command in commands:
        with contextlib.suppress(AssertionError, OSError, subprocess.SubprocessError):
            command()


def _print_logs(cluster: Cluster) -> None:
    for name, tail in cluster.tails():
        say(f"# end of the log of {name}:\n{tail}")
