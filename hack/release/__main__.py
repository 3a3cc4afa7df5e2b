"""``python -m hack.release``: build a release, usually by ``make release``.

The directory has the Python packages, both commands as single files, an image archive and a list of its contents for
each architecture, the chart, the other files of ``deploy``, the release notes and SHA256SUMS. The same commit and the
same arguments give the same files, byte for byte. CONTRIBUTING.md describes how a release is made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hack.files import CHECKSUMS, sha256, write_checksums
from hack.image.build import NAME
from hack.release import images, krew, notes, packages, single_file, source
from hack.release.chart import pack, pack_manifests
from hack.release.errors import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Build a release, print its files, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m hack.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("dist"), metavar="DIR", help="default: dist")
    parser.add_argument("--image", default=NAME, help=f"the image's repository, without a tag; default: {NAME}")
    parser.add_argument("--source-url", default="", metavar="URL", help="of the public repository, if there is one")
    parser.add_argument("--tag", default="", help="fail unless it is v and the version, and the changelog has a date")
    parser.add_argument("--allow-changes", action="store_true", help="build from files that are not committed")
    parser.add_argument("--without-images", action="store_true", help="build packages and chart only")
    options = parser.parse_args(arguments)
    try:
        build(options)
    except ReleaseError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    return 0


def build(options: argparse.Namespace) -> None:
    """Build a release according to the options. Raises ReleaseError."""
    project = source.read(source.ROOT)
    source.check(project, tag=options.tag, allow_changes=options.allow_changes)
    output: Path = options.output
    _empty(output)
    os.environ["SOURCE_DATE_EPOCH"] = str(project.epoch)
    packages.build(project, output, options.source_url)
    single_file.build(project, output)
    krew.build(project, output, options.source_url)
    archives = [] if options.without_images else images.build(project, output, options.image)
    digest = ""
    # Nodes do not know an image that was imported by the digest of an index.
    if archives and not options.image.startswith("localhost/"):
        with tempfile.TemporaryDirectory() as directory:
            digest = images.write_layout(archives, Path(directory))
    pack(project, output, options.image, digest, options.source_url)
    pack_manifests(project, output, options.image)
    text = notes.render(project, output, options.image, digest, options.source_url)
    (output / notes.NAME).write_text(text, encoding="utf-8")
    write_checksums(output)
    for path in sorted(output.iterdir()):
        print(f"{sha256(path)}  {path.stat().st_size / 1e6:8.2f} MB  {path}")


def _empty(output: Path) -> None:
    """Make an empty directory. An earlier release in it is deleted, other files are an error."""
    if output.exists() and any(output.iterdir()) and not (output / CHECKSUMS).exists():
        raise ReleaseError(f"{output} is not empty, and not from an earlier release: delete it, or use another one")
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)


if __name__ == "__main__":
    sys.exit(main())
