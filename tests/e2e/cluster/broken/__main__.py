"""``python -m tests.e2e.cluster.broken``: the package's docstring describes it. Requires root, Debian and Go."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.e2e.cluster import parts, sandbox
from tests.e2e.cluster.broken import __doc__ as description
from tests.e2e.cluster.broken import breaks, image
from tests.e2e.common import packages
from tests.e2e.common.report import FAILED, PASSED, say
from tests.e2e.kubelet.parts import PROJECT

if TYPE_CHECKING:
    from tests.e2e.cluster.parts import Parts


class Expected(NamedTuple):
    """How a break is noticed."""

    group: str
    """The group of items that begins, so that the failure is soon found."""
    text: str
    """A part of the message of the item that fails: another failure does not count."""


_ALLOCATED: Final = "and the kubelet says"
BREAKS: Final = {
    "shared_device": Expected("phones", _ALLOCATED),
    "wrong_device": Expected("phones", _ALLOCATED),
    "no_recovery": Expected("phones", "allocatable aosp.io/phone: not within"),
    "no_reregistration": Expected("failures", "capacity and allocatable are right: not within"),
    "stale_socket": Expected("failures", "the plugin's sockets are"),
}
LIMIT: Final = 1800.0
"""The time limit for the items of one break, in seconds."""


def main() -> int:
    """Run the items with each broken plugin; return 1 if one of them is not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.broken", description=description)
    parser.add_argument("names", nargs="*", choices=[*BREAKS, []], metavar="NAME", help=f"default: {' '.join(BREAKS)}")
    options = parser.parse_args()
    try:
        found = parts.collect(newest=False)
    except packages.MissingError as error:
        say(f"ok - broken plugins # skip: {error}")
        return PASSED
    unnoticed = [name for name in options.names or BREAKS if _run(name, found) != PASSED]
    say(f"not noticed: {', '.join(unnoticed) or 'none'}")
    return FAILED if unnoticed else PASSED


def _run(name: str, found: Parts) -> int:
    """Run the items with one broken plugin, and return 0 if one of them fails as expected."""
    started = time.monotonic()
    source = Path(str(breaks.__file__)).with_name(f"{name}.py")
    say(f"# {name}: {source.read_text().splitlines()[0].strip(chr(34))}")
    work = Path(tempfile.mkdtemp(prefix="aosp-cluster-"))
    try:
        changed = work / "broken.tar"
        packages_path = image.site_packages(found.image)
        files = {
            f"{packages_path}/{name}.py": source.read_bytes(),
            f"{packages_path}/{name}.pth": f"import {name}\n".encode(),
        }
        image.add_files(found.image, changed, files)
        broken = dataclasses.replace(found, image=changed)
        group, text = BREAKS[name]
        arguments = ["--work", str(work), "--first", group, "--text", text, "--parts", *broken.arguments()]
        code = sandbox.enter("tests.e2e.cluster.broken.inside", arguments, project=PROJECT, seconds=LIMIT)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"{'ok' if code == PASSED else 'not ok'} - {name} is noticed ({time.monotonic() - started:.0f} s)")
    return code


if __name__ == "__main__":
    sys.exit(main())
