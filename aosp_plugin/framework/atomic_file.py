"""Files that are replaced atomically: a reader finds the previous content or the new one, also if a writer is killed.

All functions block, and raise OSError.
"""

import contextlib
import os
import re
import tempfile
import time

STALE = 60.0
"""Seconds after which no process still writes a temporary file."""


def make_directory(path: str, mode: int = 0o755) -> None:
    """Create a directory with this mode, whatever the umask is; one that exists stays as it is."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, mode)


def write_temporary(path: str, content: bytes, mode: int = 0o644, *, sync: bool = True) -> tuple[str, os.stat_result]:
    """Write a temporary file that is to be renamed to ``path``; return its path and status.

    With ``sync``, the content is on the disk before the caller renames the file. It is in the same directory. Its name
    starts with a dot and ends in .tmp, so that no reader of *.json reads it. ``mkstemp`` opens it with O_EXCL and
    O_NOFOLLOW.
    """
    directory, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(".tmp", f".{name}.", directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            if sync:
                os.fsync(descriptor)
            return temporary, os.fstat(descriptor)
    except OSError:
        remove(temporary)
        raise


def replace(path: str, content: bytes, mode: int = 0o644, *, sync: bool = False) -> os.stat_result:
    """Replace the file at ``path``, or create it, and return its status.

    After an error, the previous file is complete. Without ``sync``, the file may be missing, empty or the previous one
    after a crash of the host: that is enough for files that only matter until it reboots.
    """
    temporary, status = write_temporary(path, content, mode, sync=sync)
    try:
        os.rename(temporary, path)
    except OSError:
        remove(temporary)
        raise
    return status


def sweep(directory: str, name: str, age: float = STALE) -> None:
    """Remove the temporary files that killed processes left for files whose name the pattern ``name`` matches.

    Files that changed less than ``age`` seconds ago stay: another process may be about to rename them. An ``age`` of 0
    is for files that a lock protects.
    """
    own = re.compile(rf"\.(?:{name})\.[a-z0-9_]{{8}}\.tmp")
    with contextlib.suppress(FileNotFoundError):
        for path in [os.path.join(directory, entry) for entry in filter(own.fullmatch, os.listdir(directory))]:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.lstat(path).st_mtime >= age:
                    remove(path)


def identity(status: os.stat_result) -> tuple[int, ...]:
    """Return what distinguishes a file from one that replaces it; renaming does not change it."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def remove(path: str) -> bool:
    """Remove a file; return whether it existed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
