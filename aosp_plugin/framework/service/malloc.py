"""The heaps of the C library."""

from __future__ import annotations

import contextlib

ARENAS = 2

_M_ARENA_MAX = -8  # malloc.h


def limit_arenas() -> None:
    """Let all threads share two heaps. To be called before they start.

    glibc gives each of the first threads a heap of its own, up to eight for each processor (mallopt(3)), and each keeps
    free memory. With the plugin's twenty threads and 10,000 devices, that is more than a megabyte; Python's lock lets
    only one of them allocate at a time, with or without heaps of their own. No effect with another C library.
    """
    import ctypes  # noqa: PLC0415 - for this one call; watchdog needs it in any case

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
