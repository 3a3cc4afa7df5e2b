"""``python -m tests.e2e.cluster``: the plugin in a whole Kubernetes cluster.

Requires root, Debian and Go. Missing parts are installed, or built and cached. The items run in a sandbox.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.cluster import parts, sandbox, suite
from tests.e2e.common import packages
from tests.e2e.common.report import Report, describe, say
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.sandbox import CGROUPS

LIMIT: Final = 7200.0
"""The time limit for all items, in seconds."""


def main() -> int:
    """Get the parts, run the items in the sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="run the items whose group.name contains TEXT")
    parser.add_argument("--items", choices=("all", "core"), default="all", help="all items, or the core set")
    options = parser.parse_args()
    groups = suite.core(_commit()) if options.items == "core" else list(suite.GROUPS)
    groups = [group for group in groups if group.select(options.only)]
    started = time.monotonic()
    report = Report()
    try:
        found = parts.collect(
            newest=any(group.newest for group in groups),
            binder=any(group.binder for group in groups),
            promtool=any(group.promtool for group in groups),
        )
    except packages.MissingError as error:
        report.skip("all items", str(error))
        return report.end()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        report.not_ok("the parts can be built", describe(error))
        return report.end()
    say(f"# the parts are available after {time.monotonic() - started:.0f} s")
    work = Path(tempfile.mkdtemp(prefix="aosp-cluster-"))
    try:
        arguments = ["--work", str(work), "--only", options.only, "--groups", *(group.name for group in groups)]
        arguments += ["--parts", *found.arguments()]
        code = sandbox.enter("tests.e2e.cluster.inside", arguments, project=PROJECT, seconds=LIMIT)
        report.run("Nothing of the cluster is left on the machine", partial(_check_leftovers, str(work)))
        return code or report.end()
    finally:
        shutil.rmtree(work, ignore_errors=True)
        say(f"# {time.monotonic() - started:.0f} s in total")


def _check_leftovers(work: str) -> None:
    """Check that no process, mount, network device or cgroup of the cluster remains."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert work.encode() not in path.read_bytes() or path.parent.name == str(os.getpid()), path.read_bytes()
    assert work not in Path("/proc/self/mountinfo").read_text(), "a mount remains"
    assert sandbox.BRIDGE not in os.listdir("/sys/class/net"), "a network device remains"
    # os.walk passes over what other processes remove meanwhile.
    names = ((path, name) for path, directories, _ in os.walk(CGROUPS) for name in directories)
    cgroups = [f"{path}/{name}" for path, name in names if name.startswith(f"aosp-cluster-{os.getpid()}-")]
    assert not cgroups, f"cgroups remain: {cgroups}"


def _commit() -> int:
    """Return a number from the commit, so that each commit of a branch runs another group and a repetition the same."""
    result = subprocess.run(("git", "rev-parse", "HEAD"), cwd=PROJECT, capture_output=True, text=True, check=False)
    return int(result.stdout or "0", 16)


if __name__ == "__main__":
    sys.exit(main())
