"""The lock that excludes other processes of a driver from its claims.

In a rolling update, two processes of the driver run for some seconds, and the kubelet calls either of them. Each
change of the claims on this host happens under this lock, based on the files as they then are.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT, INTERVAL = 10.0, 0.02
"""Seconds to wait for another process, and between two attempts. A process holds the lock for milliseconds, except
when its host calls hang."""

_MODE = 0o750


class StateLock:
    """A lock file in the driver's directory. To be used in the worker thread."""

    def __init__(self, directory: str) -> None:
        """Return the lock of a directory, which is created when it is needed."""
        self._directory = directory
        self.path = os.path.join(directory, "lock")

    @contextlib.contextmanager
    def held(self, timeout: float = TIMEOUT) -> Iterator[None]:
        """Hold the lock inside the context. Raises CheckpointError if it cannot be locked within ``timeout`` s."""
        end = time.monotonic() + timeout
        try:
            while (descriptor := self._try()) is None:
                if time.monotonic() >= end:
                    raise CheckpointError(
                        f"another process has had the lock {self.path} for {timeout:g} s; if it hangs, end it"
                    )
                time.sleep(INTERVAL)
        except OSError as error:
            raise CheckpointError(f"cannot lock {self.path}: {error.strerror}") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def _try(self) -> int | None:
        """Return the descriptor of the locked file, or None if another process has locked it."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):  # then it was deleted, and a successor locks another file
                if os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                    return descriptor
        except BlockingIOError:
            pass
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self._directory), exist_ok=True)
            atomic_file.make_directory(self._directory, _MODE)
            return os.open(self.path, flags, 0o600)
