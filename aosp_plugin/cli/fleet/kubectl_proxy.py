"""``kubectl proxy`` on a unix socket: kubectl finds the cluster and authenticates, by whatever the kubeconfig names."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Final, cast

from aosp_plugin.framework.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WRITES: Final = "^(POST|PUT|PATCH|DELETE)$"
"""The methods that the proxy refuses: nothing that reaches the socket can change the cluster."""

_END: Final = 5.0
"""Seconds that kubectl may take to end after SIGTERM."""
_KLOG: Final = b"Error while proxying request"
"""kubectl logs what it also answers."""


@contextlib.contextmanager
def kubectl_proxy(options: Sequence[str] = ()) -> Iterator[Proxy]:
    """Run ``kubectl proxy`` with options such as ``--context=NAME``.

    Its socket is in a private directory. Process and directory are gone after the block, however it ends. Raises
    ServiceError if there is no kubectl.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ServiceError("kubectl is not in PATH; kubectl phones reaches the API server through kubectl proxy")
    directory = tempfile.mkdtemp(prefix="kubectl-phones-")  # mode 0700
    path = os.path.join(directory, "api")
    process = None
    try:
        process = subprocess.Popen(  # noqa: S603 - the user's kubectl and the user's options
            [kubectl, "proxy", f"--unix-socket={path}", f"--reject-methods={WRITES}", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        yield Proxy(process, path)
    finally:
        if process is not None:
            _end(process)
        shutil.rmtree(directory, ignore_errors=True)


class Proxy:
    """A process of ``kubectl proxy``."""

    def __init__(self, process: subprocess.Popen[bytes], path: str) -> None:
        """``path`` is that of the socket that the process will have."""
        self._process = process
        self._path = path
        self._output = cast("IO[bytes]", process.stdout)
        self._errors = _Errors(cast("IO[bytes]", process.stderr))

    def socket(self) -> str:
        """Wait until the socket accepts requests, and return its path. Raises ServiceError if kubectl ends instead."""
        if not self._output.readline():  # "Starting to serve on PATH"
            code = self._process.wait()
            raise ServiceError(f"kubectl proxy did not start: {self._errors.last() or f'exit code {code}'}")
        self._errors.forward()
        return self._path


class _Errors:
    """What kubectl writes to standard error, for example the question of a credential plugin.

    It is kept until kubectl serves, and forwarded from then on: the reason of an early end is reported as our error.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._kept: list[bytes] | None = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def last(self) -> str:
        """Return the last line, after the process has ended."""
        self._thread.join(_END)
        lines = b"".join(self._kept or ()).decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else ""

    def forward(self) -> None:
        """Write to our standard error what has come, and what comes."""
        with self._lock:
            kept, self._kept = self._kept or (), None
        for part in kept:
            _write(part)

    def _read(self) -> None:
        while part := os.read(self._stream.fileno(), 4096):
            with self._lock:
                if self._kept is not None:
                    self._kept.append(part)
                    continue
            _write(part)


def _write(part: bytes) -> None:
    if _KLOG not in part:
        sys.stderr.write(part.decode(errors="replace"))
        sys.stderr.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
