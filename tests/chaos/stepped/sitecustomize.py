"""Add an offset to ``time.time`` in the plugin's interpreter, which loads this module by PYTHONPATH.

The offset in seconds is in a file, which is mapped so that no call needs a file descriptor. gRPC's Python code computes
deadlines from the time of day, which its C core converts to a monotonic clock. The core does not see the offset, so
calls from gRPC do not get it either.
"""

import mmap
import os
import struct
import sys
import time

_time = time.time

with open(os.environ["AOSP_CHAOS_CLOCK"], "rb") as _file:
    _offset = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)


def stepped() -> float:
    """Return the seconds since the epoch plus the offset."""
    offset: float = struct.unpack_from("d", _offset)[0]
    by_grpc = str(sys._getframe(1).f_globals.get("__name__", "")).startswith("grpc")
    return _time() + (0 if by_grpc else offset)


time.time = stepped
