"""``python -m tests.e2e.kubeadm``: the plugin in a cluster that kubeadm makes and upgrades. Arguments are pytest's.

Requires what a machine with a real binder driver does. Missing parts are installed, or built and cached.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.cluster import network
from tests.e2e.common import sandbox, sandboxed
from tests.e2e.kubeadm import parts
from tests.e2e.kubeadm.node import KubeadmCluster
from tests.e2e.kubeadm.parts import Parts

LIMIT: Final = 7200.0
"""The time limit for all tests, in seconds."""


def _inside(work: Path, cgroups: str, found: Parts, arguments: Sequence[str]) -> int:
    network.set_up()
    cluster = KubeadmCluster(found, work, cgroups)
    code = sandboxed.run(cluster, "--exitfirst", os.path.dirname(__file__), *arguments)
    cluster.stop()
    return code


if __name__ == "__main__":
    sys.exit(sandbox.main(parts.collect, _inside, sys.argv[1:], seconds=LIMIT))
