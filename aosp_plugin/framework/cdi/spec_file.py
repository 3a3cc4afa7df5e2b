"""The file of a CDI spec: written as a whole, kept current, and removed at the end. Its text is ``cdi``'s matter."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from typing import TYPE_CHECKING

from aosp_plugin.framework.errors import CdiError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class SpecFile:
    """The file of one resource's spec, in a directory of root's."""

    def __init__(self, directory: str, resource_name: str) -> None:
        """``directory`` is where this process sees it."""
        self._directory = directory
        self._name = f"{resource_name.replace('/', '_')}.json"  # with the library's "-", a-b/c and a/b-c share a file
        self.path = os.path.join(directory, self._name)
        self._lock = threading.Lock()
        self._written: tuple[bytes, tuple[int, ...]] | None = None
        self._identity: tuple[int, int, int] | None = None

    def sweep(self) -> list[str]:
        """Remove the temporary files that a killed predecessor left, and return their names. Raises CdiError."""
        own = re.compile(re.escape(f".{self._name}.") + r"[a-z0-9_]{8}\.tmp")
        with self._telling(), contextlib.suppress(FileNotFoundError):
            stale = [name for name in os.listdir(self._directory) if own.fullmatch(name)]
            return [name for name in stale if _remove(os.path.join(self._directory, name))]
        return []

    def write(self, content: bytes | None, numbers: Sequence[int] = ()) -> bool:
        """Have the file say ``content``; None, where there are no devices, removes it. Say whether it changed.

        ``numbers`` are the device numbers (st_rdev) of the nodes. Where one changes, the same content is written again:
        a runtime keeps those that it found first until the file changes, as ``fillMissingInfo`` leaves them in the
        library's cache (measured with 0.7.2 to 1.1.1). So the first content is written whatever stands there.
        Raises CdiError; the file that was there then stays whole.
        """
        wanted = None if content is None else (content, tuple(numbers))
        with self._lock, self._telling():
            if content is None:
                changed = _remove(self.path)
            elif changed := wanted != self._written or not os.path.exists(self.path):
                self._replace(content)
            self._written = wanted
        return changed

    def rewrite(self) -> None:
        """Write the same content again, as a node was made anew, while ``write`` may be under way in another thread.

        Raises CdiError.
        """
        with self._lock, self._telling():
            if self._written is not None:
                self._replace(self._written[0])

    def close(self) -> None:
        """Remove the file, but not one that a successor has put there by now. Raises CdiError."""
        with self._telling(), contextlib.suppress(FileNotFoundError):
            if self._identity == _identity(os.lstat(self.path)):
                os.unlink(self.path)

    def _replace(self, content: bytes) -> None:
        """Put a new file in the old one's place.

        The temporary one is in the same directory, as its renaming wakes a library before 1.1.1 (pkg/cdi/cache.go),
        and ends in neither .json nor .yaml, so that none reads it. ``mkstemp`` opens it with O_EXCL and O_NOFOLLOW.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory)
            os.chmod(self._directory, 0o755)  # noqa: S103 - whatever the umask: not only root runs containers
        descriptor, temporary = tempfile.mkstemp(".tmp", f".{self._name}.", self._directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
                identity = _identity(os.fstat(descriptor))
            os.rename(temporary, self.path)
        except OSError:
            _remove(temporary)
            raise
        self._identity = identity

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CdiError(
                f"the CDI spec {self.path} can't be kept up to date: {error.strerror}; its directory has to be the "
                f"host's (mounted, in a container), writable for uid {os.getuid()}, and with space left"
            ) from error


def _identity(seen: os.stat_result) -> tuple[int, int, int]:
    """Return what tells a file from one that takes its place; a renaming does not change it."""
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns


def _remove(path: str) -> bool:
    """Remove a file and say whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
