"""The file of a CDI spec: written atomically, kept current, and left in place when the plugin ends.

A container that restarts while no plugin runs requires it, and it stays right: it names paths, not device numbers. If
its directory survives a reboot, which /run does not, a container that starts before the plugin gets the device that has
the path now, or does not start because there is none. The first host update of a plugin replaces the file.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.errors import CdiError


def spec_path(directory: str, resource_name: str) -> str:
    """Return the path of the spec of a resource in the directory of specs."""
    name = resource_name.replace("/", "_")  # with the library's "-", a-b/c and a/b-c share a file
    return os.path.join(directory, f"{name}.json")


class SpecFile:
    """The file of one resource's spec, in a directory that belongs to root.

    To be used in one thread at a time.
    """

    def __init__(self, directory: str, resource_name: str) -> None:
        """``directory`` is a path of this process."""
        self._directory = directory
        self.path = spec_path(directory, resource_name)
        self._written: tuple[bytes, tuple[int, ...]] | None = None
        self._identity: tuple[int, int, int] | None = None

    def write(self, content: bytes | None, numbers: Sequence[int] = ()) -> bool:
        """Write ``content``, or remove the file if it is None, because there are no devices; return whether it changed.

        ``numbers`` are the device numbers (st_rdev) of the device nodes. If one changes, the same content is written
        again: a runtime caches the numbers that it reads first until the file changes, because ``fillMissingInfo``
        stores them in the library's cache (measured with 0.7.2 to 1.1.1). For the same reason, the first content is
        written even if the file has it already, and so is a file that another process has replaced, as in a rolling
        update. Temporary files that a killed process left are removed. Raises CdiError; the previous file then stays
        complete.
        """
        new = None if content is None else (content, tuple(numbers))
        with translate_errors(self.path):
            atomic_file.sweep(self._directory, re.escape(os.path.basename(self.path)))
            if content is None:
                changed = atomic_file.remove(self.path)
            elif changed := new != self._written or self._identity != self._current():
                self._replace(content)
            self._written = new
        return changed

    def rewrite(self) -> None:
        """Write the same content again after a device node was recreated. Raises CdiError."""
        with translate_errors(self.path):
            if self._written is not None:
                self._replace(self._written[0])

    def check(self, content: bytes) -> None:
        """Check that ``content`` could be written, without changing the file. Raises CdiError."""
        with translate_errors(self.path):
            atomic_file.make_directory(self._directory)
            atomic_file.remove(atomic_file.write_temporary(self.path, content)[0])

    def _replace(self, content: bytes) -> None:
        """Replace the file atomically; create the directory if it is missing.

        The temporary file is in the same directory, because its renaming wakes a library before 1.1.1
        (pkg/cdi/cache.go).
        """
        atomic_file.make_directory(self._directory)  # despite the umask: rootless runtimes read it too
        self._identity = _identity(atomic_file.replace(self.path, content, sync=True))

    def _current(self) -> tuple[int, int, int] | None:
        """Return the identity of the file as it is now; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return _identity(os.lstat(self.path))
        return None


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
