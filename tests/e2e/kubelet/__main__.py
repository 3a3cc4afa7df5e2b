"""``python -m tests.e2e.kubelet``: the plugin with a real kubelet, containerd and runc.

Requires root, Debian and Go. Missing parts are installed, or built and cached. pytest, which gets all other arguments,
runs the tests in a sandbox.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.common import packages, sandbox, sandboxed
from tests.e2e.common.report import say
from tests.e2e.kubelet import parts, runtime_parts, versions
from tests.e2e.kubelet.parts import Parts
from tests.e2e.kubelet.runtimes import COMBINATIONS

LIMIT: Final = 1800.0
"""The time limit for all tests, in seconds."""
_OPTIONS: Final = ("--timeout=600", "-W", "error::ResourceWarning")
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
    # gRPC logs each connection that ends, which would clutter the report.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    started = time.monotonic()
    find = partial(_parts, options.kubelet, options.runtime, core=options.marker == "core")
    code = sandbox.main(find, _inside, ["-m", options.marker, *arguments], seconds=LIMIT)
    say(f"# {time.monotonic() - started:.0f} s in total")
    return code


def _inside(work: Path, cgroups: str, found: Parts, arguments: Sequence[str]) -> int:
    work.chmod(0o711)  # the root of a container with users of its own passes through it
    found.work, found.cgroups = work, cgroups
    return sandboxed.run(found, os.path.dirname(__file__), *_OPTIONS, *arguments)


def _parts(kubelet: str, runtime: str | None, *, core: bool) -> Parts:
    """Return the parts. Raises MissingError if no test can run on this machine."""
    if os.geteuid() != 0:
        raise packages.MissingError("a kubelet requires root")
    packages.install(parts.PACKAGES)
    sandbox.require()
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
