"""``python -m tests.e2e.cluster.broken``: the package's docstring describes it. Requires root, Debian and Go."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import parts, sandbox, suite
from tests.e2e.cluster.broken import __doc__ as description
from tests.e2e.cluster.broken import breaks, image
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.common.report import FAILED, PASSED, describe, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.parts import Parts

BREAKS: Final = {
    "wrong_device": ("phones", "and the kubelet says"),
    "no_recovery": ("phones", "allocatable aosp.io/phone: not within"),
    "no_reregistration": ("failures", "the invariants hold: not within"),
    "stale_socket": ("failures", "has the sockets"),
}
"""The group of which an item fails, and a part of its message: another failure does not count."""
LIMIT: Final = 1800.0
"""The time limit for the items of one break, in seconds."""


def main() -> int:
    """Run the items with each broken plugin; return 1 if one of them is not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster.broken", description=description)
    parser.add_argument("names", nargs="*", choices=[*BREAKS, []], metavar="NAME", help=f"default: {' '.join(BREAKS)}")
    names: Sequence[str] = parser.parse_args().names or [*BREAKS]
    find = partial(parts.collect, newest=False)
    unnoticed = [name for name in names if sandbox.main(find, inside, name, seconds=LIMIT) != PASSED]
    say(f"not noticed: {', '.join(unnoticed) or 'none'}")
    return FAILED if unnoticed else PASSED


def inside(work: Path, cgroups: str, found: Parts, name: str) -> int:
    """Run the items with one broken plugin, and return 0 if one of them fails as expected."""
    source = Path(str(breaks.__file__)).with_name(f"{name}.py")
    say(f"# {name}: {source.read_text().splitlines()[0].strip(chr(34))}")
    changed, directory = work / "broken.tar", image.site_packages(found.image)
    loader = f"import {name}\n".encode()
    files = {f"{directory}/{name}.py": source.read_bytes(), f"{directory}/{name}.pth": loader}
    image.add_files(found.image, changed, files)
    cluster = Cluster(dataclasses.replace(found, image=changed), work, cgroups)
    chosen, text = BREAKS[name]
    (group,) = (group for group in suite.GROUPS if group.name == chosen)
    cluster.start(group.machines)
    code = FAILED
    for item in group.items:
        try:
            item.check(cluster)
        except Exception as error:  # noqa: BLE001 - whatever an item raises is its failure
            message = " ".join(describe(error).split())
            say(f"#   [{group.name}] {item.title} : {message[:400]}")
            code = PASSED if text in message else FAILED
            break
    cluster.stop()
    say(f"{'ok' if code == PASSED else 'not ok'} - {name} is noticed")
    return code


if __name__ == "__main__":
    sys.exit(main())
