"""The kubelet's directory on disk: sweeping it, listening in it, the checkpoint file."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from typing import TYPE_CHECKING, Final

from aosp_plugin.framework.errors import KubeletDirectoryError
from aosp_plugin.testing import checkpoint as cp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aosp_plugin.testing.behaviour import Behaviour

SOCKET_NAME: Final = "kubelet.sock"
MAX_SOCKET_PATH: Final = 107
"""Bytes in a sockaddr_un, without the final zero."""

_log = logging.getLogger(__name__)


def socket_path(directory: str) -> str:
    """Return the path of kubelet.sock. KubeletDirectoryError if no socket can be bound or dialled there."""
    path = os.path.join(directory, SOCKET_NAME)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise KubeletDirectoryError(
            f"{path} is longer than {MAX_SOCKET_PATH} bytes, which no socket can have; "
            "take a shorter directory, such as tempfile.mkdtemp(dir='/tmp')"
        )
    return path


def endpoint_path(directory: str, endpoint: str) -> str:
    """Return where a plugin is dialled: Go's filepath.Join, where "/x" stays inside and "../x" does not."""
    return os.path.normpath(f"{directory}/{endpoint}")


def sweep(directory: str, behaviour: Behaviour, *, keep_sockets: bool = False) -> None:
    """Remove what a kubelet removes at its start (pkg/kubelet/cm/devicemanager/manager.go:193-225).

    The checkpoint and sub-directories stay; so do links that lead nowhere, because they can't be looked at.
    ``keep_sockets``: all but kubelet.sock itself.
    """
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if name == cp.FILE_NAME or (keep_sockets and name != SOCKET_NAME):
            continue
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            _log.warning("failed to stat file %s: %s", path, error)
            continue
        if behaviour.sweeps(mode):
            with contextlib.suppress(FileNotFoundError):  # as Go's os.RemoveAll: a plugin may remove its own just now
                os.unlink(path)


def write_deprecation(directory: str) -> None:
    """Leave the file by which kubelet 1.20 pointed to its plugin watcher (manager.go:284-293)."""
    with open(os.path.join(directory, "DEPRECATION"), "wb"):
        pass


@contextlib.contextmanager
def alias(directory: str) -> Iterator[str]:
    """Give another name to a directory, for as long as the context lasts.

    A killed kubelet leaves kubelet.sock behind, and no file event tells of its death. gRPC and asyncio unlink
    the path that they bound when they stop. Bound under a name that has gone since, they find nothing.
    """
    with tempfile.TemporaryDirectory(prefix="kubelet-") as holder:
        link = os.path.join(holder, "d")
        os.symlink(directory, link)
        yield link


def read_checkpoint(path: str) -> cp.Checkpoint:
    """Read the checkpoint. One that is absent is empty; one that is corrupt is too, with a warning."""
    try:
        with open(path, "rb") as file:
            return cp.decode(file.read())
    except FileNotFoundError:
        return cp.Checkpoint()
    except cp.CorruptCheckpointError as error:
        _log.warning(
            "Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date. Err: %s",
            error,
        )
        return cp.Checkpoint()


def remove_checkpoint(path: str) -> None:
    """Remove the checkpoint, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write_checkpoint(path: str, checkpoint: cp.Checkpoint) -> None:
    """Replace the checkpoint at once or not at all (pkg/kubelet/util/store/filestore.go)."""
    directory, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}", dir=directory)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(cp.encode(checkpoint))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
