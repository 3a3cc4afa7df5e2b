"""``python -m tests.e2e.kubelet``: the plugin with a real kubelet, containerd and runc.

Requires root, Debian and Go. Missing parts are installed, or built and cached. pytest, which gets all other arguments,
runs the tests in a sandbox.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Final

from tests.e2e.common import packages
from tests.e2e.common.report import say
from tests.e2e.kubelet import parts, runtime_parts, sandbox, versions
from tests.e2e.kubelet.parts import Parts
from tests.e2e.kubelet.runtimes import COMBINATIONS

LIMIT: Final = 1800.0
"""The time limit for all tests, in seconds."""
_TEST_LIMIT: Final = 600
"""That of each test."""
_OPTIONS: Final = (
    *("--override-ini=testpaths=tests/e2e/kubelet", "-p", "no:randomly", "-p", "no:cacheprovider", "-v"),
    f"--timeout={_TEST_LIMIT}",
)
_REASON: Final = 300
"""Characters of a failed build's messages that are printed as the reason for skipped tests."""


def main() -> int:
    """Get the parts, run the tests in the sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kubelet", description=__doc__, allow_abbrev=False)
    parser.add_argument("--kubelet", choices=versions.VERSIONS, default="", help="another version of the kubelet")
    parser.add_argument("--runtime", choices=COMBINATIONS, help="only what depends on the runtime, with this one")
    parser.add_argument("-m", dest="marker", default="", help="the marker of pytest: `core` for the core set")
    options, arguments = parser.parse_known_args()
    if options.kubelet and versions.minor(options.kubelet) < versions.CRASH_LOOP.first:
        # A killed container of the plugin restarts after 10, 20, 40 s.
        os.environ.setdefault("E2E_PATIENCE", "90")
    # As after Ctrl-C, nothing remains of a build or of the directory for the work.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # gRPC logs each connection that ends, which would clutter the report.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    started = time.monotonic()
    try:
        found = _parts(options.kubelet, options.runtime, core=options.marker == "core")
    except packages.MissingError as error:
        say(f"skipped: {error}")
        return int(os.environ.get("E2E_STRICT") == "yes")
    say(f"# the parts are available after {time.monotonic() - started:.0f} s")
    work = tempfile.mkdtemp(prefix="aosp-kubelet-")
    os.chmod(work, 0o711)  # the root of a container with users of its own passes through it
    try:
        found.work = work
        found.pass_on()
        marker = ("-m", options.marker) if options.marker else ()
        return sandbox.enter("pytest", [*_OPTIONS, *marker, *arguments], project=parts.PROJECT, seconds=LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        say(f"# {time.monotonic() - started:.0f} s in total")


def _parts(kubelet: str, runtime: str | None, *, core: bool) -> Parts:
    """Return the parts. Raises MissingError if no test can run on this machine."""
    if os.geteuid() != 0:
        raise packages.MissingError("a kubelet requires root")
    packages.install(parts.PACKAGES)
    if problem := sandbox.problem():
        raise packages.MissingError(problem)
    found = Parts(kubelet=str(parts.kubelet(kubelet)))
    try:
        found.image = str(parts.plugin_image())
    except packages.MissingError as error:
        found.missing["image"] = str(error)
    if runtime:
        found.runtime = runtime
        found.programs, found.oci_runtime = runtime_parts.programs(runtime)
    elif core:
        found.missing["programs"] = "the core set does not require it"
    else:
        try:
            found.programs = str(parts.containerd())
        except (AssertionError, packages.MissingError) as error:
            # Only the chapters that require it are skipped: it may require a newer Go or an unavailable module.
            found.missing["programs"] = " ".join(str(error).split())[-_REASON:]
    return found


if __name__ == "__main__":
    sys.exit(main())
