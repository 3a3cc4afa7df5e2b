"""The file of a CDI spec: written atomically, kept current, and removed at the end."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from typing import TYPE_CHECKING

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.errors import CdiError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


LOCK_TIMEOUT = 0.5
"""Seconds to wait for an access to the same file in another thread. Such an access hangs, because each takes
milliseconds; and the end of a process must not wait for it (``scanned_backend.CLOSE_TIMEOUT``)."""


class SpecFile:
    """The file of one resource's spec, in a directory that belongs to root.

    The methods may be called in different threads, one of which may hang: they exclude each other, and each waits at
    most ``LOCK_TIMEOUT`` for another one. After ``close`` nothing is written, not even by a call that was hanging.
    """

    def __init__(self, directory: str, resource_name: str) -> None:
        """``directory`` is a path of this process."""
        self._directory = directory
        self._name = f"{resource_name.replace('/', '_')}.json"  # with the library's "-", a-b/c and a/b-c share a file
        self.path = os.path.join(directory, self._name)
        self._lock = threading.Lock()
        self._closed = False
        self._written: tuple[bytes, tuple[int, ...]] | None = None
        self._identity: tuple[int, int, int] | None = None
        self._swept = False

    def write(self, content: bytes | None, numbers: Sequence[int] = ()) -> bool:
        """Write ``content``, or remove the file if it is None, because there are no devices; return whether it changed.

        ``numbers`` are the device numbers (st_rdev) of the device nodes. If one changes, the same content is written
        again: a runtime caches the numbers that it reads first until the file changes, because ``fillMissingInfo``
        stores them in the library's cache (measured with 0.7.2 to 1.1.1). For the same reason, the first content is
        written even if the file has it already. The first call also removes the temporary files that a killed
        predecessor left. Raises CdiError; the previous file then stays complete.
        """
        new = None if content is None else (content, tuple(numbers))
        with self._translate_errors(), self._locked():
            if self._closed:
                return False
            if not self._swept:
                atomic_file.sweep(self._directory, re.escape(self._name))
                self._swept = True
            if content is None:
                changed = atomic_file.remove(self.path)
            elif changed := new != self._written or not os.path.exists(self.path):
                self._replace(content)
            self._written = new
        return changed

    def rewrite(self) -> None:
        """Write the same content again after a device node was recreated. Raises CdiError."""
        with self._translate_errors(), self._locked():
            if self._written is not None and not self._closed:
                self._replace(self._written[0])

    def check(self, content: bytes) -> None:
        """Check that ``content`` could be written, without changing the file. Raises CdiError."""
        with self._translate_errors():
            atomic_file.remove(self._write_temporary(content)[0])

    def hand_over(self) -> None:
        """Leave the file to another process: ``close`` does not remove it. The next ``write`` takes it back.

        Accesses no file. Raises CdiError if another call is hanging.
        """
        with self._translate_errors(), self._locked():
            self._written = self._identity = None

    def stop_writing(self) -> None:
        """Write nothing from now on, not even in a call that is hanging. Accesses no file."""
        self._closed = True

    def close(self) -> None:
        """Remove the file that was written, unless a successor has replaced it. Raises CdiError.

        If another call hangs, the file may stay, but no new one appears when that call goes on.
        """
        self.stop_writing()
        with self._translate_errors(), self._locked(), contextlib.suppress(FileNotFoundError):
            if self._identity is not None and self._identity == _identity(os.lstat(self.path)):
                os.unlink(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=LOCK_TIMEOUT):
            raise TimeoutError(errno.ETIMEDOUT, "an earlier access to it is hanging", self.path)
        try:
            yield
        finally:
            self._lock.release()

    def _replace(self, content: bytes) -> None:
        """Replace the file atomically."""
        temporary, identity = self._write_temporary(content)
        try:
            if self._closed:  # while this call was hanging
                atomic_file.remove(temporary)
                return
            os.rename(temporary, self.path)
        except OSError:
            atomic_file.remove(temporary)
            raise
        self._identity = identity

    def _write_temporary(self, content: bytes) -> tuple[str, tuple[int, int, int]]:
        """Write a temporary file, and return its path and identity. Creates the directory if it is missing.

        The temporary file is in the same directory, because its renaming wakes a library before 1.1.1
        (pkg/cdi/cache.go).
        """
        atomic_file.make_directory(self._directory)  # despite the umask: rootless runtimes read it too
        temporary, status = atomic_file.write_temporary(self.path, content)
        return temporary, _identity(status)

    def _translate_errors(self) -> contextlib.AbstractContextManager[None]:
        return translate_errors(self.path)


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raise CdiError instead of OSError in accesses to the spec at ``path``."""
    try:
        yield
    except OSError as error:
        raise CdiError(
            f"cannot update the CDI spec {path}: {error.strerror}; its directory must be the host's (mounted "
            f"into the container), writable for uid {os.getuid()}, and have free space"
        ) from error


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    """Return what distinguishes a file from one that replaces it; renaming does not change it."""
    return status.st_dev, status.st_ino, status.st_mtime_ns
