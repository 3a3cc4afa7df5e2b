"""``python -m tests.e2e.apiserver``: the client of the API server, and the stand-in's contract, with kube-apiserver.

Requires root, Debian and Go: etcd and two versions of kube-apiserver are built and cached, and run in a sandbox. The
arguments are those of pytest; ``-m core`` runs the oldest version.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.apiserver.servers import Servers
from tests.e2e.cluster import network, parts
from tests.e2e.common import sandbox, sandboxed
from tests.e2e.deploy.parts import KUBERNETES
from tests.e2e.kubelet.parts import NEWEST

LIMIT: Final = 1800.0
"""The time limit for all tests, in seconds."""
_MODULES: Final = {"oldest": KUBERNETES, "newest": NEWEST}


def main() -> int:
    """Get the parts, run the tests in a sandbox, and return the exit code."""
    arguments = [os.path.dirname(__file__), *sys.argv[1:]]
    selected = "".join(item.name for item in sandboxed.select(*arguments))
    modules = {name: module for name, module in _MODULES.items() if f"[{name}" in selected}
    find = partial(parts.control_planes, modules)
    return sandbox.main(find, _inside, arguments, seconds=LIMIT)


def _inside(work: Path, _cgroups: str, programs: Mapping[str, Path], arguments: Sequence[str]) -> int:
    network.set_up()
    return sandboxed.run(Servers(work, programs), *arguments)


if __name__ == "__main__":
    sys.exit(main())
