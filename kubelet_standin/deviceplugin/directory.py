"""The kubelet's plugin directory: its clean-up at start, its sockets and the checkpoint file."""

import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Final

import grpc

from kubelet_standin.deviceplugin import checkpoint as cp
from kubelet_standin.sockets import open_channel
from kubelet_standin.versions import KubeletVersion

SOCKET_NAME: Final = "kubelet.sock"
MAX_SOCKET_PATH: Final = 107
"""Bytes of ``sun_path`` without the terminating NUL."""

_log = logging.getLogger(__name__)


class PluginDirectory:
    """A directory of this machine. A subclass may have other files and sockets, such as simulated ones."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name a directory, which need not exist. Raises OSError if its path is too long for a unix socket."""
        self.path = os.path.abspath(path)
        self.socket_path = os.path.join(self.path, SOCKET_NAME)
        self.checkpoint_path = os.path.join(self.path, cp.FILE_NAME)
        if len(os.fsencode(self.socket_path)) > MAX_SOCKET_PATH:
            raise OSError(
                errno.ENAMETOOLONG,
                f"longer than {MAX_SOCKET_PATH} bytes, the limit for unix sockets; "
                "use a shorter directory, such as tempfile.mkdtemp(dir='/tmp')",
                self.socket_path,
            )

    def endpoint_path(self, endpoint: str) -> str:
        """Return a plugin's socket path as Go's filepath.Join does: "/x" stays inside, "../x" does not."""
        return os.path.normpath(f"{self.path}/{endpoint}")

    def channel(self, path: str, *options: tuple[str, int]) -> grpc.aio.Channel:
        """Return a new gRPC channel to the socket of a plugin."""
        return open_channel(path, *options)

    def server(self) -> grpc.aio.Server:
        """Return a new gRPC server, for a socket of the kubelet."""
        return grpc.aio.server()

    def alias(self) -> contextlib.AbstractContextManager[str]:
        """Return another path of the directory, which exists only inside the context.

        A killed kubelet leaves kubelet.sock behind, and its death causes no file event. gRPC and asyncio, however,
        unlink the path that they bound when they stop. If they bind under an alias that no longer exists, the socket
        stays.
        """
        return _alias(self.path)

    def prepare(self, version: KubeletVersion, *, keep_sockets: bool = False) -> None:
        """Create the directory, and remove the files that a kubelet removes at its start (manager.go:193-225).

        The checkpoint and subdirectories stay, and so do dangling symbolic links, because ``stat`` fails for them.
        With ``keep_sockets``, only kubelet.sock is removed.
        """
        os.makedirs(self.path, mode=0o750, exist_ok=True)
        for name in os.listdir(self.path):
            path = os.path.join(self.path, name)
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

    def read_checkpoint(self) -> cp.Checkpoint:
        """Read the checkpoint. It is empty if the file does not exist, or, with a warning, if the file is corrupt."""
        try:
            with open(self.checkpoint_path, "rb") as file:
                return cp.decode(file.read())
        except FileNotFoundError:
            return cp.Checkpoint()
        except cp.CorruptCheckpointError as error:
            _log.warning(
                "Continue after failing to read checkpoint file. Device allocation info may NOT be up-to-date. Err: %s",
                error,
            )
            return cp.Checkpoint()

    def write_checkpoint(self, checkpoint: cp.Checkpoint) -> None:
        """Replace the checkpoint atomically (pkg/kubelet/util/store/filestore.go)."""
        descriptor, temporary = tempfile.mkstemp(prefix=f".{cp.FILE_NAME}", dir=self.path)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(cp.encode(checkpoint))
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self.checkpoint_path)
        except BaseException:
            os.unlink(temporary)
            raise

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.checkpoint_path)


@contextlib.contextmanager
def _alias(directory: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as holder:
        link = os.path.join(holder, "d")
        os.symlink(directory, link)
        yield link
