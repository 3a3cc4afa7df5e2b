"""``python -m tests.e2e.apiserver``: the client of the API server, and the stand-in's contract, with kube-apiserver.

Requires root, Debian and Go: etcd and two versions of kube-apiserver are built and cached, and run in a sandbox.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.e2e.cluster import sandbox
from tests.e2e.common import packages
from tests.e2e.common.report import Report, describe
from tests.e2e.kubelet import parts
from tests.e2e.kubelet.sandbox import problem

LIMIT: Final = 900.0
"""The time limit for a version, in seconds."""
VERSIONS: Final = {"oldest": parts.KUBERNETES, "newest": parts.NEWEST}


def main() -> int:
    """Run the checks in a sandbox for each version, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.apiserver", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="run the checks whose title contains TEXT")
    parser.add_argument("--items", choices=("all", "core"), default="all", help="all versions, or the oldest one")
    options = parser.parse_args()
    code = 0
    for name, module in VERSIONS.items():
        if options.items == "all" or name == "oldest":
            code |= _run(name, module, options.only)
    return code


def _run(name: str, module: Path, only: str) -> int:
    report = Report()
    try:
        programs = _programs(module)
    except packages.MissingError as error:
        report.skip(f"kube-apiserver, {name} version", str(error))
        return report.end()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        report.not_ok("the parts can be built", describe(error))
        return report.end()
    work = Path(tempfile.mkdtemp(prefix="aosp-apiserver-"))
    try:
        arguments = ["--work", str(work), "--programs", str(programs), "--only", only]
        return sandbox.enter("tests.e2e.apiserver.inside", arguments, project=parts.PROJECT, seconds=LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _programs(module: Path) -> Path:
    packages.install(("openssl", "iproute2"))
    if text := problem():
        raise packages.MissingError(text)
    return parts.kubernetes(module)


if __name__ == "__main__":
    sys.exit(main())
