"""``python -m hack.image``: build the plugin's image, an archive and an SBOM for each architecture.

The same checkout, base image and version of buildah give the same archives, byte for byte. All times in them are the
time of the commit, or SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from hack.image.build import ARCHITECTURES, NAME, BuildError, Settings, build, own_arch


def main() -> int:
    """Build images, print where they are, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.image", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arch", action="append", choices=ARCHITECTURES, help="may be repeated; default: this machine's"
    )
    parser.add_argument("--output", type=Path, default=Path("build"), metavar="DIR", help="default: build")
    parser.add_argument("--image", default=NAME, metavar="NAME", help=f"name without tag; default: {NAME}")
    parser.add_argument(
        "--base", default=os.environ.get("BASE", ""), metavar="NAME", help="default: BASE, or the Dockerfile's"
    )
    options = parser.parse_args()
    revision = _git("describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))
    settings = Settings(options.image, options.base, revision, epoch)
    try:
        for arch in options.arch or [own_arch()]:
            built = build(arch, options.output, settings)
            print(f"{built.path}  {built.digest}  {built.path.stat().st_size / 1e6:.1f} MB")
    except BuildError as error:
        print(f"hack.image: {error}", file=sys.stderr)
        return 1
    return 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
