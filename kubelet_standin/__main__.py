"""``kubelet-standin``: the stand-in kubelet as a command, for device plugins in any language."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from kubelet_standin import __version__

DESCRIPTION = """\
Run a stand-in kubelet, to test device plugins.

A device plugin in any language registers at DIR/kubelet.sock. DIR is created if it does not exist. Each event is
printed as a JSON object in a line. The kubelet runs until quit, Ctrl-C or SIGTERM.

Commands are read from standard input, also from scripts. The README lists them, and so does the
answer to an unknown one.
"""


def main() -> int:
    """Run the command, and return its exit code: 0 success, 1 failure. Invalid usage ends the process with 2."""
    parser = argparse.ArgumentParser(
        prog="kubelet-standin", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", metavar="DIR", help="the plugin directory of the kubelet")
    parser.add_argument(
        "--kubelet",
        choices=["1.32", "1.36", "1.37"],
        default="1.37",
        help="the kubelet to behave like: 1.26 to 1.32, 1.33 to 1.36, or 1.37, which is the default",
    )
    parser.add_argument("--pod-resources", metavar="PATH", default="", help="serve the podresources API at this socket")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    options = parser.parse_args()

    # gRPC's C core logs on its own ("Got goaway") unless this is set before it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from kubelet_standin import KubeletVersion, console  # noqa: PLC0415 - the variable has to be set first

    version = KubeletVersion(int(options.kubelet.removeprefix("1.")))
    run = console.run(options.directory, version, pod_resources=options.pod_resources)
    try:
        asyncio.run(run)
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"kubelet-standin: {text}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
