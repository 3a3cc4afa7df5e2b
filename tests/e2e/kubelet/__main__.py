"""``python -m tests.e2e.kubelet``: the plugin with a real kubelet, containerd and runc.

Requires root, Debian and Go. Missing parts are installed, or built and cached. The items run in a sandbox.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.report import Report, describe, say
from tests.e2e.kubelet import parts, runtime_parts, sandbox, versions
from tests.e2e.kubelet.runtimes import COMBINATIONS

LIMIT: Final = 1800.0
"""The time limit for all items, in seconds."""
_REASON: Final = 300
"""Characters of a failed build's messages that are printed as the reason for skipped items."""


def main() -> int:
    """Get the parts, run the items in the sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kubelet", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="run the items whose chapter.name contains TEXT")
    parser.add_argument("--items", choices=("all", "core"), default="all", help="all items, or the core set")
    parser.add_argument("--kubelet", choices=versions.VERSIONS, default="", help="another version of the kubelet")
    parser.add_argument("--runtime", choices=COMBINATIONS, help="only what depends on the runtime, with this one")
    options = parser.parse_args()
    if options.runtime and options.items != "all":
        parser.error("--runtime has a set of items of its own: it cannot be combined with --items")
    if options.kubelet and versions.minor(options.kubelet) < versions.CRASH_LOOP.first:
        # A killed container of the plugin restarts after 10, 20, 40 s.
        os.environ.setdefault("E2E_PATIENCE", "90")
    # As after Ctrl-C, nothing remains of a build or of the directory for the work.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # gRPC logs each connection that ends, which would clutter the report.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    started = time.monotonic()
    report = Report()
    try:
        arguments = _parts(options.kubelet, options.runtime, core=options.items == "core")
    except packages.MissingError as error:
        report.skip("all items", str(error))
        return report.end()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        report.not_ok("the parts can be built", describe(error))
        return report.end()
    say(f"# the parts are available after {time.monotonic() - started:.0f} s")
    work = Path(tempfile.mkdtemp(prefix="aosp-kubelet-"))
    work.chmod(0o711)  # the root of a container with users of its own passes through it
    try:
        arguments = ["--work", str(work), "--only", options.only, "--items", options.items, *arguments]
        return sandbox.enter("tests.e2e.kubelet.inside", arguments, project=parts.PROJECT, seconds=LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        say(f"# {time.monotonic() - started:.0f} s in total")


def _parts(kubelet: str, runtime: str | None, *, core: bool) -> list[str]:
    """Return the arguments that name the parts. Raises MissingError if no item can run on this machine."""
    if os.geteuid() != 0:
        raise packages.MissingError("a kubelet requires root")
    packages.install(parts.PACKAGES)
    if problem := sandbox.problem():
        raise packages.MissingError(problem)
    arguments = [f"--kubelet={parts.kubelet(kubelet)}"]
    try:
        arguments.append(f"--image={parts.plugin_image()}")
    except packages.MissingError as error:
        arguments.append(f"--no-image={error}")
    if runtime:
        return [*arguments, *runtime_parts.arguments(runtime)]
    if core:
        return arguments
    try:
        arguments.append(f"--containerd={parts.containerd()}")
    except (AssertionError, packages.MissingError) as error:
        # Only the chapters that require it are skipped: it may require a newer Go or an unavailable module.
        arguments.append(f"--no-containerd={' '.join(describe(error).split())[-_REASON:]}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
