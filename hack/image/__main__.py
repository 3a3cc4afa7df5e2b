"""``python -m hack.image``: build the plugin's image, an archive and an SBOM for each architecture.

The same checkout and the same base image give the same archives, byte for byte. Times in them are
that of the commit, or SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from hack.image.assemble.packages import MACHINES
from hack.image.build import DEBIAN, NAME, Settings, build
from hack.image.builders import PROJECT, own_arch
from hack.image.errors import BuildError


def main() -> int:
    """Build images, print where they are, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.image", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    environment = os.environ.get
    parser.add_argument(
        "--arch", action="append", choices=sorted(MACHINES), help="may be repeated; default: this machine's"
    )
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="DIR", help="default: build")
    parser.add_argument(
        "--image",
        default=environment("IMAGE") or NAME,
        metavar="NAME",
        help=f"name without tag; default: IMAGE, or {NAME}",
    )
    parser.add_argument(
        "--base",
        default=environment("BASE", ""),
        metavar="NAME",
        help=f"another base image, or {DEBIAN!r}: made from Debian's packages; default: BASE, or the Dockerfile's",
    )
    parser.add_argument(
        "--build-base",
        default=environment("BUILD_BASE", ""),
        metavar="NAME",
        help="base image of the build stage; default: --base",
    )
    options = parser.parse_args()
    settings = Settings(options.image, options.base, options.build_base, _revision(), _epoch())
    try:
        for arch in options.arch or [own_arch()]:
            written = build(arch, options.output, settings)
            sizes = f"{written.compressed / 1e6:.1f} MB, unpacked {written.unpacked / 1e6:.1f} MB"
            print(f"{written.path}  {written.digest}  {sizes}")
    except (BuildError, OSError) as error:
        print(f"hack.image: {error}", file=sys.stderr)
        return 1
    return 0


def _revision() -> str:
    return _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*") or "unknown"


def _epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or 0)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PROJECT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
