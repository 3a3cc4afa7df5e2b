"""Which implementation of the binder driver a binderfs belongs to: since Linux 6.18 there is one in Rust.

Both have the same interface, and the same name of the file system. The number in the superblock differs.
"""

from __future__ import annotations

import os

C, RUST = "c", "rust"

MAGIC = {0x6C6F6F70: C, 0x6C6F6F71: RUST}
"""The implementation by ``f_type`` of statfs(2) (include/uapi/linux/magic.h BINDERFS_SUPER_MAGIC;
drivers/android/binder/rust_binder_internal.h RUST_BINDERFS_SUPER_MAGIC)."""

_STATFS_SIZE = 256
"""Bytes, more than ``struct statfs`` has on any architecture."""


def implementation(path: str) -> str:
    """Return c or rust for a path in a binderfs; empty for another file system. Raises OSError."""
    import ctypes  # noqa: PLC0415 - 1.4 MB, and only DRA drivers need it

    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), buffer) != 0:
        raise OSError(ctypes.get_errno(), "statfs", path)
    return MAGIC.get(ctypes.c_long.from_buffer(buffer).value, "")
