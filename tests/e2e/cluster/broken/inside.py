"""Runs in the sandbox: the items with a broken plugin, until one fails."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from tests.e2e.cluster import sandbox, suite
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.parts import Parts
from tests.e2e.common.report import FAILED, PASSED, describe, say

GROUPS: Final = ("phones", "failures", "rollout", "reboot", "unhealthy")
"""The groups of the items that run; those with several machines come last, because later groups keep them."""
_DETAIL: Final = 400


def main() -> int:
    """Run the items until one fails, and return 0 if its message is the expected one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--cgroups", required=True)
    parser.add_argument("--first", required=True)
    parser.add_argument("--text", required=True)
    options = parser.parse_args()
    sandbox.set_up()
    cluster = Cluster(Parts.from_arguments(options.parts), options.work, options.cgroups)
    cluster.start()
    groups = {group.name: group for group in suite.GROUPS}
    passed = 0
    for group in (groups[name] for name in dict.fromkeys((options.first, *GROUPS)) if name in groups):
        while len(cluster.machines) < group.machines:
            cluster.wait_node(cluster.add_machine())
        for item in group.items:
            started = time.monotonic()
            try:
                item.check(cluster)
            except Exception as error:  # noqa: BLE001 - whatever an item raises is its failure
                seconds = time.monotonic() - started
                say(f"#   after {passed} items that pass, this one fails, after {seconds:.1f} s:")
                say(f"#   [{group.name}] {item.title} : {' '.join(describe(error).split())[:_DETAIL]}")
                cluster.stop()
                if options.text in describe(error):
                    return PASSED
                say(f"#   but not as expected: {options.text}")
                return FAILED
            passed += 1
    say(f"#   all {passed} items pass")
    cluster.stop()
    return FAILED


if __name__ == "__main__":
    raise SystemExit(main())
