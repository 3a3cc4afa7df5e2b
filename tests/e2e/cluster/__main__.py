"""``python -m tests.e2e.cluster``: the plugin in a whole Kubernetes cluster.

Requires root, Debian and Go. Missing parts are installed, or built and cached. The items run in a sandbox.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.cluster import inside, parts, sandbox, suite
from tests.e2e.common.report import Report, say
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.sandbox import CGROUPS

LIMIT: Final = 7200.0
"""The time limit for all items, in seconds."""


def main() -> int:
    """Get the parts, run the items in the sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="run the items whose group.name contains TEXT")
    parser.add_argument("--items", choices=("all", "core"), default="all", help="all items, or the core set")
    parser.add_argument("--keep", action="store_true", help="then keep the cluster, with two nodes, until Ctrl-C")
    options = parser.parse_args()
    groups = suite.core(_commit()) if options.items == "core" else list(suite.GROUPS)
    groups = [group for group in groups if group.select(options.only)]
    newest, binder = any(group.newest for group in groups), any(group.binder for group in groups)
    started = time.monotonic()
    find = partial(parts.collect, newest=newest, binder=binder)
    keep_for, seconds = (os.getpid(), None) if options.keep else (0, LIMIT)
    names = [group.name for group in groups]
    code = sandbox.main(find, inside.main, names, options.only, keep_for, seconds=seconds)
    report = Report()
    report.run("Nothing of the cluster is left on the machine", _check_leftovers)
    say(f"# {time.monotonic() - started:.0f} s in total")
    return code or report.end()


def _check_leftovers() -> None:
    """Check that no process, mount, network device or cgroup of the cluster remains."""
    name = sandbox.prefix()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert name.encode() not in path.read_bytes(), path.read_bytes()
    assert name not in Path("/proc/self/mountinfo").read_text(), "a mount remains"
    assert sandbox.BRIDGE not in os.listdir("/sys/class/net"), "a network device remains"
    # os.walk passes over what other processes remove meanwhile.
    names = ((path, directory) for path, directories, _ in os.walk(CGROUPS) for directory in directories)
    cgroups = [f"{path}/{directory}" for path, directory in names if directory.startswith(name)]
    assert not cgroups, f"cgroups remain: {cgroups}"


def _commit() -> int:
    """Return a number from the commit, so that each commit of a branch runs another group and a repetition the same."""
    result = subprocess.run(("git", "rev-parse", "HEAD"), cwd=PROJECT, capture_output=True, text=True, check=False)
    return int(result.stdout or "0", 16)


if __name__ == "__main__":
    sys.exit(main())
