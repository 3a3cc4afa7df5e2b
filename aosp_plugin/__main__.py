"""Entry point of ``python -m aosp_plugin`` and of the command ``aosp-plugin``."""

import gc
import sys

from aosp_plugin.cli.main import main as run
from aosp_plugin.framework.service import logs

GC_THRESHOLD = 20_000
"""Surviving allocations before the garbage collector runs. Modules stay loaded and devices have no reference cycles:
collections would take a few hundredths of the time of the imports, and a third of each scan."""


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(GC_THRESHOLD)

    logs.replace_stderr()
    sys.exit(run())


if __name__ == "__main__":
    main()
