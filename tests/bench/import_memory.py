"""Import the modules in the lines of the input, in this order; print the resident bytes that each adds, as JSON.

It imports almost nothing itself, because what is imported already adds nothing.
"""

from __future__ import annotations

import importlib
import os
import sys


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Import the modules of the input; those that cannot be imported, such as __main__ of a package, add nothing."""
    sizes = {}
    before = resident()
    for module in sys.stdin.read().split():
        try:
            importlib.import_module(module)
        except ImportError:
            continue
        after = resident()
        sizes[module] = after - before
        before = after
    import json  # noqa: PLC0415 - a module to measure, too

    print(json.dumps(sizes))  # noqa: T201 - for profile


if __name__ == "__main__":
    main()
