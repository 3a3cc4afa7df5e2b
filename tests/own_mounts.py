"""A mount namespace for each process that runs tests.

A mount anywhere on the machine notifies every process that polls /proc/self/mountinfo in the same namespace, and the
plugin scans again (``framework.file_events``). Tests in other processes mount file systems, and so do container
runtimes.
"""

import ctypes
import errno
import os
from typing import Final

_CLONE_NEWNS: Final = 0x00020000  # include/uapi/linux/sched.h
_MS_REC_PRIVATE: Final = 0x4000 | 1 << 18  # MS_REC, MS_PRIVATE: include/uapi/linux/mount.h


def enter() -> None:
    """Give this thread, and all threads and processes that it starts, mounts that no other process changes.

    Does nothing without CAP_SYS_ADMIN: then no test mounts anything either. To be called in the thread that runs the
    tests. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        error = ctypes.get_errno()
        if error != errno.EPERM:
            raise OSError(error, f"unshare: {os.strerror(error)}")
    elif libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None):
        error = ctypes.get_errno()
        raise OSError(error, f"mount --make-rprivate /: {os.strerror(error)}")
