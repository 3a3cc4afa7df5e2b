"""``python -m tests.e2e.kubelet``: the plugin against a real kubelet, containerd and runc.

As root on Debian, with Go. What is missing is installed or built, and kept for the next time; the rest happens in a
sandbox. ``--only TEXT`` runs the items whose name has TEXT in it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.report import Report, describe, say
from tests.e2e.kubelet import parts, sandbox

LIMIT: Final = 1800.0
"""Seconds for all items."""
ALONE: Final = "all of it"
_REASON: Final = 300
"""Characters of a failed build's words, from their end, that tell why items are skipped."""


def main() -> int:
    """Get the parts, run the items in the sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kubelet", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="run the items whose name has this in it")
    options = parser.parse_args()
    # Its notes on each connection that ends would stand between the items.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    started = time.monotonic()
    report = Report()
    try:
        found = _parts()
    except packages.MissingError as error:
        report.skip(ALONE, str(error))
        return report.end()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        report.not_ok("its parts can be built", describe(error))
        return report.end()
    say(f"# the parts are there after {time.monotonic() - started:.0f} s")
    work = Path(tempfile.mkdtemp(prefix="aosp-kubelet-"))
    try:
        arguments = ["--work", str(work), "--only", options.only, *found]
        return sandbox.enter("tests.e2e.kubelet.inside", arguments, project=parts.PROJECT, seconds=LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        say(f"# {time.monotonic() - started:.0f} s in all")


def _parts() -> list[str]:
    """Return what to tell of the parts. MissingError where nothing can be run at all."""
    if os.geteuid() != 0:
        raise packages.MissingError("a kubelet needs root")
    packages.install(parts.PACKAGES)
    if problem := sandbox.problem():
        raise packages.MissingError(problem)
    found = [f"--kubelet={parts.kubelet()}"]
    try:
        found.append(f"--image={parts.plugin_image()}")
    except packages.MissingError as error:
        found.append(f"--why-no-image={error}")
    try:
        found.append(f"--containerd={parts.containerd()}")
    except (AssertionError, packages.MissingError) as error:
        # Only what needs it is skipped: a newer Go, or a module that can't be fetched.
        found.append(f"--why-no-containerd={' '.join(describe(error).split())[-_REASON:]}")
    return found


if __name__ == "__main__":
    sys.exit(main())
