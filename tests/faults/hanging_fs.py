"""A FUSE file system that hangs or fails on request: a directory at a mount point, until its server stops answering.

A process of its own serves it (``fuse_server``), so that neither a hang of the tested process nor one of the test stops
the server. The entries of ``source``, a plain directory, appear at the mount point: files, directories, links, and
devices with their numbers. The test changes ``source`` at any time, also during a hang. The kernel caches neither names
nor attributes, so every stat reaches the server. Locks stay in the kernel.

During a hang each call waits, as with a network file system whose server is gone: signals do not end it, except one
that kills the process. Requires root, /dev/fuse and libfuse 3.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Self

SERVER = os.path.join(os.path.dirname(__file__), "fuse_server.py")


class HangingFileSystem:
    """A mount of the file system; a context manager. Each call returns after the server has acted on it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Mount at ``directory``, which is created; ``source`` is next to it."""
        self.directory = os.fspath(directory)
        """The mount point."""
        self.source = f"{self.directory}.source"
        """The directory with the contents. Accessing it never hangs."""
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        for directory in (self.directory, self.source):
            os.makedirs(directory, exist_ok=True)
        command = [sys.executable, "-I", SERVER, self.directory, self.source]
        self._server = subprocess.Popen(  # noqa: S603 - our own
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # a signal to the test's process group must not end it before it has unmounted
        )
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        """Fail all calls that wait, and unmount."""
        assert self._server
        with self._server:
            pass  # closes its standard input, and waits for its end

    def hang(self) -> None:
        """Answer no request from now on."""
        self._command("hang")

    def fail(self, operation: str, error: int) -> None:
        """Answer an operation, by its name in ``fuse_server.Tree``, with this errno from now on, and all others."""
        self._command(f"fail {operation} {error}")

    def release(self) -> None:
        """Answer all requests that wait, and further ones, without failure."""
        self._command("release")

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Answer no request inside the context."""
        self.hang()
        try:
            yield
        finally:
            self.release()

    async def until_waiting(self) -> None:
        """Wait until a request waits."""
        assert await asyncio.to_thread(self._command, "await 1"), "no request waits"

    async def until_failed(self, count: int) -> None:
        """Wait until at least this many requests have failed since ``fail``."""
        failed = await asyncio.to_thread(self._command, f"await {count}")
        assert failed >= count, f"{failed} requests failed instead of {count}"

    def _command(self, command: str) -> int:
        assert self._server
        assert self._server.stdin
        self._server.stdin.write(f"{command}\n")
        return self._answer()

    def _answer(self) -> int:
        assert self._server
        assert self._server.stdout
        line = self._server.stdout.readline()
        assert line, "the server of the file system ended; its error is above"
        return int(line)
