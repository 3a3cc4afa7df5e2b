"""``python -m tests.e2e.cluster``: the plugin in a whole Kubernetes cluster. Other arguments are those of pytest.

Requires root, Debian and Go. Missing parts are installed, or built and cached. The tests run in a sandbox.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.e2e.cluster import network, parts
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.parts import Parts
from tests.e2e.common import sandbox, sandboxed
from tests.e2e.common.report import say
from tests.e2e.kernel import architectures

LIMIT: Final = 7200.0
"""The time limit for all tests, in seconds."""


def main() -> int:
    """Get the parts, run the tests in the sandbox, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.cluster", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="then keep the cluster, with two nodes, until Ctrl-C")
    text = "of the machine with a real binder driver: arm64 is for the modules `binder` and `dra_binder`"
    parser.add_argument("--arch", choices=architectures.ALL, default="amd64", help=text)
    options, arguments = parser.parse_known_args()
    arguments = [os.path.dirname(__file__), *arguments]
    fixtures = {name for item in sandboxed.select(*arguments) for name in item.fixturenames}  # type: ignore[attr-defined]
    architecture = architectures.ALL[options.arch]
    kinds = {"newest": "newest" in fixtures, "binder": "binder_parts" in fixtures}
    find = partial(parts.collect, **kinds, architecture=architecture)
    started = time.monotonic()
    keep_for, seconds = (os.getpid(), None) if options.keep else (0, LIMIT)
    code = sandbox.main(find, _inside, arguments, keep_for, seconds=seconds)
    left = _leftovers()
    say("".join(f"ERROR: {text} is left on the machine\n" for text in left) or "# nothing is left on the machine")
    say(f"# {time.monotonic() - started:.0f} s in total")
    return code or bool(left)


def _inside(work: Path, cgroups: str, parts: Parts, arguments: Sequence[str], keep_for: int) -> int:
    """Run the tests that pytest's arguments select, and return its exit code.

    ``keep_for`` is the process outside of the sandbox for which the cluster is kept until Ctrl-C; 0 if it is not.
    """
    network.set_up()
    cluster = Cluster(parts, work, cgroups)
    code = sandboxed.run(cluster, *arguments)
    if keep_for:
        _keep(cluster, keep_for)
    cluster.stop()
    return code


def _keep(cluster: Cluster, process: int) -> None:
    """Say how to use the cluster, which has two nodes at least, and wait for Ctrl-C."""
    cluster.start()
    cluster.grow(2)
    say("# the cluster is kept until Ctrl-C; in another terminal, as root:")
    say(f"export KUBECONFIG={cluster.kubeconfig}")
    for name, program in (("kubectl", cluster.parts.kubernetes / "kubectl"), ("helm", cluster.parts.helm)):
        say(f'{name}() {{ {sandbox.shell_command(process)} {program} "$@"; }}')
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def _leftovers() -> list[str]:
    """Return the processes, mounts, network devices and cgroups of the cluster that remain."""
    name, found = sandbox.prefix(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [f"process {path.parent.name}"] if name.encode() in path.read_bytes() else []
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    found += [device for device in os.listdir("/sys/class/net") if device == network.BRIDGE]
    # os.walk passes over what other processes remove meanwhile.
    names = ((path, directory) for path, directories, _ in os.walk(sandbox.CGROUPS) for directory in directories)
    return found + [f"{path}/{directory}" for path, directory in names if directory.startswith(name)]


if __name__ == "__main__":
    sys.exit(main())
