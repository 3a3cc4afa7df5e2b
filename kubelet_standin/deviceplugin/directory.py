"""The kubelet's plugin directory on disk: its clean-up at start, its socket paths and the checkpoint file."""

import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Final

from kubelet_standin.deviceplugin import checkpoint as cp
from kubelet_standin.versions import KubeletVersion

SOCKET_NAME: Final = "kubelet.sock"
MAX_SOCKET_PATH: Final = 107
"""Bytes of ``sun_path`` without the terminating NUL."""

_log = logging.getLogger(__name__)


def socket_path(directory: str) -> str:
    """Return the path of kubelet.sock; OSError if it is too long for a unix socket."""
    path = os.path.join(directory, SOCKET_NAME)
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise OSError(
            errno.ENAMETOOLONG,
            f"longer than {MAX_SOCKET_PATH} bytes, the limit for unix sockets; "
            "use a shorter directory, such as tempfile.mkdtemp(dir='/tmp')",
            path,
        )
    return path


def endpoint_path(directory: str, endpoint: str) -> str:
    """Return a plugin's socket path as Go's filepath.Join does: "/x" stays inside the directory, "../x" does not."""
    return os.path.normpath(f"{directory}/{endpoint}")


def sweep(directory: str, version: KubeletVersion, *, keep_sockets: bool = False) -> None:
    """Remove the files that a kubelet removes at its start (pkg/kubelet/cm/devicemanager/manager.go:193-225).

    The checkpoint and subdirectories stay, and so do dangling symbolic links, because ``stat`` fails for them.
    With ``keep_sockets``, only kubelet.sock is removed.
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
        if version.sweeps(mode):
            with contextlib.suppress(FileNotFoundError):  # like os.RemoveAll: the plugin may remove its own socket
                os.unlink(path)


@contextlib.contextmanager
def alias(directory: str) -> Iterator[str]:
    """Yield another path of a directory, which exists only inside the context.

    A killed kubelet leaves kubelet.sock behind, and its death causes no file event. gRPC and asyncio, however, unlink
    the path that they bound when they stop. If they bind under an alias that no longer exists, the socket stays.
    """
    with tempfile.TemporaryDirectory(prefix="kubelet-") as holder:
        link = os.path.join(holder, "d")
        os.symlink(directory, link)
        yield link


def read_checkpoint(path: str) -> cp.Checkpoint:
    """Read the checkpoint. It is empty if the file does not exist, or, with a warning, if the file is corrupt."""
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


def write_checkpoint(path: str, checkpoint: cp.Checkpoint) -> None:
    """Replace the checkpoint atomically (pkg/kubelet/util/store/filestore.go)."""
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
