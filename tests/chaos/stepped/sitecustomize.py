"""For the plugin's interpreter alone, by PYTHONPATH: ``time.time`` as a clock tells it that is stepped.

How many seconds it is off is a number in a file, mapped so that no call needs a descriptor.
"""

import mmap
import os
import struct
import time

_time = time.time

with open(os.environ["AOSP_CHAOS_CLOCK"], "rb") as _file:
    _off = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)


def stepped() -> float:
    """Return the seconds since the epoch, and what the clock was stepped by."""
    off: float = struct.unpack_from("d", _off)[0]
    return _time() + off


time.time = stepped
