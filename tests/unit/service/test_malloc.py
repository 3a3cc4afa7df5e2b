from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, threading
from aosp_plugin.framework.service.malloc import limit_arenas

limit_arenas()
together = threading.Barrier(8)

def allocate():
    kept = bytearray(100_000)
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(library.fdopen(1, b"w"))
library.malloc_info(0, out)
library.fflush(out)
"""


def test_limited_arenas_are_shared_by_threads() -> None:
    """malloc_info(3) describes each heap. Without a limit, these threads have eight."""
    program = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)  # noqa: S603
    assert 1 <= program.stdout.count("<heap nr=") <= 2
