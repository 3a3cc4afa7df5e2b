"""Files that are replaced atomically: a reader finds the previous content or the new one, also after a crash.

All functions block, and raise OSError.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile


def make_directory(path: str, mode: int = 0o755) -> None:
    """Create a directory with this mode, whatever the umask is; one that exists stays as it is."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, mode)


def write_temporary(path: str, content: bytes, mode: int = 0o644) -> tuple[str, os.stat_result]:
    """Write a temporary file that is to be renamed to ``path``, and sync it; return its path and status.

    It is in the same directory. Its name starts with a dot and ends in .tmp, so that no reader of *.json reads it.
    ``mkstemp`` opens it with O_EXCL and O_NOFOLLOW.
    """
    directory, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(".tmp", f".{name}.", directory)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            return temporary, os.fstat(descriptor)
    except OSError:
        remove(temporary)
        raise


def replace(path: str, content: bytes, mode: int = 0o644) -> os.stat_result:
    """Replace the file at ``path``, or create it; return the status of the new one. Syncs file and directory.

    After an error, the previous file is complete. If only the directory could not be synced, the new one is.
    """
    temporary, status = write_temporary(path, content, mode)
    try:
        os.rename(temporary, path)
    except OSError:
        remove(temporary)
        raise
    sync_directory(os.path.dirname(path))
    return status


def sync_directory(path: str) -> None:
    """Make renamed and removed files of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(directory: str, name: str) -> None:
    """Remove the temporary files that killed processes left for files whose name the pattern ``name`` matches."""
    own = re.compile(rf"\.(?:{name})\.[a-z0-9_]{{8}}\.tmp")
    with contextlib.suppress(FileNotFoundError):
        for entry in filter(own.fullmatch, os.listdir(directory)):
            remove(os.path.join(directory, entry))


def remove(path: str) -> bool:
    """Remove a file; return whether it existed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
