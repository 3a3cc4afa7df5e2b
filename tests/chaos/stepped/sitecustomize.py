"""For the plugin's interpreter alone, by PYTHONPATH: ``time.time`` as a clock tells it that is stepped.

How many seconds it is off is a number in a file, mapped so that no call needs a descriptor. gRPC's Python makes
deadlines of the time of day, which its C core turns into those of a clock that nobody steps; as the core doesn't see
this step, neither does its Python.
"""

import mmap
import os
import struct
import sys
import time

_time = time.time

with open(os.environ["AOSP_CHAOS_CLOCK"], "rb") as _file:
    _off = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)


def stepped() -> float:
    """Return the seconds since the epoch, and what the clock was stepped by."""
    off: float = struct.unpack_from("d", _off)[0]
    by_grpc = str(sys._getframe(1).f_globals.get("__name__", "")).startswith("grpc")
    return _time() + (0 if by_grpc else off)


time.time = stepped
